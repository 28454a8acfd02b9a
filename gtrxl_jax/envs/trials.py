"""Trials: several episodes in one world as one episode, within which an agent can learn the world.

    env, params = make_env("MultiarmedBanditEasy-v0", trial=10)    # by name, --env.trial 10
    env = Trial(env, episodes=10)                                  # around any environment

This is the setting of RL squared (Duan et al. 2016, arXiv 1611.02779; Wang et al. 2016,
arXiv 1611.05763): an agent that remembers the first episodes does better in the later ones.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.envs.extensions import time_limit
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.envs.wrapper import Wrapper
from gtrxl_jax.specs.spaces import bounds_of, kind_of, parts_of
from gtrxl_jax.validation import require_count

NEW_EPISODE = "new_episode"
"""The entry of an observation that is 1 at the first step of each episode of a trial."""

_OF_STATES = ("legal_actions", "oracle_action", "shows_cue")
"""The extensions that are functions of a state and parameters, see `envs.extensions`."""
_OF_ENVIRONMENTS = ("action_names", "chance")
"""The extensions that a trial has unchanged."""
_BY_EPISODE = ("return", "length", "success")
"""The scores that are reported for each episode of a trial."""


@struct.dataclass
class TrialState(environment.EnvState):
    """The state of a trial of K episodes.

    Attributes:
      time: number of actions taken so far in the trial.
      inner: state of the environment.
      key: the PRNG key of all resets.
      episode: number of the running episode, 0 .. K - 1.
      scores: the scores `[K]` of each episode by name, so far; 0 for those to come.
    """

    inner: Any
    key: jax.Array
    episode: Int[Array, ""]
    scores: dict[str, Float[Array, " K"]]


class Trial(Wrapper):
    """An environment whose episodes are K episodes of another one, one after another.

    All K begin with the same reset, by the same PRNG key: what an environment draws there, such as
    a maze, a goal or the chances of a bandit, is the same in all of them, and what it draws in its
    steps is not. The next trial is another world.

    The step that ends an episode returns the first observation of the next one, with the reward of
    the action that ended it: as in RL squared, no action is without effect, and the final
    observation is not seen, except the trial's. The memory is kept. The agent sees the boundary by
    an entry of the observation, `NEW_EPISODE`, which is 1 at the first step of each episode and 0
    at all others. It is

        a further entry of a dict, or the last part of a tuple;
        the last element of a vector of floats;
        beside any other observation, in a dict {"observation": ..., "new_episode": ...}.

    Inside a trial it makes no difference whether an episode terminates or is truncated: the agent
    sees a boundary, and values count the rewards of the episodes that follow. A trial terminates
    with its last episode, also if that is truncated: as the time limit is a rule of every episode
    in it, no reward follows. Bootstrapping there would reward agents for not reaching a goal in the
    last episode, as if others came.

    Scores, beside the return of the whole trial: the mean over the episodes of all that the
    environment reports, such as `success`; and of each episode n from 1 to K `return_n`,
    `length_n`, and `success_n` if it reports successes.

    Args:
      env: the other environment.
      episodes: K.

    Raises:
      ValueError: if `episodes` is below 1.
      TypeError: if `episodes` is no whole number.
    """

    def __init__(self, env: environment.Environment, episodes: int) -> None:
        require_count("trial", episodes)
        super().__init__(env)
        self.episodes = episodes

    def __getattr__(self, name: str) -> Any:
        if name in _OF_STATES:
            method = getattr(self.env, name)
            return lambda state, params: method(state.inner, params)
        if name in _OF_ENVIRONMENTS:
            return getattr(self.env, name)
        raise AttributeError(name)

    def inner_state(self, state: TrialState) -> Any:
        """Return the state of the environment."""
        return state.inner

    def time_limit(self, params: Any) -> int | Array:
        """Return K times the time limit of an episode."""
        return self.episodes * time_limit(self.env, params)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, TrialState]:
        """Begin a trial."""
        observation, inner = self.env.reset_env(key, params)
        names = ("return", "length", *Stream(self.env, params, 1).reported_info)
        state = TrialState(
            time=jnp.int32(0),
            inner=inner,
            key=key,
            episode=jnp.int32(0),
            scores={name: jnp.zeros(self.episodes, jnp.float32) for name in names},
        )
        return self._add_boundary(observation, jnp.bool_(True)), state

    def step_env(
        self, key: jax.Array, state: TrialState, action: Any, params: Any
    ) -> tuple[Any, TrialState, Array, Bool[Array, ""], dict[str, Any]]:
        """Take a step of the running episode; if it ends, begin the next one."""
        observation, inner, reward, terminated, info = self.env.step_env(
            key, state.inner, action, params
        )
        ends = jnp.asarray(terminated, bool) | self.env.is_truncated(inner, params)
        is_over = ends & (state.episode == self.episodes - 1)
        begins = ends & ~is_over

        def reset(carry: Any) -> Any:
            return jnp.bool_(False), *_like(carry[1:], self.env.reset_env(state.key, params))

        # Not `where`, so that steps at which no episode of a batch ends draw no world.
        carry = (begins, *jax.tree.map(jnp.asarray, (observation, inner)))
        _, observation, inner = jax.lax.while_loop(lambda carry: carry[0], reset, carry)

        running_K = jnp.arange(self.episodes) == state.episode
        latest = {name: info[name] for name in state.scores if name in info}
        latest["return"] = state.scores["return"] + jnp.asarray(reward, jnp.float32)
        latest["length"] = state.scores["length"] + 1
        scores = {
            name: jnp.where(running_K, jnp.asarray(latest[name], jnp.float32), score_K)
            for name, score_K in state.scores.items()
        }
        state = TrialState(
            time=state.time + 1,
            inner=inner,
            key=state.key,
            episode=state.episode + begins.astype(jnp.int32),
            scores=scores,
        )
        return self._add_boundary(observation, begins), state, reward, is_over, self._info(scores)

    def observe(self, key: jax.Array, state: TrialState, action: Any, params: Any) -> Any:
        """Return the observation of a state with the boundary."""
        begins = state.scores["length"][state.episode] == 0
        return self._add_boundary(super().observe(key, state, action, params), begins)

    def is_truncated(self, state: TrialState, params: Any) -> Bool[Array, ""]:
        """Return False: trials terminate."""
        return jnp.bool_(False)

    def observation_space(self, params: Any = None) -> Any:
        """Return the space of observations with the boundary.

        Raises:
          ValueError: if the environment has such an entry already.
        """
        space, boundary = self.env.observation_space(params), spaces.Discrete(2)
        parts, kind = parts_of(space) or {}, kind_of(space)
        if NEW_EPISODE in parts:
            raise ValueError(
                f"environment {self.name}: its observations have an entry {NEW_EPISODE}, which a "
                "trial adds: rename it"
            )
        if kind == "dict":
            return spaces.Dict({**parts, NEW_EPISODE: boundary})
        if kind == "tuple":
            return spaces.Tuple((*parts.values(), boundary))
        if kind == "box" and _is_vector(space):
            low, high = (np.broadcast_to(bound, space.shape) for bound in bounds_of(space))
            low, high = (np.append(bound, end) for bound, end in ((low, 0), (high, 1)))
            return spaces.Box(low, high, (math.prod(space.shape) + 1,), space.dtype)
        return spaces.Dict({"observation": space, NEW_EPISODE: boundary})

    def _add_boundary(self, observation: Any, begins: Bool[Array, ""]) -> Any:
        """Return an observation of the environment with the boundary."""
        boundary = begins.astype(jnp.int32)
        if isinstance(observation, Mapping):
            return {**observation, NEW_EPISODE: boundary}
        if isinstance(observation, tuple):
            return (*observation, boundary)
        if _is_vector(observation):
            return jnp.append(observation, begins.astype(observation.dtype))
        return {"observation": observation, NEW_EPISODE: boundary}

    def _info(self, scores: dict[str, Float[Array, " K"]]) -> dict[str, Float[Array, ""]]:
        info = {}
        for name, score_K in scores.items():
            if name not in ("return", "length"):
                info[name] = jnp.mean(score_K)
            if name in _BY_EPISODE:
                info |= {f"{name}_{n}": score for n, score in enumerate(score_K, start=1)}
        return info


def _is_vector(x: Any) -> bool:
    """Return whether an array, or a box, is a vector of floats."""
    return len(x.shape) == 1 and bool(jnp.issubdtype(x.dtype, jnp.floating))


def _like(expected: Any, values: Any) -> Any:
    """Return values as arrays with the dtypes of others, since resets may return Python numbers."""
    return jax.tree.map(lambda x, value: jnp.asarray(value, x.dtype), expected, tuple(values))
