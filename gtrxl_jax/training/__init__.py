"""Configs, the trainers, evaluation, metrics and checkpoints."""
