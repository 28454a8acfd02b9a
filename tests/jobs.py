"""Configs small enough for tests, and environments with known rewards and episode lengths."""

import dataclasses
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import AgentConfig, EnvConfig, EvaluationConfig, OnlineConfig
from gtrxl_jax.online.vmpo import VMPOConfig
from gtrxl_jax.plugins import with_name


def small_job(core: str = "gtrxl", **changes: Any) -> OnlineConfig:
    """Return a small T-Maze config of V-MPO; `env__num_envs=4` changes a nested field."""
    of_transformers: dict[str, Any] = {"heads": 2, "memory_size": 5} if "trxl" in core else {}
    job = OnlineConfig(
        env=EnvConfig(params={"corridor_length": 2}, num_envs=8),
        core=core_config(core, layers=1, width=8, **of_transformers),
        agent=AgentConfig(encoder_width=8, head_width=8),
        algorithm=VMPOConfig(),
        evaluation=EvaluationConfig(episodes=16, interval=0),
        total_steps=600,
        unroll=7,
        updates_per_iteration=2,
    )
    return changed(job, **changes)


def changed(config: Any, **changes: Any) -> Any:
    """Return the config with changed fields; `env__num_envs` is the field `env.num_envs`.

    Another `model__name` switches to the config of that model.
    """
    for name, value in changes.items():
        name, _, inner = name.partition("__")
        if inner == "name" and hasattr(getattr(config, name), "named"):
            value = with_name(getattr(config, name), value)
        elif inner:
            value = changed(getattr(config, name), **{inner: value})
        config = dataclasses.replace(config, **{name: value})
    return config


@struct.dataclass
class ClockParams(environment.EnvParams):
    """Parameters of `Clock`; `pay` is the reward of each action."""

    max_steps_in_episode: int = 3
    pay: float = 1.0


@struct.dataclass
class ClockState(environment.EnvState):
    """State of `Clock`; `terminates` is whether the episode will terminate or be truncated."""

    terminates: jax.Array


class Clock(environment.Environment):
    """Rewards every action; at random, episodes terminate after 2 actions or are truncated after 3.

    Actions have a continuous and a discrete part, and have no effect.
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
    """A `Clock` whose reward is the first of its two continuous actions, unclipped."""

    def step_env(self, key, state, action, params):
        observation, state, _, terminated, info = super().step_env(key, state, action, params)
        return observation, state, action[0], terminated, info

    def action_space(self, params=None):
        return spaces.Box(-1.0, 1.0, (2,))


@struct.dataclass
class FaultyParams(ClockParams):
    """Parameters of `Faulty`: the steps from which on a part is wrong, and the episodes' length."""

    length: int = 3
    bad_speed: int = 100
    bad_reward: int = 100
    bad_time: int = 100


class Faulty(Echo):
    """Has parts that are wrong in some episodes, and whose time limit may be wrong.

    It has the observations "speed", NaN in those episodes that would terminate, and "time", 9.
    """

    @property
    def default_params(self):
        return FaultyParams()

    def reset_env(self, key, params):
        state = ClockState(time=jnp.zeros((), jnp.int32), terminates=jax.random.bernoulli(key))
        return self.see(state, params), state

    def step_env(self, key, state, action, params):
        state = state.replace(time=state.time + 1)
        reward = jnp.where(state.terminates & (state.time >= params.bad_reward), jnp.nan, 1.0)
        return self.see(state, params), state, reward, jnp.zeros((), bool), {}

    def see(self, state, params):
        bad = state.terminates & (state.time >= params.bad_speed)
        late = state.terminates & (state.time >= params.bad_time)
        return {
            "speed": jnp.where(bad, jnp.nan, jnp.ones(2)),
            "time": jnp.where(late, 9, state.time),
        }

    def is_truncated(self, state, params):
        return state.time >= params.length

    def observation_space(self, params=None):
        return spaces.Dict({"speed": spaces.Box(0.0, 1.0, (2,)), "time": spaces.Discrete(9)})


for name, environment_of_tests in {
    "Clock-v0": Clock,
    "Echo-v0": Echo,
    "Faulty-v0": Faulty,
}.items():
    if name not in gymnax.registered_envs:
        gymnax.register(name, environment_of_tests)


def acting(trainer: Any) -> Any:
    """Return the function (state, key) -> (state, experience) of a trainer's rollouts."""

    def act(state: Any, key: Any) -> Any:
        params = trainer.algorithm.acting_params(state.learner)
        actor, experience = trainer.act(params, state.actor, key)
        return state.replace(actor=actor), experience

    return act
