"""Auxiliary losses and the exploration bonus in training, with every algorithm."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.nn.normalizer import normalizer_statistics
from gtrxl_jax.online.algorithm import add_bonus_to_rewards, compute_bonus
from gtrxl_jax.online.trainer import OnlineTrainer
from tests.jobs import changed, small_job
from tests.tiers import slow_except

IMAGES = {
    "env__name": "TwoColors-v0",
    "env__params": {"height": 16, "width": 16},
    "agent__encoder": "mlp",
    "agent__pixel_control": 0.1,
}


def metrics_of(algorithm, **changes):
    trainer = OnlineTrainer(small_job("lstm", algorithm__name=algorithm, **changes))
    state = jax.eval_shape(trainer.init, 0)
    after, (metrics, _) = jax.eval_shape(trainer.update, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    return state.params, {name for name in metrics if name.startswith("loss/")}


@pytest.mark.parametrize("algorithm", ["ppo", "vmpo", "r2d2"])
def test_reconstruction_and_rnd_are_part_of_loss(algorithm):
    params, losses = metrics_of(algorithm, agent__reconstruction=0.1, agent__rnd=0.1)
    assert losses >= {"loss/reconstruction", "loss/rnd"}
    assert params.keys() >= {"reconstruction", "rnd"}


def test_pixel_control_is_part_of_loss():
    params, losses = metrics_of("vmpo", **IMAGES)
    assert "loss/pixel_control" in losses
    assert "pixel_control" in params


def rollouts(algorithm, **changes):
    """Return a trainer and its state, and a rollout without, with, and whose rewards have a bonus.

    The bonus after the last step of an episode is a reward of no action, and enormous.
    """
    job = small_job("lstm", algorithm__name=algorithm, agent__rnd=0.1, **changes)
    trainer = OnlineTrainer(job)

    @jax.jit
    def act():
        state = trainer.init(0)
        _, seen = trainer.act(state.learner.params, state.actor, state.key)
        last_BT, size = seen.timesteps.last[:, :-1], seen.actions.shape
        bonus_BT = jax.random.uniform(jax.random.key(1), size)
        plain = dataclasses.replace(seen, bonus=jnp.zeros(size))
        given = dataclasses.replace(seen, bonus=jnp.where(last_BT, 1e6, bonus_BT))
        rewarded = dataclasses.replace(
            plain, timesteps=add_bonus_to_rewards(seen.timesteps, bonus_BT)
        )
        return state, plain, given, rewarded

    return trainer, *act()


@pytest.mark.parametrize("algorithm", slow_except(["ppo", "vmpo"], ["ppo"]))
def test_bonus_is_part_of_returns(algorithm):
    trainer, state, plain, given, rewarded = rollouts(algorithm)
    value_BSN = jax.random.normal(jax.random.key(2), (8, 8, 1))
    targets = jax.jit(trainer.algorithm.targets)

    def returns(experience):
        found = targets(state.learner, experience, value_BSN)
        return np.where(found.mask_BT, found.returns_BT, 0)

    np.testing.assert_allclose(returns(given), returns(rewarded), rtol=1e-5)
    assert np.abs(returns(given) - returns(plain)).max() > 0.1
    assert given.timesteps.last[:, :-1].any()


@pytest.mark.slow
def test_bonus_reaches_across_segments():
    """Bonuses of 1 are worth what rewards of 1 are, which are in both copies of a shared step."""
    changes = {"segments": 2, "algorithm__popart": False}
    trainer, state, plain, *_ = rollouts("ppo", **changes)
    targets = jax.jit(trainer.algorithm.targets)

    def returns(reward, bonus):
        rewards = jnp.full_like(plain.timesteps.reward, reward)
        steps = dataclasses.replace(plain.timesteps, reward=rewards)
        seen = dataclasses.replace(plain, timesteps=steps, bonus=jnp.full_like(plain.bonus, bonus))
        return targets(state.learner, seen, jnp.zeros((*rewards.shape, 1))).returns_BT

    np.testing.assert_allclose(returns(0.0, 1.0), returns(1.0, 0.0), rtol=1e-5)


@pytest.mark.slow
def test_bonus_is_part_of_replayed_errors():
    trainer, state, *experiences = rollouts("r2d2")
    update = jax.jit(trainer.algorithm.update)
    plain, given, rewarded = (
        update(state.learner, experience, state.key)[0].replay.priority_EC
        for experience in experiences
    )
    np.testing.assert_allclose(given, rewarded, rtol=1e-5)
    assert np.abs(given - plain).max() > 0.1


def test_bonus_goes_on_where_episodes_terminate():
    trainer = OnlineTrainer(small_job("lstm", algorithm__name="ppo", agent__rnd=0.1))

    @jax.jit
    def run():
        state = trainer.init(0)
        _, seen = trainer.act(state.learner.params, state.actor, state.key)
        # Every other end becomes one by a time limit.
        is_even_BS = (jnp.arange(seen.timesteps.last.shape[0]) % 2 == 0)[:, None]
        discount_BS = jnp.where(is_even_BS, 1.0, seen.timesteps.discount)
        seen = dataclasses.replace(
            seen, timesteps=dataclasses.replace(seen.timesteps, discount=discount_BS)
        )
        return [compute_bonus(trainer.agent, state.params, seen, gamma) for gamma in (1.0, 0.9)]

    (until_end, metrics), (on, same) = run()
    arrived_at_end = np.array(on.timesteps.last[:, 1:])
    terminated = arrived_at_end & (np.array(on.timesteps.discount[:, 1:]) == 0)
    added = 9 * float(metrics["rnd/bonus"])  # 0.9 + 0.9^2 + ...
    expected = np.array(until_end.bonus) + np.where(terminated, added, 0)
    np.testing.assert_allclose(on.bonus, expected, rtol=1e-5)
    assert metrics == same
    assert terminated.any()
    assert (arrived_at_end & ~terminated).any()


def test_bonus_where_episodes_terminate_has_the_gamma_of_each_seed():
    """A swept one, not the config's."""
    job = small_job("lstm", algorithm__name="ppo", agent__rnd=0.1, sweep={"gamma": (0.8, 0.81)})
    trainer = OnlineTrainer(job)

    @jax.jit
    def run():
        learned = []

        def update(learner, experience, key):
            learned.append(experience.bonus)
            return learner, {}

        trainer.algorithm.update = update
        state = trainer.init(0)
        _, seen = trainer.act(state.params, state.actor, state.key)
        gammas = state.learner.hyperparameters["gamma"], 0.99
        none, _ = compute_bonus(trainer.agent, state.params, seen, 0.99)
        normalizer = state.params["rnd"]["normalizer"] | {"count": jnp.ones(())}
        params = state.params | {"rnd": state.params["rnd"] | {"normalizer": normalizer}}
        trainable = state.learner.trainable | {"params": params}
        trainer.learn(state.learner.replace(trainable=trainable), seen, state.key)
        own, of_config = (compute_bonus(trainer.agent, params, seen, x)[0] for x in gammas)
        return *learned, own.bonus, of_config.bonus, none.bonus

    given, own, of_config, none = run()
    assert not none.any()  # without statistics
    np.testing.assert_allclose(given, own, rtol=1e-6)
    assert np.abs(own - of_config).max() > 0.5


@pytest.mark.slow
def test_bonus_decreases_and_its_target_is_never_trained():
    trainer = OnlineTrainer(small_job("lstm", algorithm__name="ppo", agent__rnd=0.1))

    @jax.jit
    def run():
        start = trainer.init(0)
        end, (metrics, _) = jax.lax.scan(
            lambda state, _: trainer.update(state), start, None, length=80
        )
        return start.params["rnd"], end.params["rnd"], metrics

    before, after, metrics = run()
    for name in ("target_layer", "target_features"):
        jax.tree.map(np.testing.assert_array_equal, before[name], after[name])
    assert metrics["loss/rnd"][-5:].mean() < 0.3 * metrics["loss/rnd"][:5].mean()
    assert metrics["rnd/bonus"][-5:].mean() < 0.5 * metrics["rnd/bonus"][1:6].mean()
    # Without statistics, it has no unit.
    assert metrics["rnd/bonus"][0] == 0
    assert np.all(metrics["rnd/bonus"][1:] > 0)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "r2d2"])
def test_statistics_of_auxiliary_losses_do_not_depend_on_normalize(algorithm):
    """Without it, those of the agent's own inputs stay."""
    job = small_job("lstm", algorithm__name=algorithm, agent__rnd=0.1, agent__reconstruction=0.1)
    normalized, fixed = (
        OnlineTrainer(changed(job, agent__normalize=normalize)) for normalize in (True, False)
    )

    @jax.jit
    def run():
        state = normalized.init(0)
        return [normalizer_statistics(x.update(state)[0].params) for x in (normalized, fixed)]

    seen, found = run()
    for name, array in found.items():
        expected = 0 if name.startswith("encoder/") else seen[name]
        if name.endswith("/count"):
            np.testing.assert_array_equal(array, expected, err_msg=name)
    assert found["rnd/normalizer/mean"] > 0
    assert found["encoder/reward/count"] == 0 < seen["encoder/reward/count"]


def test_without_cost_there_is_none():
    params, losses = metrics_of("ppo")
    assert params.keys() == {"encoder", "core", "policy_head", "value_head"}
    assert losses == {"loss/policy", "loss/value", "loss/entropy"}


def test_pixel_control_of_single_steps_is_refused():
    with pytest.raises(ValueError, match="agent.pixel_control learns from what changes within"):
        OnlineTrainer(small_job("lstm", algorithm__name="ppo", unroll=1, **IMAGES))


def test_what_the_agent_reads_is_described_once():
    trainer = OnlineTrainer(small_job("lstm", agent__rnd=0.1, **IMAGES))
    assert len(trainer.notes) == 1


def test_task_without_image_is_refused():
    with pytest.raises(ValueError, match="pixel_control needs an image, which the observation has"):
        OnlineTrainer(small_job("lstm", agent__pixel_control=0.1))
