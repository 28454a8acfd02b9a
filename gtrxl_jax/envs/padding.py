"""Pad the spaces of different environments, so that one agent can learn all of them."""

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from gymnax.environments import spaces
from jaxtyping import Array, Bool, Float

from gtrxl_jax.envs.extensions import legal_actions, restricts_actions
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.envs.wrapper import Wrapper
from gtrxl_jax.specs import ArraySpec, action_spec, environment_action, observation_spec


def pad_spaces(streams: Sequence[Stream], names: Sequence[str]) -> tuple[Stream, ...]:
    """Give streams of different environments the same spaces, where they fit.

    Vectors become their features (see `ArraySpec.features`: choices are one-hot), padded with zeros
    to the longest. Discrete actions get as many choices as the environment with most of them, see
    `PaddedSpaces`. Entries of `info` are reported only if all environments report them, and all
    actions are legal in an environment that does not say which are. Streams that agree are
    unchanged.

    Args:
      streams: the streams, one for each task.
      names: the names of their environments, for error messages.

    Raises:
      ValueError: if observations differ that are not vectors, or actions that are not discrete.
    """
    observations = [observation_spec(stream.observation_space) for stream in streams]
    actions = [action_spec(stream.action_space) for stream in streams]
    reported = [set(stream.reported_info) for stream in streams]
    common = set.intersection(*reported)
    masked = [restricts_actions(stream.env) for stream in streams]
    _require("observations", _is_vector, observations, names, "only vectors are padded")
    _require("actions", _is_discrete, actions, names, "only single Discrete actions are padded")
    features = choices = None
    if any(spec != observations[0] for spec in observations):
        features = max(math.prod(spec.feature_shape) for spec in observations)
    if any(spec != actions[0] for spec in actions):
        choices = max(spec.discrete[0] for spec in actions)
    agree = all(names == common for names in reported) and len(set(masked)) == 1
    if features is None and choices is None and agree:
        return tuple(streams)
    return tuple(
        dataclasses.replace(
            stream, env=PaddedSpaces(stream, features, choices, common, any(masked))
        )
        for stream in streams
    )


class PaddedSpaces(Wrapper):
    """The environment of a stream, with spaces that it shares with others.

    Choice a is action a mod n of an environment with n actions. Several choices may be the same
    action, so a policy need not know which environment it is in.

    Args:
      stream: the stream of the environment.
      features: length of observations; None to leave them as they are.
      choices: number of actions; None to leave them as they are.
      reported_info: the entries of `info` to keep.
      masked: whether to have `legal_actions`, see `envs.extensions`.
    """

    def __init__(
        self,
        stream: Stream,
        features: int | None,
        choices: int | None,
        reported_info: Collection[str],
        masked: bool,
    ) -> None:
        super().__init__(stream.env)
        self._params = stream.params
        self._spaces = stream.observation_space, stream.action_space
        self._spec = observation_spec(stream.observation_space)
        self._features, self._choices = features, choices
        self._reported_info = reported_info
        if masked:
            self.legal_actions = self._legal_actions

    @property
    def num_actions(self) -> int:
        """The number of choices."""
        return self.action_space().n

    @property
    def default_params(self) -> Any:
        """The parameters of the stream."""
        return self._params

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        observation, state = self.env.reset_env(key, params)
        return self._pad(observation), state

    def step_env(
        self, key: jax.Array, state: Any, action: Any, params: Any
    ) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take the action that the choice stands for."""
        action = self._action(action)
        observation, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        info = {name: info[name] for name in self._reported_info}
        return self._pad(observation), state, reward, terminated, info

    def observe(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        """Return the observation of a state, after a choice or None."""
        action = None if action is None else self._action(action)
        return self._pad(super().observe(key, state, action, params))

    def observation_space(self, params: Any = None) -> Any:
        """Return the common space of observations."""
        if self._features is None:
            return self._spaces[0]
        return spaces.Box(-jnp.inf, jnp.inf, (self._features,), jnp.float32)

    def action_space(self, params: Any = None) -> Any:
        """Return the common space of actions."""
        return self._spaces[1] if self._choices is None else spaces.Discrete(self._choices)

    def _legal_actions(self, state: Any, params: Any) -> Bool[Array, " A"]:
        number = sum(action_spec(self.action_space()).discrete)
        legal = legal_actions(self.env, state, params)
        return jnp.ones(number, bool) if legal is None else legal[jnp.arange(number) % len(legal)]

    def _action(self, choice: Any) -> Any:
        """Return the action that a choice stands for."""
        if self._choices is None:
            return choice
        (number,) = action_spec(self._spaces[1]).discrete
        return environment_action(self._spaces[1], choice % jnp.asarray(number, choice.dtype))

    def _pad(self, observation: Any) -> Any | Float[Array, " F"]:
        if self._features is None:
            return observation
        vector = self._spec.features(observation, jnp.float32).reshape(-1)
        return jnp.pad(vector, (0, self._features - len(vector)))


def _is_vector(spec: Any) -> bool:
    return isinstance(spec, ArraySpec) and len(spec.shape) <= 1


def _is_discrete(spec: Any) -> bool:
    return not spec.continuous and len(spec.discrete) == 1


def _require(
    what: str,
    fits: Callable[[Any], bool],
    specs: Sequence[Any],
    names: Sequence[str],
    rule: str,
) -> None:
    """Raise for the first environment whose spec cannot be padded to fit the others."""
    for spec, name in zip(specs, names, strict=True):
        if spec != specs[0] and not (fits(spec) and fits(specs[0])):
            raise ValueError(
                f"env.name: the {what} of {names[0]}, {specs[0]}, and of {name}, {spec}, do not "
                f"fit together: {rule}, so train one agent for each"
            )
