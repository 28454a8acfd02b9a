"""Tasks with the interface of dm_env, as environments of gymnasium."""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class DmEnv(gymnasium.Env[Any, Any]):
    """A task of dm_env. Episodes that end with a discount of 0 terminate; others are truncated.

    Args:
      make: makes the task from a seed, or from None. A reset with a seed makes it anew, since tasks
        are seeded when they are made.
      image: the key of the image that `render` returns; empty if it is the whole observation.
      max_steps: the number of actions after which episodes are truncated; None if unknown.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012, as the base class declares it
    render_mode = "rgb_array"

    def __init__(
        self, make: Callable[[int | None], Any], image: str = "", max_steps: int | None = None
    ):
        self._make, self._image, self.max_steps = make, image, max_steps
        self._task = make(None)
        self.observation_space = to_space(self._task.observation_spec())
        self.action_space = to_space(self._task.action_spec())
        self._observation: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        if seed is not None:
            self._task.close()
            self._task = self._make(seed)
        self._observation = self._task.reset().observation
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action."""
        timestep = self._task.step(action)
        self._observation = timestep.observation
        terminated = timestep.last() and timestep.discount == 0
        truncated = timestep.last() and not terminated
        return self._observation, timestep.reward, terminated, truncated, {}

    def render(self) -> np.ndarray:
        """Return the last image."""
        return self._observation[self._image] if self._image else self._observation

    def close(self) -> None:
        """Close the task."""
        self._task.close()


def to_space(spec: Any) -> spaces.Space[Any]:
    """Return the space of a spec of dm_env, or of specs that are nested in dicts, tuples and lists.

    Raises:
      ValueError: for a spec of strings.
    """
    if isinstance(spec, Mapping):
        return spaces.Dict({name: to_space(part) for name, part in spec.items()})
    if isinstance(spec, tuple | list):
        return spaces.Tuple([to_space(part) for part in spec])
    if hasattr(spec, "num_values"):
        return spaces.Discrete(int(spec.num_values))
    dtype = np.dtype(spec.dtype)
    if dtype.kind not in "biuf":
        raise ValueError(f"{spec} is of {dtype}, which no space has: leave it out, or give numbers")
    least, most = (-np.inf, np.inf)
    if dtype.kind in "iu":
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    elif dtype.kind == "b":
        least, most = False, True
    low = np.broadcast_to(getattr(spec, "minimum", least), spec.shape).astype(dtype)
    high = np.broadcast_to(getattr(spec, "maximum", most), spec.shape).astype(dtype)
    return spaces.Box(low, high, spec.shape, dtype.type)
