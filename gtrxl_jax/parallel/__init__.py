"""Devices and hosts: meshes, array placement, and multi-process training."""
