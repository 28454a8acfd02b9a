"""V-MPO and PPO learn actions of which a continuous and a discrete part must both be right."""

import gymnax
import jax
import jax.numpy as jnp
import pytest
from flax import struct
from gymnax.environments import environment, spaces

from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import EnvConfig, OnlineConfig
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.online.vmpo import VMPOConfig
from gtrxl_jax.runs.config import EvaluationConfig
from gtrxl_jax.runs.loop import train

pytestmark = pytest.mark.slow


@struct.dataclass
class AimState(environment.EnvState):
    """State of `Aim`: the next target, in [-1, 1], and the cue, 0 or 1."""

    target: jax.Array
    cue: jax.Array


class Aim(environment.Environment):
    """Hit four targets in turn, each with the weapon that the cue named at the start.

    An observation has the target, and the cue as -1 or 1 at the first step, 0 afterwards. A hit is
    a continuous action within 0.2 of the target, with the discrete action that equals the cue. The
    return is the share of hits.

    Of the targets, a constant action hits at most 0.2, and a guess of the cue half. Without memory,
    the cue is known at one of four steps, so that an exact aim alone returns at most 0.625.
    """

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=4)

    def reset_env(self, key, params):
        key_target, key_cue = jax.random.split(key)
        state = AimState(
            time=jnp.zeros((), jnp.int32),
            target=jax.random.uniform(key_target, (), jnp.float32, -1, 1),
            cue=jax.random.bernoulli(key_cue).astype(jnp.int32),
        )
        return self.observe(state), state

    def step_env(self, key, state, action, params):
        close = jnp.abs(action["continuous"][0] - state.target) < 0.2
        hit = close & (action["discrete"] == state.cue)
        target = jax.random.uniform(key, (), jnp.float32, -1, 1)
        state = state.replace(time=state.time + 1, target=target)
        terminated = state.time == params.max_steps_in_episode
        return self.observe(state), state, hit.astype(jnp.float32) / 4, terminated, {}

    def is_truncated(self, state, params):
        return jnp.zeros((), bool)

    def observe(self, state):
        sign = (2 * state.cue - 1).astype(jnp.float32)
        return jnp.stack([state.target, jnp.where(state.time == 0, sign, 0)])

    def action_space(self, params=None):
        return spaces.Dict(
            {"continuous": spaces.Box(-1.0, 1.0, (1,)), "discrete": spaces.Discrete(2)}
        )

    def observation_space(self, params=None):
        return spaces.Box(-1.0, 1.0, (2,))


gymnax.register("Aim-v0", Aim)


@pytest.mark.parametrize("algorithm", [VMPOConfig(), PPOConfig()], ids=["vmpo", "ppo"])
def test_both_parts_of_hybrid_actions_are_learned(algorithm):
    config = OnlineConfig(
        env=EnvConfig(name="Aim-v0"),
        core=core_config("gru", width=32),
        algorithm=algorithm,
        evaluation=EvaluationConfig(episodes=256, interval=0),
        total_steps=150_000,
        unroll=16,
        devices=1,
    )
    score = train(OnlineTrainer(config)).result.evaluation["return"]
    print(f"{algorithm.name}: return {score.mean:.3f}")
    assert score.mean > 0.9
