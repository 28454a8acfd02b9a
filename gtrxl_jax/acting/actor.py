"""Act in one environment from your own loop, with NumPy in and out."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.acting.stepping import make_step_functions
from gtrxl_jax.specs import action_spec, require_values
from gtrxl_jax.specs.spaces import dtype_of, kind_of, parts_of, shape_of, text_tokens
from gtrxl_jax.timestep import zero_timestep


class Actor:
    """A policy in one environment, which keeps its memory.

        actor = gtrxl_jax.load("runs/mine").actor()
        action = actor(observation, reward, first)      # once per time step

    Args:
      policy: the policy.
      params: the parameters of its network.
      observation_space: the spaces of the environment.
      action_space: see `observation_space`.
      seed: seed of the actions, unused if the policy takes the most likely ones.
    """

    def __init__(
        self, policy: Policy, params: Any, observation_space: Any, action_space: Any, seed: int = 0
    ):
        self._params = params
        self._observation_space = observation_space
        self._reward = np.asarray(zero_timestep(observation_space, action_space).reward)
        self._sizes, self._reads_legal = action_spec(action_space).discrete, policy.reads_legal
        self._key, self._steps = jax.random.key(seed), 0
        fresh, step = make_step_functions(policy, action_space)
        self._fresh, self._step = jax.jit(fresh), jax.jit(step)
        self._state: Any = None

    def __call__(
        self,
        observation: Any,
        reward: ArrayLike = 0.0,
        first: ArrayLike = False,
        legal: ArrayLike | None = None,
    ) -> Any:
        """Choose the action of a time step; compiled on first use.

        Args:
          observation: of the environment, without a batch axis; a str for a text.
          reward: the reward of the previous action.
          first: whether this is the first step of an episode, where the memory is reset. Leave it
            out to keep the memory over several episodes.
          legal: bool `[A]`, or integers of 0 and 1, the legal choices of each discrete dimension,
            one after another; all by default. Not for offline models, which do not read it.

        Returns:
          The action, within bounds and in the layout of the environment's space: a NumPy scalar or
          array, or a dict or tuple of them.

        Raises:
          ValueError: if an argument has another shape, or the observation lacks a part, or a value
            does not belong to its space, or the reward is not finite, or no choice is legal, or
            the policy does not read which are.
          TypeError: if an argument has another type.
        """
        first = bool(_like(np.zeros((), bool), first, "first")) or self._state is None
        observation = _convert_observation(self._observation_space, observation, "observation")
        if legal is not None:
            legal = self._convert_legal(legal)
        reward = _like(self._reward, reward, "reward")
        if not np.isfinite(reward):
            raise ValueError(f"reward is {reward}: pass a finite one")
        if first:
            reward = np.zeros_like(reward)
            self._state = self._fresh(self._params)
        key = jax.random.fold_in(self._key, self._steps)
        self._steps += 1
        self._state, action = self._step(
            self._params, self._state, observation, reward, np.bool_(first), key, legal
        )
        return jax.tree.map(lambda x: np.asarray(x)[()], action)

    def _convert_legal(self, value: Any) -> np.ndarray:
        """Return the mask of legal choices as booleans; raise if it does not fit."""
        if not self._reads_legal:
            raise ValueError("legal has no effect on an offline model: leave it out")
        legal, sizes = np.asarray(value), self._sizes
        if legal.dtype.kind in "iu" and np.isin(legal, (0, 1)).all():  # as masks of gymnasium are
            legal = legal.astype(bool)
        legal = _like(np.zeros(sum(sizes), bool), legal, "legal")
        for dimension, part in enumerate(np.split(legal, np.cumsum(sizes)[:-1])):
            if sizes and not part.any():
                raise ValueError(
                    f"legal allows no choice of discrete dimension {dimension}: allow at least one"
                )
        return legal


def _convert_observation(space: Any, value: Any, name: str) -> Any:
    """Return an observation as arrays of the agent's dtypes; raise if it is not of its space."""
    parts = parts_of(space)
    if parts is None:
        if kind_of(space) == "text" and isinstance(value, str | bytes):
            (value,) = text_tokens(space, [value])
        elif isinstance(value, str):
            raise ValueError(
                f"{name} is a text, and the agent was trained with its tokens: make the "
                "environment with run.tasks[0].env.make(), run being the loaded run"
            )
        array = _array(value, shape_of(space), name)
        require_values(space, array, name)
        return array.astype(jax.dtypes.canonicalize_dtype(dtype_of(space)))
    if kind_of(space) == "dict":
        if not isinstance(value, Mapping) or set(value) != set(parts):
            raise ValueError(f"{name} must be a dict with the keys {', '.join(map(str, parts))}")
        return {
            key: _convert_observation(part, value[key], f"{name}[{key!r}]")
            for key, part in parts.items()
        }
    if not isinstance(value, tuple | list) or len(value) != len(parts):
        raise ValueError(f"{name} must be a tuple of {len(parts)}")
    return tuple(_convert_observation(part, value[n], f"{name}[{n}]") for n, part in parts.items())


def _like(example: np.ndarray, value: Any, name: str) -> np.ndarray:
    """Return a value with the shape and dtype of an example; raise if it cannot be."""
    array = _array(value, example.shape, name)
    kinds = "biuf" if example.dtype.kind == "f" else "b"
    if array.dtype.kind not in kinds:
        raise TypeError(f"{name} is of type {array.dtype} instead of {example.dtype}")
    return array.astype(example.dtype)


def _array(value: Any, shape: tuple[int, ...], name: str) -> np.ndarray:
    array = np.asarray(value)
    if array.shape != shape:
        raise ValueError(
            f"{name} has shape {array.shape} instead of {shape}: pass the array of one "
            "environment, without a batch axis; for several, use init and act of the loaded run"
        )
    return array
