"""Offline data: trajectories, their files, the segments that trainers read, and collecting them."""
