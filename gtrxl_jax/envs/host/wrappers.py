"""The wrappers that a config can name, around environments of gymnasium.

They are applied in the order in which they are given, each with a value:

| name | value | effect |
|---|---|---|
| `atari` | side | the usual preprocessing: 30 no-ops, 4 frames an action, grey, side x side |
| `repeat` | n | each action is taken n times; rewards are summed |
| `keys` | names, by commas | only these entries of a dict |
| `categories` | n | whole numbers are choices from 0 to n - 1, such as kinds of objects |
| `grey` | true | grey images, also in a dict |
| `resize` | side | images of side x side, also in a dict |
| `stack` | n | the last n observations, in a leading axis |
| `flatten` | true | one vector |
| `limit` | n | episodes are truncated after n actions |
"""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers

from gtrxl_jax.specs.spaces import kind_of
from gtrxl_jax.validation import require_choice


class OfImages(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Applies a wrapper to an image, or to each image of a dict.

    Args:
      env: the environment.
      name: its name, for messages.
      wrap: the wrapper, of environments whose observation is an image.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], name: str, wrap: Callable[[Any], Any]):
        super().__init__(env)
        self._wrap, self._found = wrap, False
        self.observation_space, self._convert = self._of(env.observation_space)
        if not self._found:
            raise ValueError(
                f"env.wrappers {name}: there are no images [H, W, C] in {env.observation_space}"
            )

    def observation(self, observation: Any) -> Any:
        """Return the observation with its images changed."""
        return self._convert(observation)

    def _of(self, space: Any) -> tuple[Any, Callable[[Any], Any]]:
        if isinstance(space, spaces.Dict):
            parts = {name: self._of(part) for name, part in space.items()}
            return spaces.Dict({name: part for name, (part, _) in parts.items()}), lambda x: {
                name: convert(x[name]) for name, (_, convert) in parts.items()
            }
        if kind_of(space) != "box" or len(space.shape) != 3:
            return space, lambda x: x
        self._found = True
        of_image = gymnasium.Env[Any, Any]()
        of_image.observation_space = space
        wrapped = self._wrap(of_image)
        changed = wrapped.observation_space
        # OpenCV drops the axis of a single channel.
        return changed, lambda x: np.reshape(wrapped.observation(x), changed.shape)


class RepeatAction(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes each action n times, or until the episode ends, and sums the rewards.

    Args:
      env: the environment.
      n: the number of times.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], n: int):
        super().__init__(env)
        self._n = n

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action n times."""
        total: Any = 0.0
        for _ in range(self._n):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += reward
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


def _keys(env: gymnasium.Env[Any, Any], names: str) -> gymnasium.Env[Any, Any]:
    space = env.observation_space
    if not isinstance(space, spaces.Dict):
        raise ValueError(f"env.wrappers keys {names}: the observation is no dict, but {space}")
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        require_choice("key in env.wrappers keys", name, space.spaces)
    return wrappers.FilterObservation(env, chosen)


class Categories(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Declares whole numbers of observations as choices, which networks get one-hot.

    Args:
      env: the environment, of boxes of whole numbers, also in a dict.
      n: the number of choices.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], n: int):
        super().__init__(env)
        self._n, self._found = n, False
        self.observation_space = self._of(env.observation_space)
        if not self._found:
            raise ValueError(
                f"env.wrappers categories {n}: there are no boxes of whole numbers in "
                f"{env.observation_space}"
            )

    def observation(self, observation: Any) -> Any:
        """Return the observation as it is; what exceeds the choices is reported later."""
        return observation

    def _of(self, space: Any) -> Any:
        if isinstance(space, spaces.Dict):
            return spaces.Dict({name: self._of(part) for name, part in space.items()})
        if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer):
            self._found = True
            return spaces.MultiDiscrete(np.full(space.shape, self._n), dtype=np.int32)
        return space


def _atari(env: gymnasium.Env[Any, Any], side: int) -> gymnasium.Env[Any, Any]:
    # The wrapper repeats actions itself.
    env.unwrapped._frameskip = 1  # type: ignore[attr-defined]
    return wrappers.AtariPreprocessing(env, screen_size=side, grayscale_newaxis=True)


def _grey(env: gymnasium.Env[Any, Any]) -> Any:
    return wrappers.GrayscaleObservation(env, keep_dim=True)


def _resize(env: gymnasium.Env[Any, Any], side: int) -> Any:
    return wrappers.ResizeObservation(env, (side, side))


WRAPPERS: dict[str, tuple[type, Callable[[Any, Any], Any]]] = {
    "atari": (int, _atari),
    "repeat": (int, RepeatAction),
    "keys": (str, _keys),
    "categories": (int, Categories),
    "grey": (bool, lambda env, _: OfImages(env, "grey", _grey)),
    "resize": (int, lambda env, side: OfImages(env, "resize", lambda of: _resize(of, side))),
    "stack": (int, wrappers.FrameStackObservation),
    "flatten": (bool, lambda env, _: wrappers.FlattenObservation(env)),
    "limit": (int, wrappers.TimeLimit),
}
"""The type of the value of each wrapper, and the wrapper itself."""


def require_wrappers(given: Mapping[str, Any]) -> None:
    """Raise ValueError if a wrapper is unknown, or its value is of another type or below 1."""
    for name, value in given.items():
        kind, _ = WRAPPERS[require_choice("env.wrappers", name, WRAPPERS)]
        is_positive = not isinstance(value, int) or value > 0  # False is 0
        if type(value) is not kind or not is_positive:
            needed: str = {int: "a positive whole number", bool: "true", str: "names"}[kind]
            raise ValueError(f"env.wrappers {name} must be {needed}, got {value!r}")


def wrap(env: gymnasium.Env[Any, Any], given: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """Apply wrappers in their order.

    Raises:
      ValueError: if one does not fit the environment.
      ImportError: if one requires OpenCV, which is not installed.
    """
    for name, value in given.items():
        before = env.observation_space
        try:
            env = WRAPPERS[name][1](env, value)
        except gymnasium.error.DependencyNotInstalled as error:
            raise ImportError(
                f"env.wrappers {name} requires OpenCV: pip install opencv-python-headless"
            ) from error
        except (NotImplementedError, gymnasium.error.CustomSpaceError) as error:
            raise ValueError(
                f"env.wrappers {name} does not fit observations {before}, which have a text: "
                f"choose other entries before it, as in --env.wrappers keys image {name} {value}"
            ) from error
        except (AssertionError, TypeError, AttributeError) as error:
            reason = str(error) or "it needs images of uint8, from 0 to 255, with channels last"
            raise ValueError(
                f"env.wrappers {name} does not fit observations {before}: {reason}"
            ) from error
    return env
