"""A simulator in NumPy, with the interface of gymnasium: find the lever that was shown.

    cd examples
    gtrxl train --env.name custom_simulator:Lever --env.params delay 8 --total-steps 100000

Any subclass of `gymnasium.Env` trains like this, and so does a function that returns one. Numbers
in `info` become metrics of episodes, and "success" a score. `render` draws the episode at the end.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LEVERS = 3


class Lever(gymnasium.Env[np.ndarray, np.int64]):
    """One of three levers lights up; after a delay, the agent has to pull it.

    The observation is [lights of the levers, whether it is time to pull]. Actions have no effect
    before that time.

    Args:
      delay: number of steps between the light and the time to pull.
      render_mode: "rgb_array", to draw.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(self, delay: int = 8, render_mode: str | None = None):
        self.observation_space = spaces.Box(0, 1, (LEVERS + 1,), np.float32)
        self.action_space = spaces.Discrete(LEVERS)
        self.render_mode = render_mode
        self._delay = delay

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Light up a lever."""
        super().reset(seed=seed)
        self._lit = int(self.np_random.integers(LEVERS))
        self._step = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Wait, or pull a lever."""
        pulls = self._step == self._delay
        success = bool(pulls and action == self._lit)
        self._step += 1
        return self._observe(), float(success), pulls, False, {"success": success}

    def render(self) -> np.ndarray:
        """Draw the observation as four squares."""
        squares = (255 * self._observe()).astype(np.uint8).repeat(32)
        return np.broadcast_to(squares[None, :, None], (32, len(squares), 3)).copy()

    def _observe(self) -> np.ndarray:
        seen = np.zeros(LEVERS + 1, np.float32)
        if self._step == 0:
            seen[self._lit] = 1
        seen[-1] = self._step == self._delay
        return seen
