"""Evaluate policies on fresh episodes, and record single episodes in detail."""

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, Shaped, UInt8

from gtrxl_jax.envs.multitask import MultiTaskStream
from gtrxl_jax.envs.registry import time_limit
from gtrxl_jax.envs.stream import EpisodeStats, Stream, StreamState
from gtrxl_jax.nn.agent import Agent
from gtrxl_jax.ops.distributions import POLICIES, ActionDistribution, choose
from gtrxl_jax.parallel.placement import split_batch
from gtrxl_jax.specs import environment_action
from gtrxl_jax.timestep import TimeStep
from gtrxl_jax.validation import check_choice

Evaluate = Callable[[Any, Key[Array, ""]], EpisodeStats]


@runtime_checkable
class Player(Protocol):
    """A network that acts in B environments in lockstep, from the start of their episodes."""

    def start(self, params: Any, batch_size: int) -> Any:
        """Return the acting state before the first time step."""

    def step(self, params: Any, state: Any, timestep: TimeStep) -> tuple[Any, ActionDistribution]:
        """Return the new acting state and the policy at a time step `[B]`."""

    def observe_action(self, params: Any, state: Any, action: Any) -> Any:
        """Return the acting state after the chosen action, in the environment's layout."""


@dataclasses.dataclass(frozen=True)
class AgentPlayer:
    """An `Agent` as a `Player`; it reads its previous action from the next time step."""

    agent: Agent

    def start(self, params: Any, batch_size: int) -> Any:
        """Return a cache over an empty memory."""
        apply: Any = self.agent.apply
        return apply({"params": params}, self.agent.initial_memory(batch_size), method="start")

    def step(self, params: Any, state: Any, timestep: TimeStep) -> tuple[Any, ActionDistribution]:
        """Return the new cache and the agent's policy at a time step `[B]`."""
        apply: Any = self.agent.apply
        state, output = apply({"params": params}, state, timestep, method="step")
        return state, output.policy

    def observe_action(self, params: Any, state: Any, action: Any) -> Any:
        """Return the state unchanged."""
        del params, action
        return state


def make_evaluate(
    player: Agent | Player, tasks: Stream | Sequence[Stream], episodes: int, policy: str
) -> Evaluate:
    """Build the function that plays `episodes` complete episodes of each task, all in parallel.

    Args:
      player: an agent or another player; the function takes the parameters of its network.
      tasks: the streams of N tasks, or of a single task; their `num_envs` is ignored.
      episodes: E, the number of episodes of each task.
      policy: "mode" takes the most likely action, "sample" samples as in training.

    Returns:
      A pure function of (params, key) that returns statistics `[N, E]`, with one episode for each
      of E environments of each task. `done` is false if the environment exceeded its time limit.

    Raises:
      ValueError: if the policy is unknown.
    """
    check_choice("policy", policy, POLICIES)
    tasks = [tasks] if isinstance(tasks, Stream) else tasks
    stream = MultiTaskStream(tuple(dataclasses.replace(task, num_envs=episodes) for task in tasks))
    limits = [time_limit(task.env, task.params) for task in tasks]
    limit = jnp.max(jnp.stack([jnp.asarray(limit, jnp.int32) for limit in limits])) + 1
    if isinstance(player, Agent):
        player = AgentPlayer(player)

    def evaluate(params: Any, key: Key[Array, ""]) -> EpisodeStats:
        key_stream, key_act = jax.random.split(key)
        state, timestep = split_batch(stream.reset(key_stream))
        playing = player.start(params, stream.num_envs)

        def going_on(carry: Any) -> Bool[Array, ""]:
            *_, results, step = carry
            return ~jnp.all(results.done) & (step < limit)

        def advance(carry: Any) -> Any:
            playing, state, timestep, results, step = carry
            playing, distribution = player.step(params, playing, timestep)
            action = choose(distribution, policy, jax.random.fold_in(key_act, step))
            action = environment_action(stream.action_space, action)
            playing = player.observe_action(params, playing, action)
            state, timestep = stream.step(state, action)
            # Only the first episode of each environment counts; later ones would bias the
            # statistics towards short episodes.
            results = jax.tree.map(
                lambda old, new: jnp.where(results.done, old, new), results, state.episode
            )
            return playing, state, timestep, results, step + 1

        start = (playing, state, timestep, state.episode, jnp.zeros((), jnp.int32))
        results = jax.lax.while_loop(going_on, advance, start)[3]
        return jax.tree.map(
            lambda x: jnp.stack([stream.of_task(k, x) for k in range(stream.num_tasks)]), results
        )

    return evaluate


def summarise(episodes: EpisodeStats) -> dict[str, Shaped[Array, "... E"]]:
    """Return the return, length and, if reported, success of episodes `[..., N, E]`, by name.

    `return` contains the episodes of all tasks, `[..., N * E]`; with several tasks, `return/task_0`
    contains those of the first task, `[..., E]`.
    """
    numbers = {"return": episodes.episode_return, "length": episodes.length}
    if episodes.success is not None:
        numbers["success"] = episodes.success
    summary = {}
    for name, value_NE in numbers.items():
        *lead, num_tasks, _ = value_NE.shape
        summary[name] = value_NE.reshape(*lead, -1)
        if num_tasks > 1:
            summary |= {f"{name}/task_{k}": value_NE[..., k, :] for k in range(num_tasks)}
    return summary


@dataclasses.dataclass(frozen=True)
class RecordedEpisode:
    """One episode of T actions and T + 1 time steps.

    Attributes:
      timesteps: the time steps, `[T + 1]`.
      states: the states of the environment, `[T + 1]`.
      attention: `[L, H, T + 1, M + 1]`, the attention weights of each layer and head on the M steps
        before each step, oldest first, and on the step itself; None for cores without attention.
      cue: the first step whose observation shows the cue; None if the environment has no
        `shows_cue` or the cue was never shown.
      success: whether the episode succeeded; None if the environment does not report success.
    """

    timesteps: TimeStep
    states: Any
    attention: Float[np.ndarray, "L H S W"] | None
    cue: int | None
    success: bool | None

    @property
    def decision(self) -> int:
        """The last step at which the agent acts, one before the final observation."""
        return len(self.timesteps.first) - 2

    def attention_to(self, step: int) -> Float[np.ndarray, "L H S"]:
        """Return the attention weight of every step on one step; 0 if it is outside the window.

        Raises:
          ValueError: if the core has no attention, or the step is not in the episode.
        """
        if self.attention is None:
            raise ValueError("the episode has no attention: the agent's core is not a transformer")
        *_, steps, window = self.attention.shape
        if not 0 <= step < steps:
            raise ValueError(f"step must be in 0 to {steps - 1}, a step of the episode; got {step}")
        ago_S = np.arange(steps) - step
        reached_S = (ago_S >= 0) & (ago_S < window)
        place_S = np.where(reached_S, window - 1 - ago_S, 0)
        return np.where(reached_S, self.attention[:, :, np.arange(steps), place_S], 0)


def record_episode(
    agent: Agent, stream: Stream, params: Any, key: Key[Array, ""], policy: str = "mode"
) -> RecordedEpisode:
    """Play one episode and record all of it, including the attention of the agent's core.

    Further episodes of the same agent and stream are not recompiled.

    Raises:
      ValueError: if the policy is unknown.
    """
    check_choice("policy", policy, POLICIES)
    limit = int(time_limit(stream.env, stream.params))
    states, timesteps = jax.device_get(_play(agent, stream, policy, limit, params, key))
    steps = int(np.argmax(timesteps.last)) + 1 if np.any(timesteps.last) else limit + 1
    states, timesteps = jax.tree.map(lambda x: x[:steps], (states, timesteps))
    success = states.episode.success
    shows_cue = getattr(stream.env, "shows_cue", lambda *_: np.zeros(1, bool))
    (shown,) = np.nonzero(np.asarray(shows_cue(states.env, stream.params)))
    return RecordedEpisode(
        timesteps=timesteps,
        states=states.env,
        attention=_attention(agent, params, timesteps),
        cue=int(shown[0]) if len(shown) else None,
        success=None if success is None else bool(success[-1]),
    )


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _play(
    agent: Agent, stream: Stream, policy: str, limit: int, params: Any, key: Key[Array, ""]
) -> tuple[StreamState, TimeStep]:
    """Return states and time steps `[limit + 1]` of one environment, which may span episodes."""
    stream = dataclasses.replace(stream, num_envs=1)
    variables = {"params": params}
    apply: Any = agent.apply

    def advance(carry: Any, key: Key[Array, ""]) -> Any:
        cache, state, timestep = carry
        cache, output = apply(variables, cache, timestep, method="step")
        action = choose(output.policy, policy, key)
        state, timestep = stream.step(state, environment_action(stream.action_space, action))
        return (cache, state, timestep), (state, timestep)

    key_stream, key_act = jax.random.split(key)
    state, timestep = stream.reset(key_stream)
    cache = apply(variables, agent.initial_memory(1), method="start")
    _, rest = jax.lax.scan(advance, (cache, state, timestep), jax.random.split(key_act, limit))
    both = jax.tree.map(
        lambda head, tail: jnp.concatenate([head[None], tail]), (state, timestep), rest
    )
    return jax.tree.map(lambda x: x[:, 0], both)


CHUNK = 128
"""Number of steps whose attention is recorded at once, which bounds memory for long episodes."""


def _attention(
    agent: Agent, params: Any, timesteps: TimeStep
) -> Float[np.ndarray, "L H S W"] | None:
    """Return the attention of a whole episode `[S]` by distance; None for cores without it."""
    steps = len(timesteps.first)
    memory, windows = agent.initial_memory(1), []
    for begin in range(0, steps, CHUNK):
        # Pad the last chunk with copies of the last step, so that all chunks share one program.
        # This does not change earlier steps, since attention is causal.
        index = np.minimum(np.arange(begin, begin + CHUNK), steps - 1)
        chunk = jax.tree.map(lambda x, i=index: x[None, i], timesteps)
        memory, recorded = _record(agent, params, memory, chunk)
        if not recorded:
            return None
        windows.append(_windows(recorded))
    return np.concatenate(windows, axis=2)[:, :, :steps]


@functools.partial(jax.jit, static_argnums=0)
def _record(agent: Agent, params: Any, memory: Any, timesteps: TimeStep) -> tuple[Any, Any]:
    """Return the memory after a segment, and the attention recorded over it, {} if none."""
    apply: Any = agent.apply
    (memory, _), recorded = apply({"params": params}, memory, timesteps, mutable="attention")
    return memory, recorded.get("attention", {}).get("core", {})


def render_episode(
    stream: Stream, episode: RecordedEpisode, max_frames: int = 500
) -> UInt8[np.ndarray, "T H W 3"] | None:
    """Render the first frames of an episode; None if the environment has no `render`."""
    if not hasattr(stream.env, "render"):
        return None
    steps = min(len(episode.timesteps.first), max_frames)
    states = [jax.tree.map(lambda x, t=t: x[t], episode.states) for t in range(steps)]
    return np.stack([stream.env.render(state, stream.params) for state in states])


def _windows(recorded: Any) -> Float[np.ndarray, "L H T W"]:
    """Stack the attention weights recorded by each layer, `[1, H, T, W]`, in order of layers."""

    def place(item: Any) -> list[Any]:
        # Compare numbers by value, so that blocks_10 comes after blocks_2.
        parts = re.split(r"(\d+)", jax.tree_util.keystr(item[0]))
        return [int(part) if part.isdigit() else part for part in parts]

    layers = sorted(jax.tree.leaves_with_path(recorded), key=place)
    return np.stack([np.asarray(weights[0]) for _, weights in layers])
