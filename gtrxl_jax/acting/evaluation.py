"""Evaluate policies on fresh episodes, and record single episodes in detail."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key, Shaped, UInt8

from gtrxl_jax.acting.host import play_episodes, record_steps, row_of, stack_trees
from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.acting.rollout import ActingState, advance, begin, rollout
from gtrxl_jax.envs.extensions import renderer_of, time_limit
from gtrxl_jax.envs.faults import (
    NONE,
    PREFIX,
    UNFINISHED,
    VALUE,
    raise_unfinished,
    wrong_values,
)
from gtrxl_jax.envs.host.stream import HostStream
from gtrxl_jax.envs.multitask import MultiTaskStream
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.timestep import EpisodeStats, TimeStep

MAX_CHUNK_STEPS = 1000
"""The most steps in one call of the program that records states: episodes with a limit of 100,000
steps are often much shorter."""
MAX_FRAMES = 1000
"""The most frames of an episode that are rendered, which bounds memory for long episodes."""


@struct.dataclass
class EvaluatedEpisodes(EpisodeStats):
    """Statistics of complete episodes, and what is wrong with them.

    Attributes:
      wrong: for each part of the time steps, by the names of `faults.wrong_values`, the first step
        at which it has a wrong value, or `faults.NONE`.
      values: these values.
    """

    wrong: dict[str, Int[Array, "*B"]]
    values: dict[str, Float[Array, "*B"]]


Evaluate = Callable[[Any, Key[Array, ""]], EvaluatedEpisodes]


AnyTask = Stream | HostStream
"""The environments of a task, jitted or on the host."""


def make_evaluate(
    policy: Policy,
    tasks: AnyTask | Sequence[AnyTask],
    episodes: int,
    observation_space: Any = None,
) -> Evaluate:
    """Build the function that plays `episodes` complete episodes of each task, all in parallel.

    Args:
      policy: the policy; the function takes the parameters of its network.
      tasks: the streams of N tasks, or of a single task; their `num_envs` is ignored.
      episodes: E, the number of episodes of each task.
      observation_space: the space to which observations must belong; by default the space of the
        tasks.

    Returns:
      A function of (params, key) that returns statistics `[N, E]`, with one episode for each of E
      environments of each task. `done` is false if the environment exceeded its time limit. It is
      pure unless the environments are on the host; it then raises FaultError for what is wrong.
    """
    given: Any = [tasks] if isinstance(tasks, AnyTask) else tasks
    if isinstance(given[0], HostStream):
        return functools.partial(_evaluate_on_host, policy, given, episodes)
    stream = MultiTaskStream(tuple(dataclasses.replace(task, num_envs=episodes) for task in given))
    space = stream.observation_space if observation_space is None else observation_space
    limits = [time_limit(task.env, task.params) for task in given]
    limit = jnp.max(jnp.stack([jnp.asarray(limit, jnp.int32) for limit in limits]))

    def evaluate(params: Any, key: Key[Array, ""]) -> EvaluatedEpisodes:
        key_stream, key_act = jax.random.split(key)
        start = begin(policy, params, stream, key_stream)

        def is_running(carry: Any) -> Bool[Array, ""]:
            _, results, step = carry
            return ~jnp.all(results.done) & (step < limit)

        def one_step(carry: Any) -> Any:
            state, results, step = carry
            # Only the first episode of each environment counts; later ones would bias the
            # statistics towards short episodes. The policy does not start anew for them, since
            # sequence models are faster where all episodes begin at the same step.
            first_B = state.timestep.first & (step == 0)
            timestep = dataclasses.replace(state.timestep, first=first_B)
            state = dataclasses.replace(state, timestep=timestep)
            state, _ = advance(policy, params, stream, state, jax.random.fold_in(key_act, step))
            return state, _update_episodes(results, _current_episodes(state, space)), step + 1

        carry = (start, _current_episodes(start, space), jnp.zeros((), jnp.int32))
        results = jax.lax.while_loop(is_running, one_step, carry)[1]
        return jax.tree.map(
            lambda x: jnp.stack([stream.of_task(k, x) for k in range(stream.num_tasks)]), results
        )

    return evaluate


def _current_episodes(state: ActingState, space: Any) -> EvaluatedEpisodes:
    """Return the statistics of the running episodes, and what is wrong with their current step."""
    episode, wrong, values = state.stream.episode, {}, {}
    for name, (is_wrong, value) in wrong_values(state.timestep, space).items():
        wrong[name], values[name] = jnp.where(is_wrong, episode.length, NONE), value
    return EvaluatedEpisodes(**vars(episode), wrong=wrong, values=values)


def _update_episodes(before: EvaluatedEpisodes, now: EvaluatedEpisodes) -> EvaluatedEpisodes:
    """Return `now` with the first fault of each part; ended episodes are as they were `before`."""

    def keep_first(old: dict[str, Array], new: dict[str, Array]) -> dict[str, Array]:
        return {name: jnp.where(before.wrong[name] != NONE, old[name], new[name]) for name in new}

    now = dataclasses.replace(
        now,
        wrong=keep_first(before.wrong, now.wrong),
        values=keep_first(before.values, now.values),
    )
    return jax.tree.map(lambda old, new: jnp.where(before.done, old, new), before, now)


def _evaluate_on_host(
    policy: Policy, tasks: Sequence[HostStream], episodes: int, params: Any, key: Key[Array, ""]
) -> EvaluatedEpisodes:
    """Play episodes in environments on the host, see `make_evaluate`."""
    ended_N = []
    for number, task in enumerate(tasks):
        ended: dict[int, EpisodeStats] = {}
        of_task = jax.random.fold_in(key, number)
        for episode, row, _, arrival in play_episodes(policy, params, task, of_task, episodes):
            if arrival.last[row]:
                ended[episode] = row_of(arrival.episode, row)
        ended_N.append(stack_trees([ended[episode] for episode in range(episodes)]))
    episodes_NE = jax.tree.map(jnp.asarray, stack_trees(ended_N))
    return EvaluatedEpisodes(**vars(episodes_NE), wrong={}, values={})


def zero_episodes(tasks: Sequence[HostStream]) -> EvaluatedEpisodes:
    """Return the statistics `[N, 1]` of no episodes in environments on the host."""
    task = HostStream(tuple(env for task in tasks for env in task.envs), len(tasks))
    state, _ = task.reset(jax.random.key(0))
    episodes_N1 = jax.tree.map(lambda x_N: x_N[:, None], state.episode)
    return EvaluatedEpisodes(**vars(episodes_N1), wrong={}, values={})


def summarize(episodes: EpisodeStats) -> dict[str, Shaped[Array, "... _"]]:
    """Return the scores of episodes `[..., N, E]` by name, see `EpisodeStats.scores`.

    `return` contains the episodes of all tasks, `[..., N * E]`; with several tasks, `return/task_0`
    contains the episodes of the first task, `[..., E]`. The faults of evaluated episodes are
    included, with several tasks the faults of each; see `envs.faults`.
    """
    summary = {}
    for name, value_NE in episodes.scores.items():
        *lead, num_tasks, _ = value_NE.shape
        summary[name] = value_NE.reshape(*lead, -1)
        if num_tasks > 1:
            summary |= {f"{name}/task_{k}": value_NE[..., k, :] for k in range(num_tasks)}
    if isinstance(episodes, EvaluatedEpisodes):
        faults = {UNFINISHED: jnp.where(episodes.done, NONE, episodes.length)}
        faults |= {f"{PREFIX}{name}": step_NE for name, step_NE in episodes.wrong.items()}
        faults |= {f"{VALUE}{name}": value_NE for name, value_NE in episodes.values.items()}
        for name, x_NE in faults.items():
            for k in range(num_tasks):
                of_task = f"/task_{k}" if num_tasks > 1 else ""
                summary[f"{name}{of_task}"] = x_NE[..., k, :]
    return summary


@dataclasses.dataclass(frozen=True)
class RecordedEpisode:
    """One episode of T actions and T + 1 time steps.

    Attributes:
      timesteps: the time steps, `[T + 1]`.
      extras: what else the policy computed for each action, see `Policy.act`, `[T]`.
      states: the states of the environment, `[T + 1]`.
      attention: `[L, H, T + 1, M + 1]`, the attention weights of each layer and head on the M steps
        before each step, oldest first, and on the step itself; None for policies without attention.
      cue: the first step whose observation shows the cue; None if the environment has no
        `shows_cue` or the cue was never shown.
      success: from 0 to 1; None if the environment does not report success.
    """

    timesteps: TimeStep
    extras: Any
    states: Any
    attention: Float[np.ndarray, "L H S W"] | None
    cue: int | None
    success: float | None

    @property
    def decision(self) -> int:
        """The last step at which the agent acts, one before the final observation."""
        return len(self.timesteps.first) - 2

    def attention_to(self, step: int) -> Float[np.ndarray, "L H S"]:
        """Return the attention weight of every step on one step; 0 if it is outside the window.

        Raises:
          ValueError: if the policy has no attention, or the step is not in the episode.
        """
        if self.attention is None:
            raise ValueError("the episode has no attention: its policy is not a transformer")
        *_, steps, window = self.attention.shape
        if not 0 <= step < steps:
            raise ValueError(f"step must be in 0 to {steps - 1}, a step of the episode; got {step}")
        ago_S = np.arange(steps) - step
        reached_S = (ago_S >= 0) & (ago_S < window)
        place_S = np.where(reached_S, window - 1 - ago_S, 0)
        return np.where(reached_S, self.attention[:, :, np.arange(steps), place_S], 0)


def record_episode(
    policy: Policy, stream: AnyTask, params: Any, key: Key[Array, ""], with_attention: bool = True
) -> RecordedEpisode:
    """Play one episode and record all of it, including the policy's attention.

    Further episodes of the same policy and stream are not recompiled; the attention of sequence
    models may be.

    Raises:
      ValueError: if the episode exceeds its time limit.
    """
    if isinstance(stream, HostStream):
        return _record_on_host(policy, stream, params, key, with_attention)
    limit = int(time_limit(stream.env, stream.params))
    num_steps = min(limit, MAX_CHUNK_STEPS)
    key_stream, key_act = jax.random.split(key)
    state = _begin(policy, stream, params, key_stream)
    start = jax.device_get((_observe(state.stream), state.timestep))
    parts, extras = [jax.tree.map(lambda x: x[:, None], start)], []
    for key_part in jax.random.split(key_act, math.ceil(limit / num_steps)):
        state, part, computed = _play(policy, stream, num_steps, params, state, key_part)
        parts.append(jax.device_get(part))
        extras.append(jax.device_get(computed))
        if np.any(parts[-1][1].last):
            break
    (states, success), timesteps = jax.tree.map(_concatenate, *parts)
    if not timesteps.last[: limit + 1].any():
        raise_unfinished(type(stream.env).__name__, limit, limit)
    steps = int(np.argmax(timesteps.last)) + 1
    states, success, timesteps = jax.tree.map(lambda x: x[:steps], (states, success, timesteps))
    shows_cue = getattr(stream.env, "shows_cue", lambda *_: np.zeros(1, bool))
    (shown,) = np.nonzero(np.asarray(shows_cue(states, stream.params)))
    return RecordedEpisode(
        timesteps=timesteps,
        extras=jax.tree.map(lambda *parts: _concatenate(*parts)[: steps - 1], *extras),
        states=states,
        attention=policy.attention(params, timesteps) if with_attention else None,
        cue=int(shown[0]) if len(shown) else None,
        success=None if success is None else float(success[-1]),
    )


def _record_on_host(
    policy: Policy, stream: HostStream, params: Any, key: Key[Array, ""], with_attention: bool
) -> RecordedEpisode:
    """Play and record an episode on the host, whose states are its frames."""
    steps, frames, episode = record_steps(policy, params, stream, key)
    timesteps = stack_trees([step.timestep for step in steps])
    return RecordedEpisode(
        timesteps=timesteps,
        extras=stack_trees([step.extras for step in steps[:-1]]),
        states=frames,
        attention=policy.attention(params, timesteps) if with_attention else None,
        cue=None,
        success=None if episode.success is None else float(episode.success),
    )


def record_episodes(
    policy: Policy,
    stream: AnyTask,
    params: Any,
    seed: int,
    episodes: int,
    with_attention: bool = True,
    first: int = 0,
) -> list[RecordedEpisode]:
    """Play several episodes, one after another; see `record_episode`.

    Episodes have the numbers from `first` on, and each is the same whatever is played before it.
    """
    key = jax.random.key(seed)
    return [
        record_episode(policy, stream, params, jax.random.fold_in(key, number), with_attention)
        for number in range(first, first + episodes)
    ]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _begin(policy: Policy, stream: Stream, params: Any, key: Key[Array, ""]) -> ActingState:
    """Start a single environment and the policy."""
    return begin(policy, params, dataclasses.replace(stream, num_envs=1), key)


def _observe(state: Any) -> Any:
    """Return the environments' states, and whether they report a success."""
    return state.env, state.episode.success


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _play(
    policy: Policy,
    stream: Stream,
    num_steps: int,
    params: Any,
    state: ActingState,
    key: Key[Array, ""],
) -> tuple[ActingState, tuple[Any, TimeStep], Any]:
    """Play on; the steps may span episodes.

    Returns:
      The state; what `_observe` returns, with the next time steps, `[1, T]`; and the extras of the
      actions, `[1, T]`.
    """
    stream = dataclasses.replace(stream, num_envs=1)
    state, played = rollout(policy, params, stream, state, key, num_steps, keep=_observe)
    following = jax.tree.map(lambda x: x[:, 1:], played.timesteps)
    return state, (played.kept, following), played.extras


def _concatenate(*parts: Any) -> Any:
    """Return parts `[1, ...]` of the steps of an episode in one array."""
    # Keys, which states may have, cannot be arrays of NumPy.
    is_key = jax.dtypes.issubdtype(parts[0].dtype, jax.dtypes.prng_key)
    return (jnp if is_key else np).concatenate([part[0] for part in parts])


def render_episode(
    stream: AnyTask, episode: RecordedEpisode, max_frames: int = MAX_FRAMES
) -> UInt8[np.ndarray, "T H W 3"] | None:
    """Render the first frames of an episode; None if the environment cannot be drawn."""
    if (renderer := renderer_of(stream.env)) is None:
        return None
    steps = min(len(episode.timesteps.first), max_frames)
    states = [jax.tree.map(lambda x, t=t: x[t], episode.states) for t in range(steps)]
    return np.stack([renderer.draw(state, stream.params) for state in states])
