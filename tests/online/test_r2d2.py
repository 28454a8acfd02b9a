"""R2D2 in the trainer: its acting values, stored memories, burn-in, priorities and resume."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.nn.normalizer import without_statistics
from gtrxl_jax.online.algorithm import run_segment
from gtrxl_jax.online.config import EnvConfig, OnlineConfig
from gtrxl_jax.online.r2d2 import R2D2Config, segment_of
from gtrxl_jax.online.replay import take
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.ops import r2d2
from gtrxl_jax.runs.logging.writers import read_metrics
from gtrxl_jax.runs.loop import train
from gtrxl_jax.timestep import zero_timestep
from gtrxl_jax.validation import validate
from tests.comparison import assert_close
from tests.jobs import small_job
from tests.online.test_trainer import Recording
from tests.programs import compiled_once
from tests.tiers import slow_except

pytestmark = pytest.mark.integration

CONFIG = R2D2Config(
    replay_size=64, replay_start=32, optimizer_steps=2, target_period=3, n_steps=3, epsilon=0.9
)


def job(core="gtrxl", **changes):
    return small_job(core, **{"algorithm": CONFIG, "env__num_envs": 8, "unroll": 6} | changes)


@pytest.fixture(scope="module", params=slow_except(["gtrxl", "lstm"], ["lstm"]))
def played(request):
    """Return a trainer, and its states and experiences of the first rollouts, in float64."""
    with jax.enable_x64(True):
        trainer = Recording(job(request.param))

        @jax.jit
        def update(state):
            after, (metrics, _) = trainer.update(state)
            return after, metrics, trainer.experience

        states, experiences, metrics = [jax.jit(trainer.init)(0)], [], []
        for _ in range(7):
            state, numbers, experience = update(states[-1])
            states.append(state)
            experiences.append(experience)
            metrics.append(numbers)
    return trainer, states, experiences, metrics


def values(trainer, params, memory, timesteps):
    return jax.jit(functools.partial(run_segment, trainer.agent))(params, memory, timesteps)[0]


def test_acting_equals_learning(played, x64):
    trainer, states, experiences, _ = played
    for state, experience in zip(states, experiences, strict=False):
        q_BSA = values(trainer, state.params, experience.memory, experience.timesteps)
        acted = jnp.concatenate([experience.extras, experience.bootstrap[:, None]], axis=1)
        np.testing.assert_allclose(acted, q_BSA, rtol=1e-9, atol=1e-9)


def test_replay_has_the_latest_rollouts_with_their_errors_as_priorities(played, x64):
    trainer, states, experiences, _ = played
    for n, experience in enumerate(experiences[:3]):
        # Nothing has been learned yet, so that priorities are those of acting.
        replay = states[n + 1].learner.replay
        assert int(replay.count) == n + 1
        stored = take(replay, jnp.full((8, 1), n))
        jax.tree.map(np.testing.assert_array_equal, stored, segment_of(experience))
        q_BSA = jnp.concatenate([experience.extras, experience.bootstrap[:, None]], axis=1)
        steps = experience.timesteps
        error_BT = r2d2.td_errors(
            q_BSA=q_BSA,
            target_q_BSA=q_BSA,
            actions_BT=experience.actions,
            reward_BS=steps.reward.astype(float),
            discount_BS=steps.discount.astype(float),
            last_BS=steps.last,
            gamma=CONFIG.gamma,
            num_steps=3,
        )
        size = np.where(steps.last[:, :-1], 0, np.abs(error_BT))
        mean = size.sum(1) / np.sum(~np.asarray(steps.last[:, :-1]), axis=1)
        expected = 0.9 * size.max(1) + 0.1 * mean
        np.testing.assert_allclose(replay.priority_EC[:, n], expected, rtol=1e-6)


def test_learning_begins_when_the_replay_is_filled(played):
    _, states, _, metrics = played
    for n, (before, after) in enumerate(zip(states, states[1:], strict=False)):
        changes = jax.tree.map(
            lambda a, b: float(np.abs(a - b).max()),
            without_statistics(before.params),
            without_statistics(after.params),
        )
        learns = 8 * (n + 1) >= CONFIG.replay_start
        assert (max(jax.tree.leaves(changes)) > 0) == learns
        assert int(after.learner.step - before.learner.step) == 2 * learns
        assert np.isfinite(metrics[n]["loss/td"]) == learns
        assert all(value for name, value in metrics[n].items() if name.startswith("finite/"))
    # Copied at the third and the sixth of eight steps.
    assert_different(states[-1].learner.target, states[-1].params)
    assert int(states[-1].learner.step) == 8


def assert_different(a, b):
    assert max(jax.tree.leaves(jax.tree.map(lambda x, y: float(np.abs(x - y).max()), a, b))) > 0


def test_burn_in_gives_the_memory_of_the_present_parameters(played, x64):
    trainer, states, experiences, _ = played
    first, second = experiences[:2]
    steps = jax.tree.map(lambda x: x[:, :-1], first.timesteps)
    params = states[-1].params

    @jax.jit
    def burn_in(params):
        return trainer.algorithm._burn_in(params, [segment_of(first)], segment_of(second))

    def naive(params):
        memory = first.memory
        for t in range(6):
            one = jax.tree.map(lambda x, t=t: x[:, t : t + 1], steps)
            memory, _ = trainer.agent.apply({"params": params}, memory, one)
        return memory

    assert_close(burn_in(params), jax.jit(naive)(params))
    # With the parameters that acted, it is the stored memory.
    assert_close(burn_in(states[0].params), second.memory)

    def total(params):
        arrays = [x for x in jax.tree.leaves(burn_in(params)) if x.dtype == float]
        return sum(map(jnp.sum, arrays))

    gradient = jax.grad(total)(params)
    jax.tree.map(lambda x: np.testing.assert_array_equal(x, 0), gradient)


def test_every_environment_explores_by_its_own_epsilon():
    trainer = OnlineTrainer(job("lstm"))
    policy = trainer.algorithm.behavior
    assert policy.epsilons == r2d2.actor_epsilons(8, 0.9) == tuple(sorted(policy.epsilons))[::-1]
    steps = zero_timestep(trainer.observation_space, trainer.action_space, 2)
    q_BA = jnp.broadcast_to(jnp.array([0.0, 2.0, 1.0, 0.0]), (2, 4))
    policy = dataclasses.replace(policy, epsilons=(0.5, 0.0))
    keys = jax.random.split(jax.random.key(0), 4000)
    chosen = jax.vmap(lambda key: policy.choose(q_BA, steps, key))(keys)
    shares = np.bincount(chosen[:, 0], minlength=4) / 4000
    np.testing.assert_allclose(shares, [0.125, 0.625, 0.125, 0.125], atol=0.03)
    np.testing.assert_array_equal(chosen[:, 1], 1)
    greedy = trainer.algorithm.policy("mode").choose(q_BA, steps, keys[0])
    np.testing.assert_array_equal(greedy, 1)


@compiled_once(type)  # the learning rate does not depend on the length of the run
@pytest.mark.slow
def test_resume_with_and_without_the_replay(tmp_path):
    def run(folder, total_steps, save_replay):
        config = dataclasses.replace(CONFIG, save_replay=save_replay)
        sizes = {"total_steps": total_steps, "optimizer__horizon": 1000, "devices": 1}
        short = job("lstm", algorithm=config, **sizes)
        return train(OnlineTrainer(short), folder=folder).params_per_seed[0]

    steps = 8 * 6 * 4
    whole = run(tmp_path / "whole", 4 * steps, True)
    run(tmp_path / "halves", 2 * steps, True)
    assert_close(run(tmp_path / "halves", 4 * steps, True), whole)
    run(tmp_path / "without", 2 * steps, False)
    assert_different(
        without_statistics(run(tmp_path / "without", 4 * steps, False)), without_statistics(whole)
    )
    filled, anew = (
        read_metrics(tmp_path / name / "metrics.jsonl")["replay/segments"]
        for name in ("halves", "without")
    )
    half = len(filled) // 2
    np.testing.assert_array_equal(anew[:half], filled[:half])
    assert np.all(np.diff(filled) >= 0)
    np.testing.assert_array_equal(anew[half:], filled[:half])  # the replay was empty again


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replay_size": 60}, "algorithm.replay_size 60 must be a multiple of env.num_envs 8"),
        ({"burn_in": 9}, "at least 80 with algorithm.burn_in 9"),
        ({"replay_start": 65}, "algorithm.replay_start 65 must be from 16 to"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        validate(job(algorithm=dataclasses.replace(CONFIG, **changes)))


def test_continuous_actions_are_refused():
    config: OnlineConfig = job("lstm", env=EnvConfig("Clock-v0", num_envs=8))
    with pytest.raises(ValueError, match="single discrete action, .*: use an algorithm with a pol"):
        OnlineTrainer(config)
