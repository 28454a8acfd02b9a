"""Small environments with the interfaces of other suites, as the tests of adapters use them.

`test_suites.py` checks that the installed packages have the same interfaces.
"""

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
