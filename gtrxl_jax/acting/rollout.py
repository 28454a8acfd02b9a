"""Roll out a policy in a batch of environments.

    state = begin(policy, params, stream, key)
    state, step = advance(policy, params, stream, state, key)               one time step
    state, played = rollout(policy, params, stream, state, key, num_steps)  many, by `jax.lax.scan`

All three are pure functions, used for online training, evaluation, recording and data collection.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int, Key

from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.envs.host.stream import HostStream
from gtrxl_jax.envs.multitask import MultiTaskStream
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.parallel.placement import gather_parameters, split_batch
from gtrxl_jax.timestep import EpisodeStats, TimeStep

AnyStream = Stream | MultiTaskStream | HostStream


@struct.dataclass
class ActingState:
    """The state of B environments and of the policy that acts in them.

    Attributes:
      policy: state of the policy.
      stream: state of the environments; its `episode` has statistics of the running episodes.
      timestep: `[B]`, the current time steps.
    """

    policy: Any
    stream: Any
    timestep: TimeStep


@struct.dataclass
class Step:
    """What a policy did at a time step.

    Attributes:
      timestep: `[B]`, the time step.
      action: `[B]`, the action as the policy chose it.
      extras: `[B]`, what else the policy computed, see `Policy.act`.
    """

    timestep: TimeStep
    action: Any
    extras: Any


@struct.dataclass
class Rollout:
    """T steps of B environments.

    Attributes:
      timesteps: `[B, T + 1]`, including the step after the last action, the bootstrap step.
      actions: `[B, T]`, as the policy chose them; `timesteps.action` are within bounds.
      extras: `[B, T]`, what else the policy computed, see `Policy.act`.
      episodes: `[B, T]`, statistics of the running episodes at steps 1 .. T.
      kept: `[B, T]`, what `keep` returned at steps 1 .. T.
    """

    timesteps: TimeStep
    actions: Any
    extras: Any
    episodes: EpisodeStats
    kept: Any = ()


def begin(policy: Policy, params: Any, stream: AnyStream, key: Key[Array, ""]) -> ActingState:
    """Start every environment, split over the devices, and the policy."""
    state, timestep = split_batch(stream.reset(key))
    return ActingState(policy.init(params, stream.num_envs), state, timestep)


def advance(
    policy: Policy, params: Any, stream: AnyStream, state: ActingState, key: Key[Array, ""]
) -> tuple[ActingState, Step]:
    """Act at the current time steps, and advance the environments to the next ones."""
    # Inside the loops; otherwise the compiler may keep the parameters sharded there and gather
    # activations instead.
    params = gather_parameters(params)
    seen = state.timestep
    if policy.is_privileged:
        seen = dataclasses.replace(seen, observation=state.stream.env)
    memory, action, extras = policy.act(params, state.policy, seen, key)
    with jax.named_scope("env"):
        environments, following = stream.step(state.stream, action)
    return ActingState(memory, environments, following), Step(state.timestep, action, extras)


def rollout(
    policy: Policy,
    params: Any,
    stream: AnyStream,
    state: ActingState,
    key: Key[Array, ""],
    num_steps: int,
    keep: Callable[[Any], Any] = lambda stream_state: (),
) -> tuple[ActingState, Rollout]:
    """Act for T steps.

    Args:
      policy: the policy.
      params: parameters of its network.
      stream: the environments.
      state: the state returned by `begin`, or by the previous rollout.
      key: a PRNG key.
      num_steps: T.
      keep: what to keep of the stream's state after each step, besides the episodes' statistics.
    """

    def step(state: ActingState, key: Key[Array, ""]) -> Any:
        state, step = advance(policy, params, stream, state, key)
        return state, (step, state.stream.episode, keep(state.stream))

    state, results = jax.lax.scan(step, state, jax.random.split(key, num_steps))
    steps, episodes, kept = jax.tree.map(lambda x_TB: x_TB.swapaxes(0, 1), results)
    timesteps = jax.tree.map(
        lambda x_BT, x_B: jnp.concatenate([x_BT, x_B[:, None]], axis=1),
        steps.timestep,
        state.timestep,
    )
    return state, Rollout(timesteps, steps.action, steps.extras, episodes, kept)


def first_episode(episodes: EpisodeStats) -> Int[Array, " B"]:
    """Return the step in `[0, T)` at which each environment's first episode ended.

    For an episode that has not ended it is T - 1.
    """
    num_steps = episodes.done.shape[1]
    ended = jnp.argmax(episodes.done, axis=1).astype(jnp.int32)
    return jnp.where(jnp.any(episodes.done, axis=1), ended, num_steps - 1)
