"""Devices and hosts: meshes, how arrays are split over them, and processes that train together."""
