"""Act with an exported agent on JAX and NumPy alone, in an environment written in plain Python.

    gtrxl export checkpoints/cartpole --to cartpole --stablehlo
    python examples/acting_without_the_library.py cartpole/step.stablehlo

The file has one acting step in StableHLO, with its parameters:

    state, action = step(state, observation, reward, first, seed)

The state carries the agent's memory and its previous action. Where `first` is true an episode
begins, and the state is ignored, so the first one may be zeros.
"""

import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np


class CartPole:
    """A pole on a cart, pushed left (0) or right (1); Barto, Sutton and Anderson 1983."""

    gravity, cart_mass, pole_mass, half_length, force, seconds = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    limit = 500

    def reset(self) -> np.ndarray:
        """Start an episode and return its first observation."""
        self.steps, self.state = 0, [random.uniform(-0.05, 0.05) for _ in range(4)]
        return np.array(self.state, np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:
        """Push the cart; return the observation, the reward, and whether the episode has ended."""
        x, speed, angle, turning = self.state
        sine, cosine = math.sin(angle), math.cos(angle)
        mass = self.cart_mass + self.pole_mass
        push = (2 * action - 1) * self.force
        push = (push + self.pole_mass * self.half_length * turning**2 * sine) / mass
        inertia = self.half_length * (4 / 3 - self.pole_mass * cosine**2 / mass)
        turning_rate = (self.gravity * sine - cosine * push) / inertia
        acceleration = push - self.pole_mass * self.half_length * turning_rate * cosine / mass
        rates = (speed, acceleration, turning, turning_rate)
        pairs = zip(self.state, rates, strict=True)
        self.state = [value + self.seconds * rate for value, rate in pairs]
        self.steps += 1
        fallen = abs(self.state[0]) > 2.4 or abs(self.state[2]) > math.radians(12)
        return np.array(self.state, np.float32), 1.0, fallen or self.steps == self.limit


def load(path: str) -> tuple[Callable[..., Any], list[np.ndarray]]:
    """Return the acting step in a file, compiled on first use, and a state to begin with."""
    exported = jax.export.deserialize(bytearray(Path(path).read_bytes()))
    (state, *_), _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    return jax.jit(exported.call), [np.zeros(array.shape, array.dtype) for array in state]


def play(env: CartPole, step: Callable[..., Any], state: list[np.ndarray]) -> float:
    """Play an episode and return the sum of its rewards."""
    observation, reward, total, done = env.reset(), 0.0, 0.0, False
    while not done:
        first, seed = np.bool_(env.steps == 0), np.uint32(random.getrandbits(32))
        state, action = step(state, observation, np.float32(reward), first, seed)
        observation, reward, done = env.step(int(action))
        total += reward
    return total


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    agent, state = load(sys.argv[1])
    for episode in range(5):
        print(f"episode {episode}: return {play(CartPole(), agent, state):.0f}")
