"""What training does to the statistics of inputs and of returns, and what units do to training."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.envs.registry import register_env
from gtrxl_jax.nn.normalizer import normalizer_statistics, without_statistics
from gtrxl_jax.online.config import EnvConfig
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.online.vmpo import VMPOConfig
from tests.jobs import acting, small_job
from tests.online.test_trainer import Recording
from tests.recall import Recall
from tests.tiers import slow_except

ALGORITHMS = {"ppo": PPOConfig(epochs=2, minibatches=2), "vmpo": VMPOConfig(target_period=3)}


@functools.cache
def task_of(unit):
    register_env(
        f"Recall-{unit}-v0",
        functools.partial(Recall, "raw units", unit=unit, hidden=True),
    )
    return EnvConfig(f"Recall-{unit}-v0", num_envs=8)


def trainer_of(name, unit=1.0, **changes):
    job = small_job("lstm", env=task_of(unit), algorithm=ALGORITHMS[name], **changes)
    return Recording(job)


@functools.cache
def compiled(name, unit=1.0):
    """Return a trainer, and its jitted `init`, rollouts and `update`, which returns its rollout."""
    trainer = trainer_of(name, unit)

    @jax.jit
    def update(state):
        after, (metrics, _) = trainer.update(state)
        return after, metrics, trainer.experience

    return trainer, jax.jit(trainer.init), jax.jit(acting(trainer)), update


@pytest.mark.integration
@pytest.mark.parametrize("name", slow_except(ALGORITHMS, {"ppo"}))
def test_statistics_are_of_all_rollouts(name):
    trainer, init, _, update = compiled(name)
    state, seen = init(0), []
    for _ in range(4):
        state, _, experience = update(state)
        seen.append(jax.tree.map(lambda x: np.asarray(x)[:, :-1], experience.timesteps))
    found = normalizer_statistics(state.params)
    values = np.concatenate([x.observation.reshape(-1, 2) for x in seen])
    prefix = "encoder/observation/features/normalizer"
    assert int(found[f"{prefix}/count"]) == len(values) == 4 * 8 * 7
    np.testing.assert_allclose(found[f"{prefix}/mean"], values.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found[f"{prefix}/variance"], values.var(0), rtol=1e-4)
    rewards = np.concatenate([x.reward[~x.first] for x in seen])
    np.testing.assert_allclose(found["encoder/reward/mean"], rewards.mean(), rtol=1e-5)
    of_actor = normalizer_statistics(trainer.algorithm.acting_params(state.learner))
    jax.tree.map(np.testing.assert_array_equal, of_actor, found)


@pytest.mark.integration
@pytest.mark.slow
def test_without_normalization_statistics_stay():
    trainer = trainer_of("ppo", agent__normalize=False)
    state = jax.jit(trainer.init)(0)
    before = normalizer_statistics(state.params)
    after = jax.jit(lambda state: normalizer_statistics(trainer.update(state)[0].params))(state)
    jax.tree.map(np.testing.assert_array_equal, after, before)


def train(name, unit):
    """Return the weights after some updates, and the metrics of the last."""
    trainer, init, rollout, update = compiled(name, unit)
    state = init(0)
    # Before the first statistics, rewards are inputs as they are.
    _, experience = rollout(state, state.key)
    learner = jax.jit(trainer.algorithm.observe)(state.learner, experience.timesteps)
    state = state.replace(learner=learner)
    for _ in range(4):
        state, metrics, _ = update(state)
    return without_statistics(state.params), metrics


UNITS = [(name, 2.0**power) for name in ALGORITHMS for power in (-20, 20)]


@pytest.mark.integration
@pytest.mark.slow  # tests/nn/test_normalizer.py and tests/ops/test_popart.py are quick
@pytest.mark.parametrize(("name", "unit"), UNITS)
def test_units_of_rewards_do_not_matter(name, unit):
    """Powers of two change no rounding: training gives the same network to the last bit."""
    params, metrics = train(name, 1.0)
    same, others = train(name, unit)
    jax.tree.map(np.testing.assert_array_equal, same, params)
    assert others["popart/scale"] == unit * metrics["popart/scale"]
    assert jnp.isfinite(others["loss/value"])
