"""Legal actions in an environment: acting, learning, and the error where there is none."""

import dataclasses

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import environment, spaces

from gtrxl_jax.acting.rollout import begin, rollout
from gtrxl_jax.acting.scripted import RandomPolicy
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.online.config import EnvConfig
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.online.r2d2 import R2D2Config
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.online.vmpo import VMPOConfig
from gtrxl_jax.runs.divergence import Divergence
from tests.jobs import acting, small_job


@struct.dataclass
class FerryState(environment.EnvState):
    """State of `Ferry`; `gone` marks the banks that have been visited."""

    gone: jax.Array


class Ferry(environment.Environment):
    """Visit four banks once each, in any order; an episode ends when none is left."""

    size = 4

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=10)

    def reset_env(self, key, params):
        state = FerryState(time=jnp.zeros((), jnp.int32), gone=jnp.zeros(4, bool))
        return jnp.ones(1, jnp.float32), state

    def step_env(self, key, state, action, params):
        reward = jnp.where(state.gone[action], -1.0, 1.0)
        state = state.replace(time=state.time + 1, gone=state.gone.at[action].set(True))
        return jnp.ones(1, jnp.float32), state, reward, jnp.all(state.gone), {}

    def is_truncated(self, state, params):
        return jnp.zeros((), bool)

    def legal_actions(self, state, params):
        return ~state.gone[: self.size]

    def action_space(self, params=None):
        return spaces.Discrete(4)

    def observation_space(self, params=None):
        return spaces.Box(0.0, 1.0, (1,), jnp.float32)


class WrongFerry(Ferry):
    """A ferry with a mask of the wrong size."""

    size = 3


gymnax.register("Ferry-v0", Ferry)
gymnax.register("WrongFerry-v0", WrongFerry)


def chosen(timesteps, actions):
    """Return whether each action was legal at its step."""
    return np.take_along_axis(np.asarray(timesteps.legal), np.asarray(actions)[..., None], -1)


@pytest.mark.integration
@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(VMPOConfig(), id="vmpo", marks=pytest.mark.slow),
        pytest.param(PPOConfig(epochs=1), id="ppo", marks=pytest.mark.slow),
    ],
)
def test_mask_of_acting_is_that_of_learning(algorithm):
    env = EnvConfig(name="Ferry-v0", num_envs=8)
    trainer = OnlineTrainer(small_job("lstm", env=env, algorithm=algorithm, devices=1))
    key = jax.random.key(0)
    state, experience = jax.jit(acting(trainer))(jax.jit(trainer.init)(0), key)
    steps = jax.tree.map(lambda x: x[:, :-1], experience.timesteps)
    assert chosen(steps, experience.actions).all()
    assert not np.asarray(steps.legal)[~np.asarray(steps.last)].all()
    # Every action visits a new bank, so an episode takes four.
    np.testing.assert_array_equal(experience.timesteps.last[:, 4], True)

    learn = jax.jit(trainer.learn)
    _, (metrics, _) = learn(state.learner, experience, key)
    # The policies would differ by their masks, were these not the same.
    assert abs(float(metrics["kl/categorical"])) < 1e-6
    assert all(metrics[name] for name in metrics if name.startswith("finite/"))

    legal = experience.timesteps.legal.at[1, 2].set(False)
    timesteps = dataclasses.replace(experience.timesteps, legal=legal)
    broken = dataclasses.replace(experience, timesteps=timesteps)
    _, (metrics, _) = learn(state.learner, broken, key)
    assert not metrics["finite/legal actions"]


@pytest.mark.integration
def test_epsilon_greedy_policy_respects_masks():
    env = EnvConfig(name="Ferry-v0", num_envs=8)
    config = R2D2Config(epsilon=1.0, epsilon_exponent=0.0)
    trainer = OnlineTrainer(small_job("lstm", env=env, algorithm=config, devices=1))
    _, experience = jax.jit(acting(trainer))(jax.jit(trainer.init)(0), jax.random.key(0))
    steps = jax.tree.map(lambda x: x[:, :-1], experience.timesteps)
    assert chosen(steps, experience.actions).all()
    assert len(np.unique(experience.actions)) == 4


def test_random_policy_and_stream_respect_masks():
    stream = Stream(*gymnax.make("Ferry-v0"), num_envs=4)
    policy = RandomPolicy(stream.action_space)
    key = jax.random.key(0)
    _, played = rollout(policy, (), stream, begin(policy, (), stream, key), key, 11)
    steps = jax.tree.map(lambda x: x[:, :-1], played.timesteps)
    assert chosen(steps, played.actions).all()
    last = np.asarray(played.timesteps.last)
    np.testing.assert_array_equal(np.flatnonzero(last.all(0)), [4, 9])
    # No bank is left in a final state, whose action is ignored.
    assert np.asarray(played.timesteps.legal)[last].all()


def test_truncated_episode_keeps_mask_of_its_final_state():
    """Its value is that of a legal action."""
    stream = Stream(*gymnax.make("Ferry-v0"), num_envs=1)
    state, _ = stream.reset(jax.random.key(0))
    state = dataclasses.replace(state, cut=jnp.ones(1, jnp.int32))
    _, timestep = stream.step(state, jnp.array([2]))
    assert timestep.last
    assert timestep.discount == 1
    np.testing.assert_array_equal(timestep.legal, [[True, True, False, True]])


def test_unfit_mask_stops_before_compilation():
    stream = Stream(*gymnax.make("WrongFerry-v0"), num_envs=4)
    with pytest.raises(ValueError, match=r"legal_actions has .* return bool \[4\]"):
        jax.eval_shape(stream.reset, jax.random.key(0))


def test_message_of_missing_choice():
    assert str(Divergence(3, "legal actions", 1024)) == (
        "seed 3 stopped: legal_actions allows none in a state at step 1,024, in which the episode "
        "continues"
    )


def test_time_steps_without_masks_are_unchanged():
    stream = Stream(*gymnax.make("CartPole-v1"), num_envs=2)
    timestep = jax.eval_shape(stream.reset, jax.random.key(0))[1]
    assert timestep.legal is None
    assert len(jax.tree.leaves(timestep)) == 6
