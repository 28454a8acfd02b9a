"""Memory cores for reinforcement learning agents in JAX, and the trainers that use them."""

__version__ = "0.1.0"
