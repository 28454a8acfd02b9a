"""Common parts of all configs."""
