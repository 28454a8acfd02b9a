"""A batch of environments as a stream of time steps."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment
from jaxtyping import Array, Bool, Float, Int, Key, UInt

from gtrxl_jax.custom import describe_part, require_returned, wrap_errors
from gtrxl_jax.envs.adapters import inner
from gtrxl_jax.envs.extensions import legal_actions, time_limit
from gtrxl_jax.ops.legal import has_choice, require_legal
from gtrxl_jax.ops.promotion import standard_dtype_promotion
from gtrxl_jax.parallel.placement import on_each_device
from gtrxl_jax.specs import action_spec, environment_action
from gtrxl_jax.specs.spaces import map_leaves
from gtrxl_jax.timestep import EpisodeStats, TimeStep
from gtrxl_jax.validation import require_count

PRNGKey = Key[Array, ""] | UInt[Array, "2"]


@struct.dataclass
class StreamState:
    """The state of a stream between steps; the leading axis of each leaf is the environment axis.

    Attributes:
      env: the states of the environments.
      key: one PRNG key for each environment, so that its trajectory depends neither on the number
        of environments nor on the device that holds it.
      episode: statistics of the running episodes, to be read after each step.
      cut: number of actions after which the running episode is truncated, see `Stream.stagger`;
        None without it.
    """

    env: Any
    key: Key[Array, " B"] | UInt[Array, "B 2"]
    episode: EpisodeStats
    cut: Int[Array, " B"] | None


_NEVER = np.iinfo(np.int32).max

OTHER_SCORES = ("discount", "ended", "length", "normalized", "return")
"""Entries of `info` that are not reported: the discount of gymnax, and names of other scores."""

_Seen = tuple[Any, Any]
"""The observation and the state of an environment."""


class _Outcome(NamedTuple):
    """The other outputs of an environment step; see `EpisodeStats` for `success` and `info`."""

    reward: Float[Array, "*B"]
    terminated: Bool[Array, "*B"]
    truncated: Bool[Array, "*B"]
    success: Float[Array, "*B"] | None
    info: dict[str, Float[Array, "*B"]]


class Shapes(NamedTuple):
    """The shapes and dtypes of what an environment returns.

    Attributes:
      reset: the observation and the state of a reset.
      step: the observation and the state of a step.
      info: the step's info.
      outcome: its reward, done, is_truncated and, if reported, success.
    """

    reset: tuple[Any, Any]
    step: tuple[Any, Any]
    info: Any
    outcome: dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
    """A batch of gymnax environments as an endless stream of time steps.

    An episode of n actions spans n + 1 steps: the step after a `last` one is the reset, which
    ignores its action and returns a `first` step. The stream thus contains final observations, it
    distinguishes termination (`last`, discount 0) from truncation (`last`, discount 1), and nothing
    is bootstrapped from the observation of another episode. A step that both terminates and reaches
    the time limit counts as terminated.

        stream = Stream(*make_env("TMazePassive-v0"), num_envs=64)
        state, timestep = stream.reset(key)
        state, timestep = stream.step(state, action)     # state.episode has returns and successes

    `reset` and `step` are pure: they can be jitted, scanned, and vmapped over keys. To vmap over
    environment parameters, construct the stream inside the mapped function, which costs nothing.

    Attributes:
      env: any environment with gymnax 1.x's interface.
      params: its parameters, shared by the batch.
      num_envs: B, the number of environments in the batch.
    """

    env: environment.Environment
    params: Any
    num_envs: int

    def __post_init__(self) -> None:
        if not isinstance(self.env, environment.Environment):
            is_class = isinstance(self.env, type)
            kind = f"the class {self.env.__name__}" if is_class else type(self.env).__name__
            raise TypeError(
                f"env must be a gymnax Environment, not {kind}: create it with make_env"
            )
        require_count("num_envs", self.num_envs)

    @functools.cached_property
    def action_space(self) -> Any:
        """The action space of one environment, of any kind in `specs.spaces`."""
        return _concrete(self.env.action_space, self.params)

    @functools.cached_property
    def observation_space(self) -> Any:
        """The observation space of one environment, see `action_space`."""
        return _concrete(self.env.observation_space, self.params)

    @functools.cached_property
    def reported_info(self) -> tuple[str, ...]:
        """The entries of the environment's `info` that are scores of episodes, sorted."""
        info = self.shapes.info.items()
        return tuple(sorted(name for name, leaf in info if _is_reported(name, leaf)))

    @functools.cached_property
    def shapes(self) -> "Shapes":
        """What a reset and a step return, not computed.

        Raises:
          CustomPartError: for an error in a custom environment, see `custom.wrap_errors`.
          ValueError: if the environment returns another number of values.
        """
        env = inner(self.env)

        def reset_and_step() -> Any:
            key = jax.random.key(0)
            reset = self.env.reset_env(key, self.params)
            require_returned("environment", env, "reset_env", reset, ("observation", "state"))
            space = self.action_space
            action = environment_action(space, action_spec(space).zeros())
            step = self.env.step_env(key, reset[1], action, self.params)
            values = "observation", "state", "reward", "done", "info"
            require_returned("environment", env, "step_env", step, values)
            observation, state, reward, done, info = step
            if not isinstance(info, Mapping):
                where = describe_part("environment", env, "step_env")
                raise ValueError(f"{where}: info is a {type(info).__name__}: return a dict")
            outcome = {"reward": reward, "done": done}
            outcome["is_truncated"] = self.env.is_truncated(state, self.params)
            if "success" in info:
                outcome["info['success']"] = info["success"]
            return tuple(reset), (observation, state), info, outcome

        with standard_dtype_promotion(), wrap_errors("environment", env):
            return Shapes(*jax.eval_shape(reset_and_step))

    def reset(self, key: PRNGKey) -> tuple[StreamState, TimeStep]:
        """Start every environment.

        Args:
          key: one PRNG key; environment i uses `fold_in(key, i)`.

        Returns:
          The state, and the batch's `first` time step, with leaves `[B, ...]`.
        """
        key_B = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(self.num_envs))
        key_B, key_env_B = jax.vmap(jax.random.split, out_axes=1)(key_B)
        return jax.vmap(self._first_one)(key_B, jax.vmap(self._reset_one)(key_env_B))

    def stagger(self, state: StreamState, key: PRNGKey) -> StreamState:
        """Truncate each running episode at a random step, at most the time limit.

        Episodes of equal lengths that start together also end together: every rollout is then from
        one part of all episodes. After this, it has steps from all parts.

        Args:
          state: the state returned by `reset`.
          key: a PRNG key; environment i uses `fold_in(key, i)`.
        """
        limit = jnp.asarray(time_limit(self.env, self.params), jnp.int32)
        limit = jnp.minimum(limit, _NEVER - 1)  # the bound below is exclusive
        cut_B = jax.vmap(
            lambda i: jax.random.randint(jax.random.fold_in(key, i), (), 1, limit + 1, jnp.int32)
        )(jnp.arange(self.num_envs))
        return dataclasses.replace(state, cut=cut_B)

    def step(self, state: StreamState, action: Any) -> tuple[StreamState, TimeStep]:
        """Advance every environment by one time step, resetting those whose episode has ended.

        Args:
          state: the state returned by `reset` or `step`.
          action: actions `[B]` in the layout of `ActionSpec`, which are clipped to their bounds.

        Returns:
          The next state, and the time step, with leaves `[B, ...]`.

        Raises:
          ValueError: if the actions have another structure or other shapes.
        """
        spec = action_spec(self.action_space)
        zeros = spec.zeros(*state.episode.done.shape)
        given, expected = (jax.tree.map(np.shape, x) for x in (action, zeros))
        if given != expected:
            raise ValueError(
                f"action has the shapes {given}, but must have {expected}: pass arrays with an "
                "action for each environment, in the layout of ActionSpec"
            )
        action = jax.tree.map(lambda x, zero: x.astype(zero.dtype), action, zeros)
        # Computed here, since JAX computes no constants within the program of each device.
        _ = self.observation_space
        return on_each_device(self._step, state, spec.clip(action))

    def _step(self, state: StreamState, action: Any) -> tuple[StreamState, TimeStep]:
        """Advance a part of the batch, the environments of one device."""
        # An environment either steps or is reset, so both can use the same key.
        key_B, key_env_B = jax.vmap(jax.random.split, out_axes=1)(state.key)
        seen, outcome = jax.vmap(self._advance_one)(key_env_B, state.env, action)
        seen = self._restart(state.episode.done, key_env_B, seen)
        return jax.vmap(self._next_one)(state.episode, state.cut, key_B, action, seen, outcome)

    def _restart(self, first_B: Bool[Array, " B"], key_B: Any, seen: _Seen) -> _Seen:
        """Replace the observations and states of the environments that begin an episode.

        A reset can cost more than a step, where it draws a maze and an image, but few episodes end
        at the same step. Resets are therefore computed for a quarter of the environments at once,
        and only until none is left; at most steps, for none.
        """
        number = len(first_B)

        def some(carry: tuple[Bool[Array, " B"], _Seen]) -> tuple[Bool[Array, " B"], _Seen]:
            waiting_B, seen = carry
            (index_G,) = jnp.nonzero(waiting_B, size=math.ceil(number / 4), fill_value=number)
            reset = jax.vmap(self._reset_one)(key_B[jnp.minimum(index_G, number - 1)])

            def put(old_B: Array, new_G: Array) -> Array:
                return old_B.at[index_G].set(new_G, mode="drop")

            return put(waiting_B, jnp.zeros_like(index_G, bool)), jax.tree.map(put, seen, reset)

        return jax.lax.while_loop(lambda carry: jnp.any(carry[0]), some, (first_B, seen))[1]

    def _reset_one(self, key_env: PRNGKey) -> _Seen:
        with standard_dtype_promotion():
            seen = self.env.reset_env(key_env, self.params)
        # A leaf that is weakly typed only here would make every caller compile twice.
        return jax.tree.map(_strongly_typed, tuple(seen))

    def _advance_one(self, key_env: PRNGKey, env_state: Any, action: Any) -> tuple[_Seen, _Outcome]:
        with standard_dtype_promotion():
            observation, env_state, reward, terminated, info = self.env.step_env(
                key_env, env_state, environment_action(self.action_space, action), self.params
            )
            truncated = self.env.is_truncated(env_state, self.params)
        outcome = _Outcome(
            reward=jnp.asarray(reward, jnp.float32),
            terminated=jnp.asarray(terminated, jnp.bool_),
            truncated=jnp.asarray(truncated, jnp.bool_),
            **self._reports({name: info[name] for name in self.reported_info}),
        )
        return jax.tree.map(_strongly_typed, (observation, env_state)), outcome

    def _first_one(self, key: PRNGKey, seen: _Seen) -> tuple[StreamState, TimeStep]:
        """Return the first step of an episode, as the step after a last one, with no outcome."""
        no, zero = jnp.zeros((), jnp.bool_), jnp.zeros((), jnp.float32)
        reports = self._reports(dict.fromkeys(self.reported_info, zero))
        before = EpisodeStats(~no, zero, jnp.zeros((), jnp.int32), **reports)
        action = action_spec(self.action_space).zeros()
        return self._next_one(before, None, key, action, seen, _Outcome(zero, no, no, **reports))

    def _reports(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return the fields `success` and `info` from the entries in `reported_info`."""
        values = {name: jnp.asarray(value, jnp.float32) for name, value in info.items()}
        return {"success": values.pop("success", None), "info": values}

    def _next_one(
        self,
        before: EpisodeStats,
        cut: Int[Array, ""] | None,
        key: PRNGKey,
        action: Any,
        seen: _Seen,
        outcome: _Outcome,
    ) -> tuple[StreamState, TimeStep]:
        """Return the step after one with the statistics `before`, of an episode cut at `cut`."""
        first, (observation, env_state) = before.done, seen
        truncated = outcome.truncated
        if cut is not None:
            truncated |= before.length + 1 >= cut
            cut = jax.lax.select(first, jnp.int32(_NEVER), cut)

        def unless_first(x: Array) -> Array:
            return jax.lax.select(first, jnp.zeros_like(x), x)

        terminated, truncated = map(unless_first, (outcome.terminated, truncated))
        last = terminated | truncated
        timestep = TimeStep(
            # In plain dicts, in whose leaves an order of the keys does not show.
            observation=map_leaves(lambda _, x, field: x, self.observation_space, observation),
            action=jax.tree.map(unless_first, action),
            reward=unless_first(outcome.reward),
            discount=1 - terminated.astype(jnp.float32),
            first=first,
            last=last,
            legal=self._legal(env_state, last),
        )
        episode = EpisodeStats(
            done=timestep.last,
            episode_return=unless_first(before.episode_return + outcome.reward),
            length=unless_first(before.length + 1),
            success=None if outcome.success is None else unless_first(outcome.success),
            info=jax.tree.map(unless_first, outcome.info),
        )
        return StreamState(env_state, key, episode, cut), timestep

    def _legal(self, env_state: Any, last: Bool[Array, ""]) -> Bool[Array, " A"] | None:
        with standard_dtype_promotion(), wrap_errors("environment", inner(self.env)):
            legal = legal_actions(self.env, env_state, self.params)
        if legal is None:
            return None
        sizes = action_spec(self.action_space).discrete
        require_legal(legal, sizes)
        # A final state may have no legal action, and the action there is ignored. Where it has
        # some, the value of a truncated episode must be that of a legal one.
        return legal | (last & ~has_choice(legal, sizes))


def _concrete(space: Callable[[Any], Any], params: Any) -> Any:
    """Return a space whose bounds are arrays rather than tracers, even in a traced program."""
    with standard_dtype_promotion(), jax.ensure_compile_time_eval():
        return space(params)


def _is_reported(name: str, leaf: Any) -> bool:
    """Return whether an entry of `info`, as a `ShapeDtypeStruct`, is a score."""
    if name == "success":
        return True
    if name in OTHER_SCORES or not isinstance(leaf, jax.ShapeDtypeStruct) or leaf.shape:
        return False
    return any(jnp.issubdtype(leaf.dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating))


def _strongly_typed(leaf: Any) -> Array:
    array = jnp.asarray(leaf)
    return jax.lax.convert_element_type(array, array.dtype) if array.weak_type else array
