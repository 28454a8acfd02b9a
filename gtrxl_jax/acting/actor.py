"""Acting in a loop of one's own, in one environment, from NumPy to NumPy."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.acting.stepping import step_of
from gtrxl_jax.specs import action_spec
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
        self._example = jax.tree.map(np.asarray, zero_timestep(observation_space, action_space))
        self._choices = sum(action_spec(action_space).discrete)
        self._key, self._steps = jax.random.key(seed), 0
        fresh, step = step_of(policy, action_space)
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
          observation: of the environment, without a batch axis.
          reward: the reward of the previous action.
          first: whether this is the first step of an episode, where the memory is reset. Leave it
            out to keep the memory over several episodes.
          legal: bool `[A]`, the legal choices of each discrete dimension, one after another; all by
            default.

        Returns:
          The action, within bounds and in the layout of the environment's space: a NumPy scalar or
          array, or a dict or tuple of them.

        Raises:
          ValueError: if an argument has another shape, or the observation lacks a part.
          TypeError: if an argument has another type.
        """
        first = bool(first) or self._state is None
        example = self._example
        observation = _like(example.observation, observation, "observation")
        if legal is not None:
            legal = _like(np.zeros(self._choices, bool), legal, "legal")
        if first:
            self._state = self._fresh(self._params)
        reward = _like(example.reward, 0 if first else reward, "reward")
        key = jax.random.fold_in(self._key, self._steps)
        self._steps += 1
        self._state, action = self._step(
            self._params, self._state, observation, reward, np.bool_(first), key, legal
        )
        return jax.tree.map(lambda x: np.asarray(x)[()], action)


def _like(example: Any, value: Any, name: str) -> Any:
    """Return a value as arrays with the shapes and dtypes of an example; raise if it cannot be."""
    if isinstance(example, Mapping):
        if not isinstance(value, Mapping) or set(value) != set(example):
            raise ValueError(f"{name} must be a dict with the keys {', '.join(map(str, example))}")
        return {key: _like(part, value[key], f"{name}[{key!r}]") for key, part in example.items()}
    if isinstance(example, tuple):
        if not isinstance(value, tuple | list) or len(value) != len(example):
            raise ValueError(f"{name} must be a tuple of {len(example)}")
        parts = enumerate(zip(example, value, strict=True))
        return tuple(_like(part, inside, f"{name}[{n}]") for n, (part, inside) in parts)
    array = np.asarray(value)
    if array.shape != example.shape:
        raise ValueError(
            f"{name} has shape {array.shape} instead of {example.shape}: pass that of one "
            "environment, without a batch axis; for several, use init and act of the loaded run"
        )
    kinds = ("biuf" if example.dtype.kind == "f" else "biu") if example.dtype.kind != "b" else "b"
    if array.dtype.kind not in kinds:
        raise TypeError(f"{name} is of type {array.dtype} instead of {example.dtype}")
    return array.astype(example.dtype)
