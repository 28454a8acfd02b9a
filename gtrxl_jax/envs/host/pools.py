"""Environments of envpool, which step in threads of its own: `envpool:NAME`.

It has Atari, MuJoCo, ViZDoom, MiniGrid and others, written in C++ to step many at once.
What wrappers do elsewhere are arguments here, in `env.params`: `stack_num`, `img_height`,
`frame_skip`, ...
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gtrxl_jax.envs.host.simulators import fitting_params
from gtrxl_jax.extras import import_extra
from gtrxl_jax.validation import require_choice

LIBRARY = "envpool"

_OTHER_INFO = ("env_id", "elapsed_step", "players")
"""What envpool adds to every `info`."""


class Pool:
    """A batch of equal environments, with the methods of a vector environment of gymnasium.

    Args:
      name: its name, with `envpool:`.
      params: arguments of `envpool.make_gymnasium`.
      num_envs: the number of environments.
      seed: the seed; environment i uses seed + i.

    Raises:
      ImportError: if envpool is not installed.
      ValueError: if the name or an argument is unknown.
    """

    def __init__(self, name: str, params: Mapping[str, Any], num_envs: int, seed: int):
        library = import_extra(LIBRARY, LIBRARY, f"environment {name}")
        own = name.partition(":")[2]
        require_choice(f"environment of {LIBRARY}", own, library.list_all_envs())
        with fitting_params(name):
            self._pool = library.make_gymnasium(own, num_envs=num_envs, seed=seed, **params)
        self.observation_space = self._pool.observation_space
        self.action_space = self._pool.action_space

    @property
    def limit(self) -> int | None:
        """The number of actions after which episodes are cut."""
        return getattr(self._pool.spec.config, "max_episode_steps", None)

    def reset(self, seed: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start all episodes; the seed is that of the constructor."""
        observation, info = self._pool.reset()
        return observation, _of_episodes(info)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Advance all environments; the step after a last one is the reset."""
        dtype = getattr(self.action_space, "dtype", None)
        action = np.ascontiguousarray(action, np.int32 if dtype == np.int64 else dtype)
        observation, reward, terminated, truncated, info = self._pool.step(action)
        return observation, reward, terminated, truncated, _of_episodes(info)

    def close(self) -> None:
        """End the threads."""
        self._pool.close()


def _of_episodes(info: dict[str, Any]) -> dict[str, Any]:
    """Return the entries with one number for each environment."""
    return {
        name: value
        for name, value in info.items()
        if name not in _OTHER_INFO and isinstance(value, np.ndarray) and value.ndim == 1
    }
