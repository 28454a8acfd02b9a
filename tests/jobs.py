"""Jobs small enough for a test, and an environment of which every number is known."""

import dataclasses
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

from gtrxl_jax.nn.cores.registry import CoreConfig
from gtrxl_jax.online.config import AgentConfig, EnvConfig, EvaluationConfig, OnlineConfig


def small_job(core: str = "gtrxl", **changes: Any) -> OnlineConfig:
    """A T-Maze job; `env__num_envs=4` changes a nested field."""
    job = OnlineConfig(
        env=EnvConfig(params={"corridor_length": 2}, num_envs=8),
        core=CoreConfig(name=core, layers=1, width=8, heads=2, memory_size=5),
        agent=AgentConfig(encoder_width=8, head_width=8),
        evaluation=EvaluationConfig(episodes=16, interval=0),
        total_steps=600,
        unroll=7,
        updates_per_iteration=2,
    )
    return changed(job, **changes)


def changed(config: Any, **changes: Any) -> Any:
    """The config with fields changed, `env__num_envs` being that of its field `env`."""
    for name, value in changes.items():
        name, _, inner = name.partition("__")
        if inner:
            value = changed(getattr(config, name), **{inner: value})
        config = dataclasses.replace(config, **{name: value})
    return config


@struct.dataclass
class ClockParams(environment.EnvParams):
    """`pay` is the reward of each action."""

    max_steps_in_episode: int = 3
    pay: float = 1.0


@struct.dataclass
class ClockState(environment.EnvState):
    """`terminates` says how the episode will end."""

    terminates: jax.Array


class Clock(environment.Environment):
    """Pays for each action; an episode terminates after 2 or is truncated after 3, by chance.

    Its actions have a continuous and a discrete part, and change nothing.
    """

    @property
    def default_params(self):
        return ClockParams()

    def reset_env(self, key, params):
        state = ClockState(time=jnp.zeros((), jnp.int32), terminates=jax.random.bernoulli(key))
        return self.observe(state), state

    def step_env(self, key, state, action, params):
        state = state.replace(time=state.time + 1)
        terminated = state.terminates & (state.time == 2)
        return self.observe(state), state, jnp.asarray(params.pay), terminated, {}

    def observe(self, state):
        return jnp.stack([state.time, state.terminates.astype(jnp.int32)]).astype(jnp.float32)

    def action_space(self, params=None):
        return spaces.Dict(
            {"continuous": spaces.Box(-1.0, 1.0, (2,)), "discrete": spaces.Discrete(3)}
        )

    def observation_space(self, params=None):
        return spaces.Box(0.0, 3.0, (2,))


class Echo(Clock):
    """A clock that pays what the first of its two continuous actions says, whatever that is."""

    def step_env(self, key, state, action, params):
        observation, state, _, terminated, info = super().step_env(key, state, action, params)
        return observation, state, action[0], terminated, info

    def action_space(self, params=None):
        return spaces.Box(-1.0, 1.0, (2,))


for name, environment_of_tests in {"Clock-v0": Clock, "Echo-v0": Echo}.items():
    if name not in gymnax.registered_envs:
        gymnax.register(name, environment_of_tests)
