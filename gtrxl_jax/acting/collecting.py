"""Collect complete episodes of a jitted environment with any policy."""

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import environment
from jaxtyping import Array, Int, Key

from gtrxl_jax.acting.host import play_episodes, row_of, stack_trees
from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.acting.rollout import ActingState, advance, begin
from gtrxl_jax.data.spaces import Spaces, dataset_spaces
from gtrxl_jax.data.trajectories import Trajectories, check, concatenate
from gtrxl_jax.envs.adapters import inner
from gtrxl_jax.envs.extensions import time_limit
from gtrxl_jax.envs.faults import raise_unfinished
from gtrxl_jax.envs.host.stream import HostEnv, HostStream
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.machine import available_memory
from gtrxl_jax.specs import environment_action
from gtrxl_jax.specs.spaces import dtype_of, map_leaves
from gtrxl_jax.timestep import EpisodeStats
from gtrxl_jax.validation import require_count
from gtrxl_jax.worlds.base import Cue

Progress = Callable[[EpisodeStats], None]

PART_BYTES = 1 << 26
"""The largest size of the steps that a device holds at a time, and of a set of episodes."""
PART_STEPS = 1024
"""The largest number of these steps, after which a round may end."""

# A value of the cue that has not occurred after this many rounds is assumed to be impossible.
_PATIENCE = 20


def collect(*arguments: Any, **options: Any) -> Trajectories:
    """Play complete episodes and return all of them together. See `collect_rounds`."""
    return concatenate(list(collect_rounds(*arguments, **options)))


def collect_rounds(
    env: environment.Environment | HostEnv,
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

    The host holds one round of episodes, and the device a part of their steps at a time, whatever
    the time limit.

    Args:
      env: an environment with the interface of gymnax 1.x, or one on the host.
      params: parameters of the environment.
      policy: the policy that acts.
      episodes: E, the number of episodes.
      key: a PRNG key.
      num_envs: number of parallel environments.
      cue: a variable each of whose values gets an equal share of the episodes (the first values get
        one more if the number does not divide evenly); surplus episodes are dropped.
      progress: called after each round with statistics of the episodes that it added.
      policy_params: parameters of the policy's network.

    Yields:
      The trajectories, on the host: as many episodes at a time as `PART_BYTES` hold, at least one.

    Raises:
      ValueError: if `episodes` is below 1, the environment exceeds its time limit, the episodes of
        a round exceed the memory, or a value of the cue never occurs.
      TypeError: if the environment's spaces are not supported, or its state lacks the cue's field.
    """
    require_count("episodes", episodes)
    if isinstance(env, HostEnv):
        yield from _collect_on_host(env, policy, episodes, key, num_envs, progress, policy_params)
        return
    stream = Stream(env, params, num_envs)
    spaces = dataset_spaces(stream.observation_space, stream.action_space)
    play = _RoundPlayer(stream, policy, policy_params, cue)
    quota = _Quota(episodes, cue)
    round_ = number = 0
    while quota.left:
        played = play(jax.random.fold_in(key, round_))
        kept = quota.choose(np.array([one.cue for one in played]))
        statistics = [played[b].statistics for b in kept]
        played = [played[b] for b in kept]
        while played:
            trajectories = _next_set(played, spaces)
            check(trajectories, number)
            number += trajectories.num_episodes
            yield trajectories
        if progress is not None and statistics:
            progress(stack_trees(statistics))
        round_ += 1
        quota.require_all_seen(round_)


def _collect_on_host(
    env: HostEnv,
    policy: Policy,
    episodes: int,
    key: Key[Array, ""],
    num_envs: int,
    progress: Progress | None,
    policy_params: Any,
) -> Iterator[Trajectories]:
    """Play episodes in environments on the host; yield them as they end."""
    stream = HostStream((env,), num_envs)
    spaces = dataset_spaces(stream.observation_space, stream.action_space)
    running: dict[int, _Episode] = {}
    ended: list[_Episode] = []
    number = held = 0
    played = play_episodes(policy, policy_params, stream, key, episodes, num_envs)
    for episode, row, step, arrival in played:
        if arrival.episode.length[row] == 1:
            running[episode] = _Episode(row_of(step.timestep.observation, row))
        one = running[episode]
        # Copies, so that the others' steps are not held in memory.
        part = {
            "observation": arrival.observation,
            "action": step.action,
            "reward": arrival.reward,
        }
        one.parts.append(jax.tree.map(lambda x, b=row: np.asarray(x)[b : b + 1].copy(), part))
        held += _bytes(one.parts[-1])
        if not arrival.last[row]:
            continue
        one.statistics = row_of(arrival.episode, row)
        one.terminated = bool(arrival.discount[row] == 0)
        ended.append(running.pop(episode))
        number += 1
        if held < PART_BYTES and number < episodes:
            continue
        statistics = [each.statistics for each in ended]
        while ended:
            trajectories = _next_set(ended, spaces)
            check(trajectories, number - len(ended) - trajectories.num_episodes)
            yield trajectories
        held = sum(_bytes(each.parts) for each in running.values())
        if progress is not None:
            progress(stack_trees(statistics))


class _Quota:
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


class _Episode:
    """An episode of one environment, as far as it was played.

    Attributes:
      first: its first observation.
      parts: the actions, rewards and following observations of its steps, each `[n, ...]`.
      statistics: statistics of its last step; None while it goes on.
      terminated: whether it terminated.
      cue: the value of the cue at its end.
    """

    def __init__(self, first: Any):
        self.first = first
        self.parts: list[dict[str, Any]] = []
        self.statistics: EpisodeStats | None = None
        self.terminated = False
        self.cue = 0

    def add(self, steps: dict[str, Any], b: int) -> None:
        """Add the steps `[C, B]` of environment b up to the end of the episode."""
        done_C = steps["statistics"].done[:, b]
        count = int(np.argmax(done_C)) + 1 if done_C.any() else len(done_C)
        # Copies, so that the others' steps are not held in memory.
        self.parts.append(
            jax.tree.map(
                lambda x: x[:count, b].copy(),
                {name: steps[name] for name in ("observation", "action", "reward")},
            )
        )
        if done_C.any():
            last = jax.tree.map(operator.itemgetter((count - 1, b)), steps)
            self.statistics, self.cue = last["statistics"], int(last["cue"])
            self.terminated = bool(last["discount"] == 0)

    def join(self) -> dict[str, Any]:
        """Return all steps, including the first observation, and forget the parts."""
        parts, self.parts = self.parts, []
        first = jax.tree.map(lambda x: x[None], self.first)
        joined = jax.tree.map(lambda *x: np.concatenate(x), *parts)
        joined["observation"] = jax.tree.map(
            lambda *x: np.concatenate(x), first, joined["observation"]
        )
        return joined


class _RoundPlayer:
    """Plays rounds: an episode of any length in each environment, a part of the steps at a time.

    Args:
      stream: the environments.
      policy: the policy.
      policy_params: parameters of its network.
      cue: see `collect_rounds`.

    Raises:
      ValueError: if a single step of all environments exceeds the memory.
    """

    def __init__(self, stream: Stream, policy: Policy, policy_params: Any, cue: Cue | None):
        self._stream, self._params = stream, policy_params
        self._limit = int(time_limit(stream.env, stream.params))

        def start(policy_params: Any, key: Key[Array, ""]) -> Any:
            key_stream, key_act = jax.random.split(key)
            return begin(policy, policy_params, stream, key_stream), key_act

        def step(policy_params: Any, state: ActingState, key: Key[Array, ""]) -> Any:
            state, _ = advance(policy, policy_params, stream, state, key)
            timestep = state.timestep
            return state, {
                "observation": timestep.observation,
                "action": environment_action(stream.action_space, timestep.action),
                "reward": timestep.reward,
                "discount": timestep.discount,
                "statistics": state.stream.episode,
                "cue": _value(state.stream.env, cue),
            }

        state, key = jax.eval_shape(start, policy_params, jax.random.key(0))
        step_bytes = _bytes(jax.eval_shape(step, policy_params, state, key)[1])
        self._require_memory(0, step_bytes, 0)
        steps = max(1, min(self._limit, PART_STEPS, PART_BYTES // step_bytes))
        self._part_bytes = steps * step_bytes

        def play(
            policy_params: Any, state: ActingState, key: Key[Array, ""], number: Int[Array, ""]
        ) -> tuple[ActingState, dict[str, Any]]:
            numbers = number + jnp.arange(steps, dtype=jnp.int32)
            return jax.lax.scan(
                lambda state, n: step(policy_params, state, jax.random.fold_in(key, n)),
                state,
                numbers,
            )

        self._start, self._play, self._steps = jax.jit(start), jax.jit(play), steps

    def __call__(self, key: Key[Array, ""]) -> list[_Episode]:
        """Return the episode of each environment."""
        state, key = self._start(self._params, key)
        first = jax.device_get(state.timestep.observation)
        episodes = [
            _Episode(jax.tree.map(operator.itemgetter(b), first))
            for b in range(self._stream.num_envs)
        ]
        running, held = dict(enumerate(episodes)), 0
        for number in range(0, self._limit, self._steps):
            self._require_memory(number, self._part_bytes, held)
            state, steps = self._play(self._params, state, key, np.int32(number))
            steps = jax.device_get(steps)
            for b, episode in running.items():
                episode.add(steps, b)
                held += _bytes(episode.parts[-1])
            running = {b: one for b, one in running.items() if one.statistics is None}
            if not running:
                break
        lengths = [one.statistics.length for one in episodes if one.statistics]
        if running or max(lengths) > self._limit:
            raise_unfinished(type(inner(self._stream.env)).__name__, self._limit, self._limit)
        return episodes

    def _require_memory(self, number: int, part: int, held: int) -> None:
        """Raise ValueError if no memory is left for the next steps, and for joining an episode."""
        free = available_memory()
        if free is not None and free < 2 * part + held // self._stream.num_envs:
            raise ValueError(
                f"{self._stream.num_envs} episodes take {held / 1e9:.1f} GB after {number:,} of "
                f"at most {self._limit:,} steps, and {free / 1e9:.1f} GB of memory are free: "
                "reduce env.num_envs"
            )


def _bytes(tree: Any) -> int:
    return sum(math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(tree))


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


def _next_set(episodes: list[_Episode], spaces: Spaces) -> Trajectories:
    """Take as many of the first episodes as fit into `PART_BYTES`, at least one."""
    taken: list[Trajectories] = []
    largest = 0
    while episodes:
        largest = max(largest, sum(map(_bytes, episodes[0].parts)))
        if taken and (len(taken) + 1) * largest > PART_BYTES:
            break
        taken.append(_trajectories(episodes.pop(0), spaces))
    return concatenate(taken)


def _trajectories(episode: _Episode, spaces: Spaces) -> Trajectories:
    """Return an episode as trajectories with E = 1."""
    steps = episode.join()

    def cast(values: Any, dtype: Any) -> np.ndarray:
        # Third-party environments do not always return exactly the dtypes of their spaces.
        values_T = np.asarray(values)
        cast_T = values_T.astype(dtype)
        if np.any((cast_T != values_T) & np.isfinite(values_T)):
            cast_T = values_T  # the check of the trajectories says what does not belong
        return cast_T[None]

    def in_space(space: Any, values: Any) -> Any:
        return map_leaves(lambda leaf, x, _: cast(x, dtype_of(leaf)), space, values)

    return Trajectories(
        observations=in_space(spaces.observation, steps["observation"]),
        actions=in_space(spaces.action, steps["action"]),
        rewards=cast(steps["reward"], np.float32),
        length=np.array([len(steps["reward"])], np.int32),
        terminated=np.array([episode.terminated]),
        spaces=spaces,
    )
