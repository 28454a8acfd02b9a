"""Small environments with the interfaces of other suites, as the tests of adapters use them.

`test_suites.py` checks that the installed packages have the same interfaces.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces


class Space:
    """As in Craftax, which has copies of gymnax's classes."""


class Discrete(Space):
    def __init__(self, n):
        self.n = n


class Box(Space):
    def __init__(self, low, high, shape, dtype):
        self.low, self.high, self.shape, self.dtype = low, high, shape, dtype


class Dict(Space):
    def __init__(self, parts):
        self.spaces = parts


class Tuple(Dict):
    pass


@struct.dataclass
class WalkState:
    position: jax.Array
    timestep: jax.Array


@struct.dataclass
class WalkParams:
    max_timesteps: int = 100
    stride: float = 1.0


class Walk:
    """Walk to the left or right; the episode is done two steps from the start, or after the limit.

    The interface is that of gymnax before 1.0, in classes of its own as in Craftax.
    """

    def __init__(self, bound: int = 2):
        self.bound = bound

    @property
    def default_params(self):
        return WalkParams()

    def reset(self, key, params=None):
        raise AssertionError("this one is not used")

    step = reset

    def reset_env(self, key, params):
        state = WalkState(position=jnp.zeros(()), timestep=jnp.zeros((), jnp.int32))
        return self.get_obs(state), state

    def step_env(self, key, state, action, params):
        state = WalkState(
            position=state.position + (action - 1) * params.stride,
            timestep=state.timestep + 1,
        )
        done = self.is_terminal(state, params)
        info = {"discount": jnp.where(done, 0.0, 1.0)}
        return self.get_obs(state), state, jnp.abs(state.position), done, info

    def get_obs(self, state):
        return jnp.stack([state.position, state.timestep])

    def is_terminal(self, state, params):
        return (jnp.abs(state.position) >= self.bound) | (state.timestep >= params.max_timesteps)

    @property
    def num_actions(self):
        return 3

    def action_space(self, params=None):
        return Discrete(3)

    def observation_space(self, params):
        return Box(-100.0, 100.0, (2,), jnp.float32)

    def oracle_action(self, state, params):
        return 2


class GymnaxWalk(environment.Environment):
    """The same, as a subclass of gymnax's environment that was written for gymnax before 1.0."""

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=100)

    def reset_env(self, key, params):
        state = environment.EnvState(time=jnp.zeros((), jnp.int32))
        return self.get_obs(state), state

    def step_env(self, key, state, action, params):
        state = environment.EnvState(time=state.time + 1)
        return self.get_obs(state), state, 1.0, self.is_terminal(state, params), {}

    def get_obs(self, state):
        return state.time[None]

    def is_terminal(self, state, params):
        return state.time >= params.max_steps_in_episode

    def action_space(self, params=None):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(0, 100, (1,), jnp.int32)


@struct.dataclass
class State:
    """The fields of Brax's `State`."""

    pipeline_state: jax.Array
    obs: jax.Array
    reward: jax.Array
    done: jax.Array
    metrics: dict = struct.field(default_factory=dict)
    info: dict = struct.field(default_factory=dict)


class Slide:
    """Slide with a velocity that is the action; the episode is done at 0.9.

    As environments of Brax do, its steps change the metrics in place, and return numbers of Python.
    """

    def __init__(self, dt: float = 0.5, backend="generalized"):
        self.dt, self.backend = dt, backend

    def reset(self, rng):
        position = jax.random.uniform(rng, (1,), minval=-0.01, maxval=0.01)
        reward, done = jnp.zeros(2)
        return State(position, self.observation(position), reward, done, {"cost": jnp.zeros(())})

    def step(self, state, action):
        position = state.pipeline_state + action * self.dt
        state.metrics.update(cost=jnp.sum(jnp.square(action)))
        done = jnp.where(jnp.abs(position[0]) > 0.9, 1.0, 0.0)
        return state.replace(
            pipeline_state=position, obs=self.observation(position), reward=1.0, done=done
        )

    def observation(self, position):
        return jnp.concatenate([position, position**2])

    @property
    def observation_size(self):
        return 2

    @property
    def action_size(self):
        return 1


class Views(Slide):
    """The same with several observations."""

    def observation(self, position):
        return {"position": position, "image": jnp.zeros((4, 4, 3))}


class AutoResetWrapper:
    """As Brax's wrapper, it forwards attributes."""

    def __init__(self, env):
        self.env = env

    def reset(self, rng):
        return self.env.reset(rng)

    def step(self, state, action):
        return self.env.step(state, action)

    def __getattr__(self, name):
        return getattr(self.env, name)

    @property
    def action_size(self):
        return self.env.action_size


@struct.dataclass
class GridStep:
    """The fields of XLand-MiniGrid's `TimeStep`."""

    state: jax.Array
    step_type: jax.Array
    reward: jax.Array
    discount: jax.Array
    observation: jax.Array


@struct.dataclass
class GridParams:
    """As in XLand-MiniGrid, no leaves of a tree."""

    view_size: int = struct.field(pytree_node=False, default=3)
    max_steps: int | None = struct.field(pytree_node=False, default=4)
    ruleset: int = struct.field(pytree_node=True, default=5)


class Grid:
    """The state counts actions; action 1 terminates, and the limit truncates.

    The interface is XLand-MiniGrid's; the ruleset is the color of all cells.
    """

    def default_params(self, **kwargs):
        return GridParams(**kwargs)

    def num_actions(self, params):
        return 3

    def observation_shape(self, params):
        return params.view_size, params.view_size, 2

    def reset(self, params, key):
        state = jnp.stack([jnp.int32(0), jnp.asarray(params.ruleset, jnp.int32)])
        return GridStep(state, jnp.uint8(0), 0.0, 1.0, self.see(params, state))

    def step(self, params, timestep, action):
        state = timestep.state + jnp.array([1, 0])
        terminates, over = action == 1, state[0] == params.max_steps
        return GridStep(
            state=state,
            step_type=jnp.where(terminates | over, jnp.uint8(2), jnp.uint8(1)),
            reward=1.0 * terminates,
            discount=1.0 - terminates,
            observation=self.see(params, state),
        )

    def see(self, params, state):
        return jnp.broadcast_to(state.astype(jnp.uint8), self.observation_shape(params))

    def render(self, params, timestep):
        return jnp.full((2, 2, 3), timestep.state[0])


class Rulesets:
    """As a benchmark of XLand-MiniGrid."""

    def sample_ruleset(self, key):
        return jax.random.randint(key, (), 0, 12)


class ArraySpec:
    """The attributes of Jumanji's specs of arrays."""

    def __init__(self, shape=(), dtype=jnp.float32, **attributes):
        self.shape, self.dtype = shape, jnp.dtype(dtype)
        vars(self).update(attributes)


class Pot(NamedTuple):
    """The observation of `Pots`; `action_mask` has the shape that its actions have."""

    contents: jax.Array
    time: jax.Array
    action_mask: jax.Array


@struct.dataclass
class Step:
    """The fields of Jumanji's `TimeStep`."""

    step_type: jax.Array
    reward: jax.Array
    discount: jax.Array
    observation: Pot
    extras: dict


class Pots:
    """Put one of two things into one of three pots; each takes one, and the last one terminates.

    The interface is Jumanji's. With `joint`, the mask is of combinations of a thing and a pot,
    otherwise two agents choose a pot each, whose rewards are apart.
    """

    def __init__(self, joint: bool = True, time_limit: int = 9):
        self.joint, self.time_limit = joint, time_limit

    @property
    def action_spec(self):
        sizes = jnp.array([2, 3] if self.joint else [3, 3])
        return ArraySpec((2,), jnp.int32, num_values=sizes, minimum=0 * sizes, maximum=sizes - 1)

    @property
    def observation_spec(self):
        return {
            "contents": ArraySpec((3,), jnp.bool_, minimum=False, maximum=True),
            "time": ArraySpec((), jnp.int32, num_values=20, minimum=0, maximum=19),
            "action_mask": ArraySpec((2, 3), jnp.bool_, minimum=False, maximum=True),
        }

    def reset(self, key):
        state = (jnp.zeros(3, bool), 0)
        return state, Step(
            jnp.int8(0), self.pay(0.0), self.pay(1.0), self.see(state), self.tell(state)
        )

    def step(self, state, action):
        pots = action[1:] if self.joint else action
        contents, time = state[0].at[pots].set(True), state[1] + 1
        state, full = (contents, time), contents.all()
        step_type = jnp.where(full | (time >= self.time_limit), jnp.int8(2), jnp.int8(1))
        reward = self.pay(jnp.where(action[0] == 1, 1.0, 0.0))
        return state, Step(
            step_type, reward, self.pay(1.0 - full), self.see(state), self.tell(state)
        )

    def pay(self, x):
        return jnp.asarray(x) if self.joint else jnp.full(2, x)

    def see(self, state):
        return Pot(state[0], state[1], jnp.broadcast_to(~state[0], (2, 3)))

    def tell(self, state):
        return {"filled": state[0].sum(), "pots": state[0]}
