"""The stream of time steps that a batch of environments gives."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Float, Int, Key, UInt

from gtrxl_jax.envs.promotion import standard_dtype_promotion
from gtrxl_jax.timestep import TimeStep

PRNGKey = Key[Array, ""] | UInt[Array, "2"]


@struct.dataclass
class EpisodeStats:
    """The episode under way, up to and including the present step; the whole episode where `done`.

    Attributes:
      done: the present step is the episode's last. The other fields are results only there.
      episode_return: sum of the rewards so far, undiscounted.
      length: number of actions so far, so one less than the number of time steps.
      success: the environment's own word, `info["success"]`; None where it gives none.
    """

    done: Bool[Array, " B"]
    episode_return: Float[Array, " B"]
    length: Int[Array, " B"]
    success: Bool[Array, " B"] | None


@struct.dataclass
class StreamState:
    """All that the stream carries between steps; the leading axis of each leaf is the environments.

    Attributes:
      env: the environments' own states.
      key: one PRNG key for each environment, so that what happens in one depends neither on how
        many others there are nor on the device that holds it.
      episode: statistics of the running episodes, to be read after each step.
    """

    env: Any
    key: Key[Array, " B"] | UInt[Array, "B 2"]
    episode: EpisodeStats


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
    """A batch of gymnax environments as an endless stream of time steps.

    An episode of n actions is n + 1 steps: the step after a `last` one is the reset, which ignores
    its action and gives `first`. So final observations are seen, termination (`last`, discount 0)
    and time limits (`last`, discount 1) are told apart, and nothing is bootstrapped from the
    observation of another episode. A step that both terminates and reaches the time limit has
    terminated.

        stream = Stream(*make_env("TMazePassive-v0"), num_envs=64)
        state, timestep = stream.reset(key)
        state, timestep = stream.step(state, action)     # state.episode has returns and successes

    `reset` and `step` are pure: jit them, scan them, vmap them over keys. To vmap over parameters
    of the environment, build the stream inside the mapped function; that costs nothing.

    Attributes:
      env: any environment with gymnax 1.x's interface.
      params: its parameters, shared by the batch.
      num_envs: how many environments run side by side, B below.
    """

    env: environment.Environment
    params: Any
    num_envs: int

    def __post_init__(self) -> None:
        if not isinstance(self.env, environment.Environment):
            kind = type(self.env).__name__
            raise TypeError(f"env must be a gymnax Environment, not {kind}; make_env gives one")
        if isinstance(self.num_envs, bool) or not isinstance(self.num_envs, int):
            raise TypeError(f"num_envs must be a whole number, got {self.num_envs!r}")
        if self.num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {self.num_envs}")

    @property
    def action_space(self) -> spaces.Space:
        """The space of one environment's actions."""
        return _concrete(self.env.action_space, self.params)

    @property
    def observation_space(self) -> spaces.Space:
        """The space of one environment's observations."""
        return _concrete(self.env.observation_space, self.params)

    @functools.cached_property
    def reports_success(self) -> bool:
        """Whether the environment's `info` has `success`. Nothing is computed to find out."""

        def info() -> Any:
            key = jax.random.key(0)
            _, state = self.env.reset_env(key, self.params)
            return self.env.step_env(key, state, _zero_action(self.action_space), self.params)[4]

        with standard_dtype_promotion():
            return "success" in jax.eval_shape(info)

    def reset(self, key: PRNGKey) -> tuple[StreamState, TimeStep]:
        """Start every environment.

        Args:
          key: one PRNG key; environment i gets `fold_in(key, i)`.

        Returns:
          The state, and the batch's `first` time step, with leaves `[B, ...]`.
        """
        key_B = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(self.num_envs))
        return jax.vmap(lambda key: self._reset_one(*jax.random.split(key)))(key_B)

    def step(self, state: StreamState, action: Any) -> tuple[StreamState, TimeStep]:
        """Advance every environment by a time step; after an episode's end, that is a new start.

        Args:
          state: what `reset` or `step` returned.
          action: pytree `[B, ...]` with the structure of the action space (dicts for a `Dict`).

        Returns:
          The next state, and the time step, with leaves `[B, ...]`.
        """
        return jax.vmap(self._step_one)(state, _as_action(self.action_space, action))

    def _reset_one(self, key: PRNGKey, key_env: PRNGKey) -> tuple[StreamState, TimeStep]:
        with standard_dtype_promotion():
            observation, env_state = self.env.reset_env(key_env, self.params)
        # A leaf weakly typed here and not after a step would make every caller compile twice.
        observation, env_state = jax.tree.map(_strongly_typed, (observation, env_state))
        no, zero = jnp.zeros((), jnp.bool_), jnp.zeros((), jnp.float32)
        timestep = TimeStep(
            observation=observation,
            action=_zero_action(self.action_space),
            reward=zero,
            discount=jnp.ones((), jnp.float32),
            first=~no,
            last=no,
        )
        episode = EpisodeStats(
            done=no,
            episode_return=zero,
            length=jnp.zeros((), jnp.int32),
            success=no if self.reports_success else None,
        )
        return StreamState(env_state, key, episode), timestep

    def _step_one(self, state: StreamState, action: Any) -> tuple[StreamState, TimeStep]:
        key, key_env = jax.random.split(state.key)
        with standard_dtype_promotion():
            observation, env_state, reward, terminated, info = self.env.step_env(
                key_env, state.env, action, self.params
            )
            truncated = self.env.is_truncated(env_state, self.params)
        terminated, truncated = (jnp.asarray(x, jnp.bool_) for x in (terminated, truncated))
        reward = jnp.asarray(reward, jnp.float32)
        last = terminated | truncated
        observation, env_state = jax.tree.map(_strongly_typed, (observation, env_state))
        timestep = TimeStep(
            observation=observation,
            action=action,
            reward=reward,
            discount=1 - terminated.astype(jnp.float32),
            first=jnp.zeros_like(last),
            last=last,
        )
        success = state.episode.success
        episode = EpisodeStats(
            done=last,
            episode_return=state.episode.episode_return + reward,
            length=state.episode.length + 1,
            success=None if success is None else jnp.asarray(info["success"], jnp.bool_),
        )
        stepped = StreamState(env_state, key, episode), timestep
        # Only one of the two is kept, so the keys may serve both.
        restarted = self._reset_one(key, key_env)
        return jax.tree.map(
            lambda new, next_: jax.lax.select(state.episode.done, new, next_), restarted, stepped
        )


def _concrete(space: Callable[[Any], spaces.Space], params: Any) -> spaces.Space:
    """A space whose bounds are arrays, not tracers, in a traced program too."""
    with standard_dtype_promotion(), jax.ensure_compile_time_eval():
        return space(params)


def _strongly_typed(leaf: Any) -> Array:
    array = jnp.asarray(leaf)
    return jax.lax.convert_element_type(array, array.dtype) if array.weak_type else array


def _as_action(space: spaces.Space, action: Any) -> Any:
    """`action` as plain containers of arrays with the dtypes of `space`."""
    if isinstance(space, spaces.Dict):
        return {name: _as_action(child, action[name]) for name, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_as_action, space.spaces, action))
    return jnp.asarray(action).astype(space.dtype)


def _zero_action(space: spaces.Space) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _zero_action(child) for name, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_zero_action, space.spaces))
    return jnp.zeros(space.shape, space.dtype)
