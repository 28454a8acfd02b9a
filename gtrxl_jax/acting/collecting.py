"""Collect complete episodes of a jitted environment with any policy."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import environment
from jaxtyping import Array, Int, Key

from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.acting.rollout import begin, first_episode, rollout
from gtrxl_jax.data.spaces import Spaces, dataset_spaces
from gtrxl_jax.data.trajectories import Trajectories, check, concatenate, select
from gtrxl_jax.envs.faults import refuse_unfinished
from gtrxl_jax.envs.knowledge import Cue, time_limit
from gtrxl_jax.envs.stream import EpisodeStats, Stream
from gtrxl_jax.specs import environment_action
from gtrxl_jax.specs.spaces import dtype_of, map_leaves
from gtrxl_jax.timestep import TimeStep
from gtrxl_jax.validation import require_count

Progress = Callable[[EpisodeStats], None]

# A value of the cue that has not occurred after this many rounds is assumed to be impossible.
_PATIENCE = 20


def collect(*arguments: Any, **options: Any) -> Trajectories:
    """Play complete episodes and return all of them together. See `collect_rounds`."""
    return concatenate(list(collect_rounds(*arguments, **options)))


def collect_rounds(
    env: environment.Environment,
    params: Any,
    policy: Policy,
    episodes: int,
    key: Key[Array, ""],
    num_envs: int = 64,
    cue: Cue | None = None,
    progress: Progress | None = None,
    policy_params: Any = (),
) -> Iterator[Trajectories]:
    """Play complete episodes, each from its own reset, in rounds of which only one is in memory.

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
      policy_params: parameters of the policy's network.

    A round takes the memory of `num_envs` episodes of the longest possible length: for 16 episodes
    of 1,000 images of 64 x 64, 200 MB on the device.

    Yields:
      The trajectories of each round that adds any, on the host, padded with zeros.

    Raises:
      ValueError: if `episodes` is below 1, the environment exceeds its time limit, or a value of
        the cue never occurs.
      TypeError: if the environment's spaces are not supported, or its state lacks the cue's field.
    """
    require_count("episodes", episodes)
    stream = Stream(env, params, num_envs)
    spaces = dataset_spaces(stream.observation_space, stream.action_space)
    play = jax.jit(_make_play(stream, policy, cue))
    wanted = _Wanted(episodes, cue)
    round_ = 0
    while wanted.left:
        steps, cue_B, episode_B = jax.device_get(
            play(policy_params, jax.random.fold_in(key, round_))
        )
        if not episode_B.done.all():
            limit = steps.last.shape[1] - 1
            refuse_unfinished(type(env).__name__, limit, limit)
        kept = wanted.choose(cue_B)
        if len(kept):
            trajectories = _trajectories(steps, episode_B.length, spaces, kept)
            check(trajectories)
            yield trajectories
            if progress is not None:
                progress(jax.tree.map(lambda x, kept=kept: x[kept], episode_B))
        round_ += 1
        wanted.require_all_seen(round_)


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

    It returns the time steps `[B, limit + 1]`, and the cue and the statistics `[B]` at the end of
    each environment's first episode.
    """
    limit = int(time_limit(stream.env, stream.params))

    def play(policy_params: Any, key: Key[Array, ""]) -> Any:
        key_stream, key_act = jax.random.split(key)
        start = begin(policy, policy_params, stream, key_stream)
        _, played = rollout(
            policy,
            policy_params,
            stream,
            start,
            key_act,
            limit,
            record=lambda s: _value(s.env, cue),
        )
        end_B = first_episode(played.episodes)
        cue_B, episode_B = jax.tree.map(
            lambda x_BT: x_BT[jnp.arange(len(end_B)), end_B], (played.recorded, played.episodes)
        )
        return played.timesteps, cue_B, episode_B

    return play


def _value(env_state: Any, cue: Cue | None) -> Int[Array, " B"]:
    """Return the value of the cue, or 0 without one."""
    if cue is None:
        return jnp.zeros(len(jax.tree.leaves(env_state)[0]), jnp.int32)
    if not hasattr(env_state, cue.field):
        raise TypeError(
            f"the environment's state {type(env_state).__name__} has no {cue.field!r} to balance "
            "over: pass a cue that names one of its fields, or None"
        )
    return getattr(env_state, cue.field).astype(jnp.int32)


def _trajectories(
    steps: TimeStep, length_B: Int[np.ndarray, " B"], spaces: Spaces, kept: Int[np.ndarray, " F"]
) -> Trajectories:
    """Extract the first episode of each kept environment from time steps `[B, limit + 1]`."""
    longest = int(length_B[kept].max())

    def padded(values: Any, begin: int, dtype: Any) -> np.ndarray:
        """Return `[B, begin .. longest]`, with zeros after step `length`."""
        values_BT = np.asarray(values)[:, begin : longest + 1]
        step_T = np.arange(begin, longest + 1)
        beyond_BT = step_T[None] > length_B[:, None]
        beyond_BT = beyond_BT.reshape(*beyond_BT.shape, *(1 for _ in values_BT.shape[2:]))
        # Third-party environments do not always return exactly the dtypes of their spaces.
        cast_BT = values_BT.astype(dtype)
        if np.any((cast_BT != values_BT) & ~beyond_BT & np.isfinite(values_BT)):
            cast_BT = values_BT  # the check of the trajectories says what does not belong
        return np.where(beyond_BT, np.zeros((), cast_BT.dtype), cast_BT)

    def in_space(space: Any, values: Any, begin: int) -> Any:
        return map_leaves(lambda leaf, x, _: padded(x, begin, dtype_of(leaf)), space, values)

    actions = environment_action(spaces.action, steps.action)
    index_B = np.arange(len(length_B))
    trajectories = Trajectories(
        observations=in_space(spaces.observation, steps.observation, 0),
        actions=in_space(spaces.action, actions, 1),
        rewards=padded(steps.reward, 1, np.float32),
        length=length_B.astype(np.int32),
        terminated=steps.discount[index_B, length_B] == 0,
        spaces=spaces,
    )
    return select(trajectories, kept)
