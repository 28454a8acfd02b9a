"""A T-Maze for gymnasium, which depends on nothing else; see `simulators.py`.

    gymnasium.make("TMaze-v0", corridor_length=10)

The first observation says which way to turn, and every action moves an agent forward, until it is
at the end of the corridor. There it turns: a reward of 1 for the right turn, 0 for the other.
"""

from typing import Any

import gymnasium
import numpy as np


class TMaze(gymnasium.Env[Any, Any]):
    """The maze. An observation is the cue, 1 or -1 in the first step and then 0, and the end."""

    def __init__(self, corridor_length: int = 10):
        self.corridor_length = corridor_length
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Draw the cue."""
        super().reset(seed=seed)
        self.position, self.right = 0, int(self.np_random.integers(2))
        return np.array([2 * self.right - 1, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move forward, or turn at the end."""
        turned, reward = self.position == self.corridor_length, 0.0
        if turned:
            reward = float(action == self.right)
        else:
            self.position += 1
        observation = np.array([0, self.position == self.corridor_length], np.float32)
        return observation, reward, turned, False, {}


gymnasium.register("TMaze-v0", "tmaze:TMaze")
