"""The trainer in float64, against naive code, and vmapped over seeds and hyperparameters."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.nn.normalizer import copy_normalizers, without_statistics
from gtrxl_jax.online.config import EnvConfig
from gtrxl_jax.online.trainer import OnlineTrainer, sample_hyperparameters
from gtrxl_jax.validation import MOST_STEPS
from tests.jobs import small_job
from tests.online.naive_vmpo import NaiveAdam, naive_gradients, segment
from tests.tiers import slow_except

pytestmark = pytest.mark.integration

# Episodes are terminated or truncated, whereas those of the T-Maze only terminate. With this tau
# the pole falls soon.
CARTPOLE = EnvConfig("CartPole-v1", {"max_steps_in_episode": 8, "tau": 0.04}, num_envs=8)
JOBS = {
    # The first job has the paper's settings, the second the default ones.
    "one task": small_job(
        "lstm",
        env=CARTPOLE,
        algorithm__target_period=2,
        algorithm__gae_lambda=1.0,
        algorithm__multipliers="adam",
        algorithm__value_cost=1.0,
        algorithm__entropy_cost=0.0,
        algorithm__popart=False,
        optimizer__clip_norm=None,
    ),
    "two tasks": small_job(
        algorithm__target_period=3,
        algorithm__entropy_cost=0.1,
        env=dataclasses.replace(
            CARTPOLE,
            tasks=({"max_steps_in_episode": 2}, {"max_steps_in_episode": 10}),
            num_envs=16,
        ),
        optimizer__clip_norm=0.2,
        optimizer__beta_2=0.99,
        optimizer__warmup=0.5,
        optimizer__final=0.1,
        total_steps=7 * 16 * 4,
    ),
}
UPDATES = 4


@pytest.fixture(scope="module", autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


@dataclasses.dataclass(frozen=True)
class Run:
    """Several updates of a job: the states before and after each, its rollout and its metrics."""

    trainer: OnlineTrainer
    states: list[Any]
    rollouts: list[Any]
    metrics: list[Any]


class Recording(OnlineTrainer):
    """Keeps the rollout of an update, so that the update's program can return it too."""

    def act(self, params, actor, key):
        actor, self.experience = super().act(params, actor, key)
        return actor, self.experience


@functools.cache
def start(name):
    """Return a job's trainer, its jitted `init` and `update`, and the config's hyperparameters.

    The update returns the next state, its metrics and its rollout.
    """
    trainer = Recording(JOBS[name])

    @jax.jit
    def update(state):
        after, (metrics, _) = trainer.update(state)
        return after, metrics, trainer.experience

    hyperparameters = sample_hyperparameters(trainer.config, jax.random.key(0))
    return trainer, jax.jit(trainer.init), update, hyperparameters


@pytest.fixture(scope="module", params=slow_except(JOBS, ["one task"]))
def run(request):
    trainer, init, update, hyperparameters = start(request.param)
    states, rollouts, metrics = [init(0, hyperparameters)], [], []
    for _ in range(UPDATES):
        state, numbers, experience = update(states[-1])
        states.append(state)
        metrics.append(numbers)
        rollouts.append(experience)
    return Run(trainer, states, rollouts, metrics)


def assert_close(actual, expected, tolerance=1e-9):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance),
        actual,
        expected,
    )


def assert_equal(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def largest_difference(a, b):
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(np.max(np.abs(x - y))), a, b)))


def test_acting_equals_learning(run):
    """Recorded distributions and memory equal those of the target network on the segment."""
    learner = run.states[1].learner
    assert largest_difference(learner.algorithm, learner.params) > 1e-5
    for before, rollout, after in zip(run.states, run.rollouts, run.states[1:], strict=False):
        acted = jax.tree.map(lambda x: x[:, :-1], rollout.timesteps)
        memory, output = segment(
            run.trainer.agent, before.learner.algorithm, before.actor.memory, acted
        )
        assert output.policy.logits.dtype == np.float64
        assert_close(rollout.extras.policy, output.policy)
        assert_close(after.actor.memory, memory)
    assert any(rollout.timesteps.first[:, 1:].any() for rollout in run.rollouts)


def test_consecutive_unrolls_are_contiguous(run):
    for before, rollout, after in zip(run.states, run.rollouts, run.states[1:], strict=False):
        assert_equal(jax.tree.map(lambda x: x[:, 0], rollout.timesteps), before.actor.timestep)
        assert_equal(jax.tree.map(lambda x: x[:, -1], rollout.timesteps), after.actor.timestep)
        assert_equal(rollout.timesteps.first[:, 1:], rollout.timesteps.last[:, :-1])
        moves = ~rollout.timesteps.first[:, 1:]
        assert_equal(rollout.timesteps.action[:, 1:][moves], rollout.actions[moves])


def test_target_is_copied_every_period(run):
    period = run.trainer.config.algorithm.target_period
    for number, (before, after) in enumerate(zip(run.states, run.states[1:], strict=False), 1):
        if number % period == 0:
            assert_equal(after.learner.algorithm, after.params)
        else:
            assert largest_difference(after.learner.algorithm, after.params) > 0
            # Everything except the value head, which PopArt rescales.
            for name in before.learner.algorithm.keys() - {"value_head"}:
                old, new = (without_statistics(x.learner.algorithm[name]) for x in (before, after))
                assert_equal(new, old)


def test_updates_match_naive_reference(run):
    """Covers returns, loss, gradients, clipping, Adam, its schedule and PopArt."""
    config, adam = run.trainer.config, NaiveAdam(run.trainer.config)
    for number, (state, rollout) in enumerate(zip(run.states, run.rollouts, strict=False)):
        after, metrics = run.states[number + 1], run.metrics[number]
        params, gradients, statistics, psi_kl = naive_gradients(run.trainer, state, rollout)
        norm = np.sqrt(sum(np.sum(g**2) for g in jax.tree.leaves(gradients["params"])))
        assert_close(metrics["gradient_norm"], norm)
        assert config.optimizer.clip_norm is None or norm > config.optimizer.clip_norm
        steps = adam.steps(gradients, norm)
        assert_close(metrics["learning_rate"], adam.rate())

        old, new = state.learner.trainable["multipliers"], after.learner.trainable["multipliers"]
        if config.algorithm.multipliers == "adam":
            assert_close(new.temperature, old.temperature + steps["temperature"])
            assert_close(new.alphas["categorical"], old.alphas["categorical"] + steps["alpha"])
        else:
            violation = psi_kl / config.algorithm.epsilon_eta - 1
            assert_close(new.temperature, old.temperature * np.exp(0.05 * min(violation, 10)))
            slack = gradients["alpha"] / config.algorithm.epsilon_alpha
            assert_close(
                new.alphas["categorical"],
                old.alphas["categorical"] * np.exp(0.05 * min(-slack, 10)),
            )
        assert_close(metrics["psi/kl"], psi_kl)
        assert_close((after.learner.popart.mean_N, after.learner.popart.variance_N), statistics)
        trained = jax.tree.map(lambda p, s: p + s, params, steps["params"])
        assert_close(without_statistics(after.params), without_statistics(trained))


def test_rollouts_contain_termination_and_truncation(run):
    last, discount = (
        np.concatenate([getattr(rollout.timesteps, name)[:, 1:] for rollout in run.rollouts])
        for name in ("last", "discount")
    )
    assert (last & (discount == 0)).any()
    assert (last & (discount == 1)).any()
    assert not last[:, -1].all()


def test_popart_preserves_target_values(run):
    """Rescaling the target's value head to new statistics does not change its values."""
    period = run.trainer.config.algorithm.target_period
    # Skip the first update, before which there are no statistics.
    states = list(enumerate(zip(run.states[1:], run.states[2:], strict=False), 2))
    timesteps, memory = run.rollouts[0].timesteps, run.states[0].actor.memory
    for before, after in [pair for number, pair in states if number % period]:
        values = []
        for state in (before, after):
            params = copy_normalizers(state.learner.algorithm, before.learner.algorithm)
            _, output = segment(run.trainer.agent, params, memory, timesteps)
            popart = state.learner.popart
            scale_N, mean_N = np.sqrt(popart.variance_N), np.asarray(popart.mean_N)
            values.append(scale_N * np.asarray(output.value) + mean_N)
        assert_close(*values)
        if run.trainer.config.algorithm.popart:
            assert np.all(after.learner.popart.mean_N != before.learner.popart.mean_N)


# Vmapped over seeds and hyperparameters.


def twice(update, state):
    """Return the state after two updates, and the metrics of the second."""
    state, *_ = update(state)
    state, metrics, *_ = update(state)
    return state, metrics


@pytest.mark.parametrize("name", slow_except(JOBS, ["one task"]))
def test_vmap_over_seeds_and_hyperparameters(name):
    trainer, init, update, defaults = start(name)
    other = {name: 2 * x if name.startswith("epsilon") else x for name, x in defaults.items()}
    other["learning_rate"] = 3 * defaults["learning_rate"]
    hyperparameters = jax.tree.map(lambda *x: jnp.stack(x), defaults, defaults, other)
    states = jax.jit(jax.vmap(trainer.init))(np.array([0, 1, 0]), hyperparameters)
    states, metrics = twice(jax.jit(jax.vmap(update)), states)
    for row, (seed, own) in enumerate([(0, defaults), (1, defaults), (0, other)]):
        single, single_metrics = twice(update, init(seed, own))
        mapped = jax.tree.map(lambda x, row=row: x[row], states)
        for name in ("trainable", "algorithm", "popart"):
            assert_close(getattr(mapped.learner, name), getattr(single.learner, name))
        for name in ("timestep", "memory"):
            assert_close(getattr(mapped.actor, name), getattr(single.actor, name))
        assert_close({name: x[row] for name, x in metrics.items()}, single_metrics, 1e-6)
    default, seed, other = (
        jax.tree.map(lambda x, row=row: x[row], states.params) for row in range(3)
    )
    assert largest_difference(seed, default) > 1e-2
    assert largest_difference(other, default) > 1e-5


@pytest.mark.parametrize("name", ["ppo", "vmpo", "r2d2"])
def test_the_longest_run_begins(name):
    """Of more updates than 32 bits count."""
    trainer = OnlineTrainer(small_job("lstm", algorithm__name=name, total_steps=MOST_STEPS))
    assert trainer.config.num_updates > 2**31
    jax.eval_shape(lambda: trainer.update(trainer.init(0)))


def test_sweep_is_log_uniform_within_bounds():
    bounds = {"learning_rate": (1e-4, 1e-2), "epsilon_alpha": (0.001, 0.1)}
    config = small_job("lstm", sweep=bounds)
    keys = jax.random.split(jax.random.key(0), 500)
    draws = jax.vmap(lambda key: sample_hyperparameters(config, key))(keys)
    for name, (low, high) in bounds.items():
        exponent = np.log(np.asarray(draws[name]) / low) / np.log(high / low)
        assert exponent.min() >= -1e-12
        assert exponent.max() <= 1 + 1e-12
        # Uniform in the logarithm: the mean is within five standard errors of one half.
        assert abs(exponent.mean() - 0.5) < 5 / np.sqrt(12 * 500)
    np.testing.assert_allclose(np.corrcoef(*(draws[name] for name in bounds))[0, 1], 0, atol=0.2)
    for name in ("gamma", "epsilon_eta"):
        np.testing.assert_array_equal(draws[name], getattr(config.algorithm, name))
