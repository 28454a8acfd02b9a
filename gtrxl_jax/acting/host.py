"""Act in environments that step on the host, one time step after another.

    player = HostPlayer(policy, env)
    state = player.begin(params)
    arrival = envs.reset()
    state, step = player.step(params, state, arrival, key, 0)
    arrival = envs.step(step.action)

The policy acts in a compiled program, and the environments in NumPy. Training acts in
`online.actors`, whose programs also keep what is learned from.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jaxtyping import Array, Int, Key, UInt8

from gtrxl_jax.acting.policy import AgentPolicy, Policy, choose_actions
from gtrxl_jax.custom import describe_part, wrap_errors
from gtrxl_jax.envs.faults import raise_endless, raise_unfinished, raise_wrong_value
from gtrxl_jax.envs.host.stream import Arrival, HostBatch, HostEnv, HostStream
from gtrxl_jax.specs import action_spec, require_values
from gtrxl_jax.specs.spaces import bounds_of, describe, dtype_of, map_leaves, shape_of
from gtrxl_jax.specs.values import belongs, describe_value, require_dtype
from gtrxl_jax.timestep import EpisodeStats, TimeStep


class HostStep(NamedTuple):
    """What a policy did at a time step, of B environments, in NumPy.

    Attributes:
      timestep: the time step, as the policy saw it.
      action: what the environments get, in the layout of their space.
      extras: what else the policy computed, see `Policy.act`.
    """

    timestep: TimeStep
    action: Any
    extras: Any


def to_numpy(tree: Any) -> Any:
    """Return arrays in NumPy; for a few small ones several times as fast as `jax.device_get`."""
    return jax.tree.map(np.asarray, tree)


class HostPlayer:
    """Acts in environments on the host.

    Args:
      policy: the policy.
      env: the environment; how many there are is said by `begin`.
    """

    def __init__(self, policy: Policy, env: HostEnv):
        self._policy, self._space = policy, env.facts.action_space

        def step(params: Any, state: Any, arrival: Arrival, key: Key[Array, ""], count: Any) -> Any:
            memory, previous = state
            key = jax.random.fold_in(key, count)
            timestep = arrival.timestep(previous)
            chosen = choose_actions(policy, self._space, params, memory, timestep, key)
            acted = HostStep(timestep, chosen.environment_action, chosen.extras)
            return (chosen.state, chosen.clipped), acted

        self._step = jax.jit(step)

    def begin(self, params: Any, batch: int) -> Any:
        """Return the state before the first time step of a batch of environments."""
        return self._policy.init(params, batch), action_spec(self._space).zeros(batch)

    def step(
        self, params: Any, state: Any, arrival: Arrival, key: Key[Array, ""], count: int
    ) -> tuple[Any, HostStep]:
        """Choose actions; return the new state, and the step, in NumPy.

        `key` is that of all time steps, and `count` the number of those before this one.
        """
        state, step = self._step(params, state, arrival, key, count)
        return state, to_numpy(step)


@dataclasses.dataclass(frozen=True)
class FunctionPolicy(Policy):
    """A function of NumPy as a policy, in environments on the host only.

    Attributes:
      function: maps an observation of one environment, of arrays, to an action of its space.
    """

    function: Callable[[Any], Any]

    def init(self, params: Any, batch_size: int) -> Any:
        """Return (): a function has no state."""
        return ()

    def act(self, params: Any, state: Any, timestep: TimeStep, key: Key[Array, ""]) -> Any:
        """Raise TypeError: it cannot act in a compiled program."""
        raise TypeError("a function of NumPy acts in environments on the host only")


@dataclasses.dataclass(frozen=True)
class HostOraclePolicy(Policy):
    """The built-in solution of an environment on the host, which has access to its state.

    Attributes:
      env: an environment with `oracle_action()`, an action of its space; after the last step of an
        episode, any.

    Raises:
      ValueError: if the environment has no `oracle_action`.
    """

    env: HostEnv

    def __post_init__(self) -> None:
        if not self.env.facts.has_oracle:
            raise ValueError(
                f"{self.env.name} has no oracle_action: use another policy, such as random, a "
                "function or a run"
            )

    def init(self, params: Any, batch_size: int) -> Any:
        """Return (): an oracle has no state."""
        return ()

    def act(self, params: Any, state: Any, timestep: TimeStep, key: Key[Array, ""]) -> Any:
        """Raise TypeError: it cannot act in a compiled program."""
        raise TypeError("the oracle of an environment on the host acts there only")


class FunctionPlayer:
    """Acts with a function, or with the oracle of B environments, like a `HostPlayer`."""

    def __init__(self, policy: FunctionPolicy | HostOraclePolicy, env: HostEnv, envs: HostBatch):
        self._policy, self._envs, self._space = policy, envs, env.facts.action_space
        if isinstance(policy, HostOraclePolicy):
            self._who = f"oracle of {env.name}"
        else:
            self._who = describe_part("policy", policy.function)

    def begin(self, params: Any, batch: int) -> Any:
        """Return the state before the first time step."""
        return ()

    def step(
        self, params: Any, state: Any, arrival: Arrival, key: Key[Array, ""], count: int
    ) -> tuple[Any, HostStep]:
        """Call the function, or the oracle, for each environment.

        Raises:
          CustomPartError: if it raises an error.
          ValueError: if it returns what is no action of the space.
        """
        actions = [self._as_action(action) for action in self._act(arrival)]
        now: Any = arrival  # TimeStep declares arrays of JAX, not NumPy.
        # Functions do not read the previous action.
        timestep = TimeStep(now.observation, (), now.reward, now.discount, now.first, now.last)
        return state, HostStep(timestep, stack_trees(actions), ())

    def _act(self, arrival: Arrival) -> Sequence[Any]:
        """Return the action in each environment, whatever its type."""
        if isinstance(self._policy, HostOraclePolicy):
            return self._envs.oracle_actions()
        function, rows = self._policy.function, range(len(arrival.first))
        with wrap_errors("policy", function):
            return [function(row_of(arrival.observation, row)) for row in rows]

    def _as_action(self, action: Any) -> Any:
        """Return an action with the dtypes of its space."""
        try:
            return map_leaves(_part_of_action, self._space, action, field="action")
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self._who}: {error}") from None


def _part_of_action(leaf: Any, x: Any, field: str) -> Any:
    """Return a part of an action as an array of its space; raise if it does not belong to it."""
    x, shape = np.asarray(x), shape_of(leaf)
    require_dtype(leaf, x.dtype, field)
    if x.shape != shape:
        raise ValueError(
            f"{field} has shape {x.shape}, but {describe(leaf)} has {shape}: return one action, "
            "without a batch axis"
        )
    require_values(leaf, x, field)
    x = x.astype(dtype_of(leaf))
    low, high = bounds_of(leaf)
    inside = x.clip(low, high)
    if not (near := np.isclose(x, inside, atol=1e-6)).all():  # rounding is no error
        place = np.unravel_index(np.argmin(near), shape)
        raise ValueError(f"{describe_value(leaf, x[place], field, place)}: clip it")
    return inside.astype(x.dtype)


_cached_player = functools.lru_cache(maxsize=8)(HostPlayer)


def _player(policy: Policy, env: HostEnv, envs: HostBatch) -> HostPlayer | FunctionPlayer:
    """Return a player, whose program is compiled once for an agent's policy and an environment."""
    if isinstance(policy, FunctionPolicy | HostOraclePolicy):
        return FunctionPlayer(policy, env, envs)
    return (_cached_player if isinstance(policy, AgentPolicy) else HostPlayer)(policy, env)


def play_episodes(
    policy: Policy,
    params: Any,
    stream: HostStream,
    key: Key[Array, ""],
    episodes: int,
    most_envs: int = 32,
) -> Iterator[tuple[int, int, HostStep, Arrival]]:
    """Play E complete episodes, equally divided among environments that step together.

    Each environment plays its share one after another, so that short episodes are no more frequent
    than they are.

    Args:
      policy: the policy.
      params: parameters of its network.
      stream: the environments of one task.
      key: a PRNG key, of the actions and the environments.
      episodes: E.
      most_envs: the largest number of environments.

    Yields:
      For each action of each episode: the number of the episode; its row in the batch; the step,
      and what arrived after it, of the whole batch.

    Raises:
      FaultError: if an episode exceeds its time limit, has an observation outside its space, or a
        reward that is not finite.
    """
    number = min(episodes, most_envs)
    limit, name = stream.env.time_limit(), stream.env.name
    of_row, space = np.arange(number), stream.observation_space
    with HostStream(stream.envs, number).open(_seed(key)) as envs:
        player, arrival = _player(policy, stream.env, envs), envs.reset()
        state = player.begin(params, number)
        require_arrival(space, arrival, of_row, name)
        for count in itertools.count():
            state, step = player.step(params, state, arrival, key, count)
            following = envs.step(step.action)
            require_arrival(space, following, of_row, name)
            counts_B = (of_row < episodes) & ~arrival.last  # after a last step comes the reset
            for row in np.flatnonzero(counts_B).tolist():
                length = int(following.episode.length[row])
                if length >= limit and not following.last[row]:
                    _raise_unfinished(stream.env, length)
                yield int(of_row[row]), row, step, following
                if following.last[row]:
                    of_row[row] += number
            if (of_row >= episodes).all():
                return
            arrival = following


def record_steps(
    policy: Policy, params: Any, stream: HostStream, key: Key[Array, ""]
) -> tuple[list[HostStep], UInt8[np.ndarray, "S H W 3"] | None, EpisodeStats]:
    """Play one episode of T actions.

    Returns:
      Its T + 1 steps, without a batch axis; the frames of as many, None if the environment draws
      none; and the statistics of the episode.

    Raises:
      FaultError: see `play_episodes`.
    """
    limit, name = stream.env.time_limit(), stream.env.name
    steps, frames = [], []
    with HostStream(stream.envs, 1).open(_seed(key), render=True) as envs:
        player, arrival = _player(policy, stream.env, envs), envs.reset()
        state = player.begin(params, 1)
        for count in range(limit + 1):
            require_arrival(stream.observation_space, arrival, np.zeros(1, int), name)
            frames += [frame for frame in envs.render() if frame is not None]
            state, step = player.step(params, state, arrival, key, count)
            steps.append(HostStep(*(row_of(part, 0) for part in step)))
            if arrival.last[0]:
                return steps, np.stack(frames) if frames else None, row_of(arrival.episode, 0)
            arrival = envs.step(step.action)
    _raise_unfinished(stream.env, limit)


def _raise_unfinished(env: HostEnv, length: int) -> NoReturn:
    """Raise FaultError for an episode that exceeds the time limit, or for which none is known."""
    if env.facts.limit is None:
        raise_endless(env.name, length, env.limit_setting)
    raise_unfinished(env.name, length, env.facts.limit)


def _seed(key: Key[Array, ""]) -> list[int]:
    """Return the seed of environments from a PRNG key."""
    return np.asarray(jax.random.key_data(key)).reshape(-1).tolist()


def require_arrival(
    space: Any, arrival: Arrival, episode_B: Int[np.ndarray, " B"], name: str
) -> None:
    """Raise FaultError for a reward that is not finite, or an observation outside its space."""

    def require(part: str, x: np.ndarray, right: np.ndarray) -> None:
        if not right.all():
            row, *_ = place = tuple(np.argwhere(~right)[0])
            step = int(arrival.episode.length[row])
            raise_wrong_value(name, part, int(episode_B[row]), step, float(x[place]))

    require("reward", arrival.reward, np.isfinite(arrival.reward))
    map_leaves(
        lambda leaf, x, field: require(field, x, np.asarray(belongs(leaf, x))),
        space,
        arrival.observation,
    )


def stack_trees(trees: Sequence[Any]) -> Any:
    """Return the arrays of several trees, stacked along a new first axis."""
    return jax.tree.map(lambda *x: np.stack(x), *trees)


def row_of(tree: Any, row: int) -> Any:
    """Return a row of arrays `[B, ...]`."""
    return jax.tree.map(lambda x: np.asarray(x)[row], tree)
