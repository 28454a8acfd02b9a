"""The trainer with every core, type of action and precision, and at the ends of episodes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.nn.cores.recurrent import RecurrentConfig, RecurrentCore
from gtrxl_jax.nn.normalizer import without_statistics
from gtrxl_jax.online.algorithm import AlgorithmConfig
from gtrxl_jax.online.config import EnvConfig
from gtrxl_jax.online.on_policy import draw_minibatches
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs.programs import make_iteration
from tests.jobs import acting, small_job
from tests.tiers import slow_except

pytestmark = pytest.mark.integration

PENDULUM = EnvConfig(name="Pendulum-v1", num_envs=4)
CLOCK = EnvConfig(name="Clock-v0", num_envs=8)


@pytest.mark.parametrize(
    ("core", "changes", "parts"),
    [
        ("lstm", {"env": CLOCK}, {"categorical", "mean", "covariance"}),
        pytest.param(
            *("trxl", {"env": PENDULUM, "algorithm__multipliers": "adam"}, {"mean", "covariance"}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("trxl-i", {"env": PENDULUM, "core__remat": True}, {"mean", "covariance"}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("gtrxl", {"core__dtype": "bfloat16", "agent__clock": True}, {"categorical"}),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_cores_and_action_types_learn(core, changes, parts):
    trainer = OnlineTrainer(small_job(core, **changes))
    before = jax.jit(trainer.init)(0)
    after, (metrics, _) = jax.jit(trainer.update)(before)
    assert jax.tree.map(jax.typeof, after) == jax.tree.map(jax.typeof, before)
    assert {name.removeprefix("kl/") for name in metrics if name.startswith("kl/")} == parts
    learner = after.learner
    changed = (learner.trainable, learner.algorithm, learner.optimizer, after.actor.memory)
    for leaf in jax.tree.leaves(changed):
        assert np.all(np.isfinite(leaf.astype(jnp.float32)))
    assert all(np.isfinite(value).all() for value in metrics.values())
    trained = {
        **after.learner.trainable,
        "params": without_statistics(after.learner.trainable["params"]),
    }
    for path, leaf in jax.tree.leaves_with_path(trained):
        (old,) = [o for p, o in jax.tree.leaves_with_path(before.learner.trainable) if p == path]
        assert np.any(leaf != old), jax.tree_util.keystr(path)
    gates = {name for name in metrics if name.startswith("core/")}
    expected = {f"core/blocks_0/{gate}_gate/opening" for gate in ("attention", "feedforward")}
    assert gates == (expected if core == "gtrxl" else set())
    assert 0 <= metrics["encoder/inactive"] < 1


@pytest.fixture(scope="module")
def clock():
    """A trainer on two `Clock` tasks, its state and its first rollout."""
    env = EnvConfig(name="Clock-v0", num_envs=8, tasks=({}, {"pay": 2.0}))
    trainer = OnlineTrainer(small_job("lstm", env=env))
    state = jax.jit(trainer.init)(0)
    return trainer, state, jax.jit(acting(trainer))(state, jax.random.key(1))[1]


def test_truncation_bootstraps_from_final_observation(clock):
    trainer, state, rollout = clock

    @jax.jit
    def returns_and_values():
        params = {"params": state.learner.trainable["params"]}
        _, output = trainer.agent.apply(params, state.actor.memory, rollout.timesteps)
        rows = jnp.arange(8)
        value_BS = output.value[rows, :, rows % 2]
        return trainer.algorithm.returns(state.learner, rollout.timesteps, value_BS), output.value

    steps, (returns_BT, value_BSN) = jax.device_get((rollout.timesteps, returns_and_values()))
    gamma = trainer.config.algorithm.gamma
    seen = set()
    for b, t in np.argwhere(steps.last[:, 1:]):
        time, terminates = steps.observation[b, t + 1]
        assert time == (2 if terminates else 3)
        pay, value_S = 1.0 + b % 2, value_BSN[b, :, b % 2]
        expected = pay if terminates else pay + gamma * value_S[t + 1]
        np.testing.assert_allclose(returns_BT[b, t], expected, rtol=1e-6)
        # The value of the following reset differs.
        if t + 2 < len(value_S):
            assert steps.first[b, t + 2]
            assert abs(value_S[t + 2] - value_S[t + 1]) > 1e-4
        seen.add(bool(terminates))
    assert seen == {False, True}


@pytest.mark.parametrize("stagger", slow_except([False, True], [True]))
def test_rollouts_of_staggered_environments_have_ends_of_episodes(stagger):
    env = EnvConfig("MemoryChain-v0", {"memory_length": 19}, num_envs=64, stagger=stagger)
    trainer = OnlineTrainer(small_job("lstm", env=env, unroll=5))

    @jax.jit
    def ends():
        def step(state, key):
            state, experience = acting(trainer)(state, key)
            return state, jnp.sum(experience.timesteps.last[:, 1:])

        return jax.lax.scan(step, trainer.init(0), jax.random.split(jax.random.key(0), 12))[1]

    # Episodes of 20 actions and a reset: together, they end in every fourth or fifth rollout.
    assert np.all(ends() > 0) == stagger


def test_environment_receives_clipped_actions():
    """The rollout keeps the sampled actions for the loss."""
    env = EnvConfig(name="Echo-v0", num_envs=8)
    job = small_job("lstm", env=env, agent__initial_scale=3.0, agent__max_scale=6.0)
    trainer = OnlineTrainer(job)
    state = jax.jit(trainer.init)(0)
    rollout = jax.device_get(jax.jit(acting(trainer))(state, jax.random.key(1))[1])
    drawn_BT2, steps = rollout.actions, rollout.timesteps
    assert (drawn_BT2 < -1).any()
    assert (drawn_BT2 > 1).any()
    # Each step contains the previous action and its reward, except an episode's first step.
    answers_BT = ~steps.first[:, 1:]
    given_BT2 = np.where(answers_BT[..., None], np.clip(drawn_BT2, -1, 1), 0)
    np.testing.assert_array_equal(steps.action[:, 1:], given_BT2)
    np.testing.assert_array_equal(steps.reward[:, 1:], given_BT2[..., 0])
    # The actions of the rollout follow the recorded distributions, without clipping.
    z_BT2 = (drawn_BT2 - rollout.extras.policy.mean) / rollout.extras.policy.scale
    assert 0.7 < z_BT2.std() < 1.3


def test_popart_statistics_of_tasks_are_independent(clock):
    trainer, state, rollout = clock
    learn = jax.jit(trainer.algorithm.step)
    poor, metrics = learn(state.learner, rollout)
    steps = rollout.timesteps
    rich_steps = steps.replace(reward=steps.reward.at[1::2].multiply(100))
    rich, _ = learn(state.learner, rollout.replace(timesteps=rich_steps))
    for name in ("mean_N", "variance_N"):
        one, other = (np.asarray(getattr(after.popart, name)) for after in (poor, rich))
        assert one[0] == other[0] != getattr(state.learner.popart, name)[0]
        assert other[1] > one[1] + 0.1
    for k in range(2):
        np.testing.assert_array_equal(metrics[f"popart/mean/task_{k}"], poor.popart.mean_N[k])


@pytest.mark.slow  # tests/nn/test_agent.py is quick
def test_only_memory_carries_cue_to_junction():
    """The gradient at the junction with respect to the cue is zero for a memoryless agent only."""
    job = small_job(agent__memoryless=True, env__num_envs=4)
    memoryless = OnlineTrainer(job)
    state = jax.jit(memoryless.init)(0)
    stream = memoryless.stream

    def walk(key):
        """Walk straight to the junction; return time steps `[B, 3]`, the last one there."""
        right = jnp.zeros(stream.num_envs, jnp.int32)
        stream_state, first = stream.reset(key)
        stream_state, second = stream.step(stream_state, right)
        _, third = stream.step(stream_state, right)
        return jax.tree.map(lambda *x: jnp.stack(x, axis=1), first, second, third)

    timesteps = jax.jit(walk)(jax.random.key(0))
    np.testing.assert_array_equal(timesteps.observation[:, :, 2], [[0, 0, 1]] * 4)
    np.testing.assert_array_equal(timesteps.observation[:, 0, 1] != 0, True)
    np.testing.assert_array_equal(timesteps.observation[:, 1:, 1], 0)

    for remembers in (False, True):
        agent = memoryless.agent.clone(memoryless=not remembers)

        def at_junction(observation, agent=agent):
            steps = timesteps.replace(observation=observation)
            params = {"params": state.learner.trainable["params"]}
            _, output = agent.apply(params, agent.initial_memory(4), steps)
            outputs = jnp.concatenate([output.policy.logits[:, 2], output.value[:, 2]], axis=-1)
            return outputs.sum(axis=0)

        influence = jax.jit(jax.jacobian(at_junction))(timesteps.observation)
        of_the_cue, of_the_present = influence[:, :, 0, 1], influence[:, :, 2]
        assert np.all(np.any(of_the_present != 0, axis=-1))
        if remembers:
            assert np.all(of_the_cue != 0)
        else:
            np.testing.assert_array_equal(of_the_cue, 0)


def episode_metrics(trainer):
    """Return the function from a state to an iteration's metrics of episodes.

    Its program has nothing of learning.
    """
    iteration = make_iteration(trainer)

    @jax.jit
    def numbers(state):
        return {k: x for k, x in iteration(state)[1].items() if k.startswith("episode/")}

    return numbers


@pytest.mark.slow  # tests/runs/test_loop.py has two tasks
def test_metrics_of_three_tasks():
    tasks = tuple({"corridor_length": n, "max_steps_in_episode": n + 2} for n in (1, 3, 5))
    job = small_job("lstm", env__num_envs=6, env__tasks=tasks, unroll=16, updates_per_iteration=1)
    trainer = OnlineTrainer(job)
    state = jax.jit(trainer.init)(0)
    episodes = jax.jit(acting(trainer))(state, jax.random.fold_in(state.key, 0))[1].episodes
    metrics = episode_metrics(trainer)(state)
    done = np.asarray(episodes.done)
    numbers = {
        "return": episodes.episode_return,
        "length": episodes.length,
        "success": episodes.success,
    }
    for name, values in numbers.items():
        values = np.asarray(values, np.float64)
        of_task = [values[k::3][done[k::3]] for k in range(3)]
        for k, own in enumerate(of_task):
            np.testing.assert_allclose(metrics[f"episode/{name}/task_{k}"], own.mean(), rtol=1e-5)
        everything = np.concatenate(of_task).mean()
        np.testing.assert_allclose(metrics[f"episode/{name}"], everything, rtol=1e-5)
    np.testing.assert_array_equal(metrics["episode/ended"], done.sum())
    # Corridors and time limits differ between the tasks.
    lengths = [metrics[f"episode/length/task_{k}"] for k in range(3)]
    assert lengths[0] <= 3 < lengths[1] <= 5 < lengths[2] <= 7


@pytest.mark.slow  # tests/runs/test_loop.py has two tasks
def test_info_of_environments_is_metric():
    env = EnvConfig("RockSample-5-5", num_envs=4, tasks=({"discount": 0.5}, {"discount": 0.9}))
    job = small_job("lstm", env=env, unroll=64, updates_per_iteration=1)
    trainer = OnlineTrainer(job)
    state = jax.jit(trainer.init)(0)
    experience = jax.jit(acting(trainer))(state, jax.random.fold_in(state.key, 0))[1]
    reward, episodes = experience.timesteps.reward[:, 1:], experience.episodes
    metrics = episode_metrics(trainer)(state)
    returns = [[], []]
    for b, t in np.argwhere(np.asarray(episodes.done)):
        length = int(episodes.length[b, t])
        discount = (0.5, 0.9)[b % 2] ** np.arange(length)
        returns[b % 2].append(np.sum(discount * reward[b, t + 1 - length : t + 1]))
    assert all(returns)
    name = "episode/discounted_return"
    for k, values in enumerate(returns):
        np.testing.assert_allclose(metrics[f"{name}/task_{k}"], np.mean(values), rtol=1e-5)
    np.testing.assert_allclose(metrics[name], np.mean(sum(returns, [])), rtol=1e-5)
    scores = jax.eval_shape(trainer.evaluate, state.params, state.key)
    expected = ("discounted_return", "discounted_return/task_0", "discounted_return/task_1")
    assert [scores[name].shape for name in expected] == [(32,), (16,), (16,)]


@dataclasses.dataclass(frozen=True)
class PenalizedConfig(RecurrentConfig):
    """A GRU whose outputs are penalized by an auxiliary loss."""

    name: str = f"{__name__}:PenalizedConfig"

    def make(self):
        return Penalized("gru", self.layers, **self.shared)


class Penalized(RecurrentCore):
    def step(self, cache, x_BD, first_B):
        cache, y_BD = super().step(cache, x_BD, first_B)
        self.sow("losses", "size", 3.0 + jnp.mean(jnp.square(y_BD)))
        return cache, y_BD


def test_losses_of_core_are_trained_on():
    trainer = OnlineTrainer(small_job(PenalizedConfig.name))
    state = jax.jit(trainer.init)(0)
    _, rollout = jax.jit(acting(trainer))(state, jax.random.key(1))
    learner = state.learner
    total, (metrics, _) = jax.jit(trainer.algorithm.loss)(learner.trainable, learner, rollout)
    assert metrics["loss/auxiliary"] > 3
    terms = [value for name, value in metrics.items() if name.startswith("loss/")]
    np.testing.assert_allclose(total, sum(terms), rtol=1e-5)


@pytest.mark.slow  # tests/online/test_minibatches.py is quick
@pytest.mark.parametrize("algorithm", ["vmpo", "ppo"])
def test_popart_counts_each_step_once_in_several_epochs(algorithm):
    def weight(epochs):
        kind = AlgorithmConfig.named(algorithm)
        config = kind(epochs=epochs, minibatches=2, popart_rate=1e-3)
        trainer = OnlineTrainer(small_job("lstm", algorithm=config))

        @jax.jit  # whose program has little else
        def update():
            state, _ = trainer.update(trainer.init(0))
            return state.learner.popart.weight_N[0]

        return float(update())

    np.testing.assert_allclose(weight(4), weight(1), rtol=1e-3)


@pytest.mark.slow
def test_update_takes_one_step_per_minibatch():
    trainer = OnlineTrainer(
        small_job("lstm", algorithm__epochs=2, algorithm__minibatches=4, algorithm__popart=False)
    )
    state = jax.jit(trainer.init)(0)
    _, experience = jax.jit(acting(trainer))(state, jax.random.key(1))
    key = jax.random.key(2)
    learner, metrics = jax.jit(trainer.algorithm.update)(state.learner, experience, key)

    step, expected, losses = jax.jit(trainer.algorithm.step), state.learner, []
    acted = jax.tree.map(lambda x: x[:, :-1], experience.timesteps)
    for place_G in draw_minibatches(key, 8, minibatches=4, epochs=2):
        rows = 4 * np.arange(2) + place_G
        batch = jax.tree.map(lambda x, rows=rows: x[rows], experience)
        expected, of_step = step(expected, batch)
        losses.append(of_step["loss/value"])
    assert learner.step == expected.step == 8
    expected = trainer.algorithm.observe(expected, acted)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        (learner.trainable, learner.algorithm, metrics["loss/value"]),
        (expected.trainable, expected.algorithm, np.mean(losses)),
    )
