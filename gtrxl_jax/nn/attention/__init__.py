"""Relative multi-head attention as a module, in two forms with the same parameters."""
