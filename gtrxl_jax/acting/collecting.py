"""Collecting whole episodes of a jitted environment, with any policy."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

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


class Policy(Protocol):
    """What chooses the actions of B environments, with a memory of its own."""

    def initial(self, batch: int) -> Any:
        """The memory before an episode's first step: a pytree of arrays.

        A network's parameters belong in it, too, so that they are no constants of the program.
        """

    def act(
        self, carry: Any, env_state: Any, timestep: TimeStep, key: Key[Array, ""]
    ) -> tuple[Any, Any]:
        """Choose on a time step.

        Args:
          carry: the memory, as `initial` or the last `act` gave it.
          env_state: the environments' own states, leaves `[B, ...]`.
          timestep: what an agent may see, leaves `[B, ...]`.
          key: one PRNG key.

        Returns:
          The memory, and actions `[B, ...]` in the layout of the environment's action space.
        """


@dataclasses.dataclass(frozen=True)
class OraclePolicy:
    """The environment's own solution, which sees its state.

    Raises:
      ValueError: the environment has no `oracle_action`.
    """

    env: environment.Environment
    params: Any

    def __post_init__(self) -> None:
        if not hasattr(self.env, "oracle_action"):
            raise ValueError(
                f"{type(self.env).__name__} has no oracle_action: collect with another policy"
            )

    def initial(self, batch: int) -> Any:
        """An oracle remembers nothing."""
        return ()

    def act(
        self, carry: Any, env_state: Any, timestep: TimeStep, key: Key[Array, ""]
    ) -> tuple[Any, Any]:
        """The action of a solution."""
        return carry, jax.vmap(lambda state: self.env.oracle_action(state, self.params))(env_state)


@dataclasses.dataclass(frozen=True)
class RandomPolicy:
    """Any action with equal probability."""

    env: environment.Environment
    params: Any

    def initial(self, batch: int) -> Any:
        """Nothing to remember."""
        return ()

    def act(
        self, carry: Any, env_state: Any, timestep: TimeStep, key: Key[Array, ""]
    ) -> tuple[Any, Any]:
        """A sample of the action space, which has to be bounded."""
        with standard_dtype_promotion():
            space = self.env.action_space(self.params)
            return carry, jax.vmap(space.sample)(jax.random.split(key, len(timestep.first)))


@dataclasses.dataclass(frozen=True)
class Cue:
    """What episodes are to be balanced over.

    Attributes:
      field: of the environment's state, a whole number, read at the end of an episode.
      values: those that it may take, each to be that of an equal share of the episodes.
    """

    field: str
    values: tuple[int, ...]


CUES = {"TMaze": Cue("hint", (-1, 1)), "AssociativeRetrieval": Cue("goal", (0, 1))}
"""By the first letters of an environment's name."""


def cue_of(env_name: str) -> Cue | None:
    """The cue of an environment; None where none is known."""
    return next((cue for prefix, cue in CUES.items() if env_name.startswith(prefix)), None)


Progress = Callable[[EpisodeStats], None]

# After so many rounds without one episode of a cue, there will be none.
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
    """Play whole episodes, each from its own reset.

    In each round every environment plays one episode, however long, so that there is no bias
    towards short ones: those that are not wanted are the last of the round, or, with a cue, the
    last of those with its value. The result is a function of the arguments up to `cue`.

    Args:
      env: any environment with gymnax 1.x's interface.
      params: its parameters.
      policy: who acts.
      episodes: E, how many.
      key: one PRNG key.
      num_envs: environments side by side.
      cue: gives each of its values an equal share of the episodes (the first values one more, if
        they do not divide), by leaving out those that a value has too many of.
      progress: called after each round with statistics of the episodes that it added.

    Returns:
      Trajectories on the host, zeros in the padding.

    Raises:
      ValueError: there are no episodes to collect; the environment goes on beyond its time limit;
        a cue never shows one of its values.
      TypeError: the environment's spaces or state are not of the kind that is needed.
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
            raise ValueError(f"{type(env).__name__} goes on beyond its time limit: correct that")
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
    """How many episodes are still to come, of each value of the cue."""

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
        """Which episodes of a round are kept, in their order."""
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
                "values that occur, or do not balance"
            )


def _make_play(stream: Stream, policy: Policy, cue: Cue | None) -> Callable[..., Any]:
    """The function that plays one episode in each environment, and what follows it in some.

    It returns the time steps `[limit + 1, B]`, and at the end of each first episode the cue and the
    statistics, `[B]`.
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
            "over: give a cue of its own, or none"
        )
    return getattr(state.env, cue.field).astype(jnp.int32), state.episode


def _trajectories(
    steps: TimeStep, length_B: Int[np.ndarray, " B"], spaces: Spaces, kept: Int[np.ndarray, " F"]
) -> Trajectories:
    """The kept ones of the first episodes among time steps `[limit + 1, B]`."""
    longest = int(length_B[kept].max())

    def padded(values: Any, begin: int, space: Any) -> Any:
        """`[B, begin .. longest]`, zeros after the step `length`."""
        if isinstance(values, dict):
            return {name: padded(x, begin, space.spaces[name]) for name, x in values.items()}
        values_BT = np.moveaxis(values[begin : longest + 1], 0, 1)
        step_T = np.arange(begin, longest + 1)
        beyond_BT = step_T[None] > length_B[:, None]
        # Environments of others are not always of their spaces' very type.
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
