"""PPO in the trainer: acting against learning, advantages of whole rollouts, sharded segments."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from gtrxl_jax.online.config import EnvConfig
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.online.trainer import OnlineTrainer
from tests.comparison import assert_close
from tests.jobs import acting, small_job
from tests.online.naive_vmpo import naive_returns

pytestmark = pytest.mark.integration

# Actions have a continuous and a discrete part; episodes are terminated or truncated.
JOB = small_job(
    "gru",
    env=EnvConfig("Clock-v0", tasks=({}, {"pay": 3.0}), num_envs=4),
    algorithm=PPOConfig(epochs=2, minibatches=2, clip_epsilon=0.01, normalize_advantages=True),
    optimizer__learning_rate=0.02,
    optimizer__horizon=4 * 48,
    unroll=4,
    segments=3,
)


def half(experience, k):
    return jax.tree.map(lambda x: x[k::2], experience)


@pytest.fixture(scope="module")
def played():
    """Return a trainer, its third rollout, the state before and after, and a learning step."""
    with jax.enable_x64(True):
        trainer = OnlineTrainer(JOB)
        prepare, step = jax.jit(trainer.algorithm.prepare), jax.jit(trainer.algorithm.step)
        rollout, state = jax.jit(acting(trainer)), jax.jit(trainer.init)(0)
        for number in range(2):
            state, experience = rollout(state, jax.random.key(number))
            learner, prepared = prepare(state.learner, experience)
            learner, _ = step(learner, half(prepared, number))
            state = dataclasses.replace(state, learner=learner)
        after, experience = rollout(state, jax.random.key(2))
        following = rollout(after, jax.random.key(3))[1]
        yield trainer, state, experience, following, prepare(state.learner, experience), step


def test_ratios_are_one_before_first_step(played):
    *_, (learner, prepared), step = played
    first, second = half(prepared, 0), half(prepared, 1)
    learner, metrics = step(learner, first)
    assert metrics["clip_fraction"] == 0
    assert abs(metrics["approximate_kl"]) < 1e-15
    for part in ("mean", "covariance", "categorical"):
        assert abs(metrics[f"kl/{part}"]) < 1e-15
    # The values too are those of acting, in units of the new statistics.
    mask = ~first.timesteps.last[:, :-1]
    error = (first.values_BT - first.returns_BT)[mask]
    cost = JOB.algorithm.value_cost
    np.testing.assert_allclose(metrics["loss/value"], cost * 0.5 * np.mean(error**2), rtol=1e-9)
    _, metrics = step(learner, second)
    # The learning rate decays to a tenth over 4 updates of 4 steps; this is the fourth of them.
    np.testing.assert_allclose(metrics["learning_rate"], 0.02 * (1 - 0.9 * 3 / 16))
    # So does the entropy bonus.
    cost = JOB.algorithm.entropy_cost * (1 - 0.9 * 3 / 16)
    np.testing.assert_allclose(metrics["loss/entropy"], -cost * metrics["entropy"], rtol=1e-9)
    assert metrics["clip_fraction"] > 0
    assert metrics["approximate_kl"] > 1e-9


def test_bootstrap_is_value_of_next_segment(played):
    _, _, experience, following, *_ = played
    first_BN = experience.extras.value[:, 0]
    followed = np.arange(12) % 3 < 2
    assert_close(experience.bootstrap.value[followed], first_BN[1:][followed[:-1]])
    assert_close(experience.bootstrap.value[2::3], following.extras.value[0::3, 0])


def test_advantages_equal_naive_reference(played):
    """Over whole rollouts of three segments, in each task's units, normalized."""
    _, state, experience, following, (learner, prepared), _ = played
    old, new = state.learner.popart, learner.popart
    task_E = np.asarray(experience.task)[::3]
    np.testing.assert_array_equal(task_E, np.arange(4) % 2)

    def whole(x_BS):
        """Join the segments and the bootstrap step of each environment."""
        x_EKS = np.asarray(x_BS).reshape(4, 3, 5)
        return np.concatenate([x_EKS[:, :, :-1].reshape(4, 12), x_EKS[:, -1, -1:]], axis=1)

    steps = experience.timesteps
    steps = steps.replace(**{n: whole(getattr(steps, n)) for n in ("reward", "discount", "last")})
    outputs_BSN = np.concatenate(
        [experience.extras.value, experience.bootstrap.value[:, None]], axis=1
    )
    rows, task_B = np.arange(12), np.asarray(experience.task)
    output_ES = whole(outputs_BSN[rows, :, task_B])
    value_ES = np.sqrt(old.variance_N)[task_E, None] * output_ES + old.mean_N[task_E, None]
    config = JOB.algorithm
    returns = naive_returns(steps, value_ES, config.gamma, config.gae_lambda)
    assert len(returns) == np.sum(~steps.last[:, :-1])

    mean_E, scale_E = (np.asarray(x)[task_E] for x in (new.mean_N, np.sqrt(new.variance_N)))
    values_ET, returns_ET, advantages_ET = (
        np.asarray(x_BT).reshape(4, 12)
        for x_BT in (
            prepared.values_BT,
            prepared.returns_BT,
            prepared.advantages_BT,
        )
    )
    raw = {(e, t): (g - value_ES[e, t]) / scale_E[e] for (e, t), g in returns.items()}
    mean, std = np.mean(list(raw.values())), np.std(list(raw.values()))
    for (e, t), g in returns.items():
        np.testing.assert_allclose(values_ET[e, t], (value_ES[e, t] - mean_E[e]) / scale_E[e])
        np.testing.assert_allclose(returns_ET[e, t], (g - mean_E[e]) / scale_E[e])
        np.testing.assert_allclose(advantages_ET[e, t], (raw[e, t] - mean) / std, rtol=1e-6)
    ends = steps.last[:, 1:]
    assert (ends & (steps.discount[:, 1:] == 0)).any()
    assert (ends & (steps.discount[:, 1:] == 1)).any()


def test_advantages_are_bounded_in_units_of_returns(played, x64):
    """By a standard deviation above theirs; without PopArt there is no unit, and no bound."""
    _, state, experience, _, (_, prepared), _ = played
    mask = ~np.asarray(experience.timesteps.last[:, :-1])

    def normalized(**changes):
        algorithm = dataclasses.replace(JOB.algorithm, **changes)
        trainer = OnlineTrainer(dataclasses.replace(JOB, algorithm=algorithm))
        return trainer.algorithm.prepare(state.learner, experience)[1].advantages_BT[mask]

    std = float(np.std((prepared.returns_BT - prepared.values_BT)[mask]))
    assert_close(normalized(min_advantage_std=4 * std), prepared.advantages_BT[mask] / 4)
    assert_close(np.std(normalized(min_advantage_std=4 * std, popart=False)), 1.0)


def test_values_of_older_parameters_are_kept_under_newer_statistics(played, x64):
    """As those that actors on the host are behind with."""
    trainer, state, experience, _, (learner, _), _ = played
    acted = state.learner.popart
    converted = trainer.algorithm.convert_values(learner, experience, acted)

    def in_units_of_rewards(value, statistics):
        return np.asarray(value) * np.asarray(statistics.scale_N) + np.asarray(statistics.mean_N)

    for one, other in (
        (experience.extras.value, converted.extras.value),
        (experience.bootstrap.value, converted.bootstrap.value),
    ):
        assert not np.allclose(other, one)
        assert_close(in_units_of_rewards(other, learner.popart), in_units_of_rewards(one, acted))
    # Without a lag, they stay exactly the same.
    same = trainer.algorithm.convert_values(state.learner, experience, acted)
    np.testing.assert_array_equal(same.extras.value, experience.extras.value)


@pytest.mark.slow  # tests/parallel has quick ones
def test_sharded_segments_match_single_device(played, x64):
    """Minibatches are drawn from the segments of all devices."""
    trainer, state, experience, *_ = played
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    sharded = jax.device_put(experience, NamedSharding(mesh, PartitionSpec("data")))
    whole = jax.device_put(state.learner, NamedSharding(mesh, PartitionSpec()))
    assert len(sharded.timesteps.reward.addressable_shards[0].data) == 3
    update, key = jax.jit(trainer.algorithm.update), jax.random.key(4)
    expected, expected_metrics = update(state.learner, experience, key)
    learner, metrics = update(whole, sharded, key)
    assert expected.step == state.learner.step + 4
    assert_close((learner.params, metrics), (expected.params, expected_metrics))
