"""Collect complete episodes of a jitted environment with any policy."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import environment
from jaxtyping import Array, Int, Key

from gtrxl_jax.data.spaces import Spaces, dataset_spaces
from gtrxl_jax.data.trajectories import Trajectories, check, concatenate, select
from gtrxl_jax.envs.promotion import standard_dtype_promotion
from gtrxl_jax.envs.registry import time_limit
from gtrxl_jax.envs.stream import EpisodeStats, Stream
from gtrxl_jax.timestep import TimeStep


@runtime_checkable
class Policy(Protocol):
    """A policy for B environments, possibly with memory."""

    def initial(self, batch: int) -> Any:
        """Return the carry before an episode's first step, a pytree of arrays.

        It should include a network's parameters, so that they are not compiled as constants.
        """

    def act(
        self, carry: Any, env_state: Any, timestep: TimeStep, key: Key[Array, ""]
    ) -> tuple[Any, Any]:
        """Choose actions.

        Args:
          carry: the carry returned by `initial` or by the previous `act`.
          env_state: states of the environments, leaves `[B, ...]`.
          timestep: time step that an agent observes, leaves `[B, ...]`.
          key: a PRNG key.

        Returns:
          The new carry, and actions `[B, ...]` in the layout of the environment's action space.
        """


@dataclasses.dataclass(frozen=True)
class OraclePolicy:
    """The environment's built-in solution, which has access to its state.

    Raises:
      ValueError: if the environment has no `oracle_action`.
    """

    env: environment.Environment
    params: Any

    def __post_init__(self) -> None:
        if not hasattr(self.env, "oracle_action"):
            raise ValueError(f"{type(self.env).__name__} has no oracle_action: use another policy")

    def initial(self, batch: int) -> Any:
        """Return an empty carry."""
        return ()

    def act(
        self, carry: Any, env_state: Any, timestep: TimeStep, key: Key[Array, ""]
    ) -> tuple[Any, Any]:
        """Return the oracle's actions."""
        return carry, jax.vmap(lambda state: self.env.oracle_action(state, self.params))(env_state)


@dataclasses.dataclass(frozen=True)
class RandomPolicy:
    """A policy that chooses actions uniformly at random."""

    env: environment.Environment
    params: Any

    def initial(self, batch: int) -> Any:
        """Return an empty carry."""
        return ()

    def act(
        self, carry: Any, env_state: Any, timestep: TimeStep, key: Key[Array, ""]
    ) -> tuple[Any, Any]:
        """Sample from the action space, which must be bounded."""
        with standard_dtype_promotion():
            space = self.env.action_space(self.params)
            return carry, jax.vmap(space.sample)(jax.random.split(key, len(timestep.first)))


@dataclasses.dataclass(frozen=True)
class Cue:
    """The variable over which collected episodes are balanced.

    Attributes:
      field: name of an integer field of the environment's state, read at the end of an episode.
      values: possible values of the field, each of which gets an equal share of the episodes.
    """

    field: str
    values: tuple[int, ...]


CUES = {"TMaze": Cue("hint", (-1, 1)), "AssociativeRetrieval": Cue("goal", (0, 1))}
"""Cues by prefix of the environment's name."""


def cue_of(env_name: str) -> Cue | None:
    """Return the cue of an environment, or None if it has no known cue."""
    return next((cue for prefix, cue in CUES.items() if env_name.startswith(prefix)), None)


Progress = Callable[[EpisodeStats], None]

# A value of the cue that has not occurred after this many rounds is assumed to be impossible.
_PATIENCE = 20


def collect(
    env: environment.Environment,
    params: Any,
    policy: Policy,
    episodes: int,
    key: Key[Array, ""],
    num_envs: int = 64,
    cue: Cue | None = None,
    progress: Progress | None = None,
) -> Trajectories:
    """Play complete episodes, each from its own reset.

    In each round, every environment plays one episode of any length, so the result is not biased
    towards short episodes: surplus episodes are dropped from the end of the last round or, with a
    cue, separately for each of its values. The result is a function of the arguments up to `cue`.

    Args:
      env: an environment with the interface of gymnax 1.x.
      params: parameters of the environment.
      policy: the policy that acts.
      episodes: E, the number of episodes.
      key: a PRNG key.
      num_envs: number of parallel environments.
      cue: a variable each of whose values gets an equal share of the episodes (the first values get
        one more if the number does not divide evenly); surplus episodes are dropped.
      progress: called after each round with statistics of the episodes that it added.

    Returns:
      Trajectories on the host, padded with zeros.

    Raises:
      ValueError: if `episodes` is below 1, the environment exceeds its time limit, or a value of
        the cue never occurs.
      TypeError: if the environment's spaces are not supported, or its state lacks the cue's field.
    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    stream = Stream(env, params, num_envs)
    spaces = dataset_spaces(stream.observation_space, stream.action_space)
    play = jax.jit(_make_play(stream, policy, cue))
    carry = policy.initial(num_envs)
    wanted = _Wanted(episodes, cue)
    sets = []
    round_ = 0
    while wanted.left:
        steps, cue_B, episode_B = jax.device_get(play(carry, jax.random.fold_in(key, round_)))
        if not episode_B.done.all():
            raise ValueError(
                f"{type(env).__name__} continues beyond its time limit: make its episodes end by it"
            )
        kept = wanted.choose(cue_B)
        if len(kept):
            sets.append(_trajectories(steps, episode_B.length, spaces, kept))
            if progress is not None:
                progress(jax.tree.map(lambda x, kept=kept: x[kept], episode_B))
        round_ += 1
        wanted.require_all_seen(round_)
    trajectories = concatenate(sets)
    check(trajectories)
    return trajectories


class _Wanted:
    """The number of episodes still missing for each value of the cue."""

    def __init__(self, episodes: int, cue: Cue | None):
        self.cue = cue
        values = (0,) if cue is None else cue.values
        share, rest = divmod(episodes, len(values))
        self._left = {value: share + (n < rest) for n, value in enumerate(values)}
        self._unseen = {value for value, left in self._left.items() if left}

    @property
    def left(self) -> int:
        return sum(self._left.values())

    def choose(self, cue_B: Int[np.ndarray, " B"]) -> Int[np.ndarray, " F"]:
        """Return the indices of the episodes of a round to keep, in increasing order."""
        kept = []
        for value, left in self._left.items():
            (index,) = np.nonzero(cue_B == value)
            kept.append(index[:left])
            self._left[value] -= len(kept[-1])
            if len(index):
                self._unseen.discard(value)
        return np.sort(np.concatenate(kept))

    def require_all_seen(self, rounds: int) -> None:
        if self._unseen and rounds >= _PATIENCE:
            assert self.cue is not None
            raise ValueError(
                f"{self.cue.field} was never {min(self._unseen)} in {rounds} rounds: balance over "
                "values that occur, or disable balancing"
            )


def _make_play(stream: Stream, policy: Policy, cue: Cue | None) -> Callable[..., Any]:
    """Build the function that runs each environment for `limit` actions, at least one episode.

    It returns the time steps `[limit + 1, B]`, and the cue and the statistics `[B]` at the end of
    each environment's first episode.
    """
    limit = int(time_limit(stream.env, stream.params))

    def play(carry: Any, key: Key[Array, ""]) -> Any:
        key_stream, key_act = jax.random.split(key)
        state, first = stream.reset(key_stream)

        def advance(carry: Any, key: Key[Array, ""]) -> Any:
            memory, state, timestep, end = carry
            memory, action = policy.act(memory, state.env, timestep, key)
            state, timestep = stream.step(state, action)
            ended_B = end[1].done
            end = jax.tree.map(
                lambda old, new: jnp.where(ended_B, old, new), end, _at_end(state, cue)
            )
            return (memory, state, timestep, end), timestep

        keys = jax.random.split(key_act, limit)
        start = (carry, state, first, _at_end(state, cue))
        (*_, (cue_B, episode_B)), rest = jax.lax.scan(advance, start, keys)
        steps = jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), first, rest)
        return steps, cue_B, episode_B

    return play


def _at_end(state: Any, cue: Cue | None) -> tuple[Int[Array, " B"], EpisodeStats]:
    if cue is None:
        return jnp.zeros(state.episode.length.shape, jnp.int32), state.episode
    if not hasattr(state.env, cue.field):
        raise TypeError(
            f"the environment's state {type(state.env).__name__} has no {cue.field!r} to balance "
            "over: pass a cue that names one of its fields, or None"
        )
    return getattr(state.env, cue.field).astype(jnp.int32), state.episode


def _trajectories(
    steps: TimeStep, length_B: Int[np.ndarray, " B"], spaces: Spaces, kept: Int[np.ndarray, " F"]
) -> Trajectories:
    """Extract the first episode of each kept environment from time steps `[limit + 1, B]`."""
    longest = int(length_B[kept].max())

    def padded(values: Any, begin: int, space: Any) -> Any:
        """Return `[B, begin .. longest]`, with zeros after step `length`."""
        if isinstance(values, dict):
            return {name: padded(x, begin, space.spaces[name]) for name, x in values.items()}
        values_BT = np.moveaxis(values[begin : longest + 1], 0, 1)
        step_T = np.arange(begin, longest + 1)
        beyond_BT = step_T[None] > length_B[:, None]
        # Third-party environments do not always return exactly the dtypes of their spaces.
        dtype = getattr(space, "dtype", np.float32)
        if np.can_cast(values_BT.dtype, dtype, "same_kind"):
            values_BT = values_BT.astype(dtype)
        return np.where(
            beyond_BT.reshape(*beyond_BT.shape, *(1 for _ in values_BT.shape[2:])),
            np.zeros((), values_BT.dtype),
            values_BT,
        )

    last_B = np.arange(len(length_B))
    trajectories = Trajectories(
        observations=padded(steps.observation, 0, spaces.observation),
        actions=padded(steps.action, 1, spaces.action),
        rewards=padded(steps.reward, 1, None),
        length=length_B.astype(np.int32),
        terminated=steps.discount[length_B, last_B] == 0,
        spaces=spaces,
    )
    return select(trajectories, kept)
