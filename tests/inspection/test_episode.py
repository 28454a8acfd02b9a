import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from gtrxl_jax import load
from gtrxl_jax.acting.evaluation import record_episodes
from gtrxl_jax.inspection.animation import save_memory_gif
from gtrxl_jax.inspection.episode import _actions, inspect_episode
from gtrxl_jax.nn.agent import AgentOutput
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.ops.distributions import Categorical, Gaussian, Hybrid, SquashedGaussian
from gtrxl_jax.specs import ActionSpec
from tests.jobs import small_job
from tests.saved import save

pytestmark = pytest.mark.integration


def make_run(folder, core, **changes):
    """Return a loaded run of random parameters."""
    limits = {"corridor_length": 3, "max_steps_in_episode": 9}
    save(folder, OnlineTrainer(small_job(core, env__params=limits, **changes)))
    return load(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run"), "gtrxl", evaluation__actions="sample")


def test_it_is_the_episode_that_is_played(run):
    episode = inspect_episode(run, seed=3)
    (played,) = record_episodes(run.policy, run.tasks[0], run.params, seed=3, episodes=1)
    steps = episode.num_actions
    assert len(played.timesteps.first) == steps + 1 == len(episode.frames)
    np.testing.assert_array_equal(episode.chosen[:, 0], played.timesteps.action[1:])
    np.testing.assert_array_equal(episode.attention, played.attention)
    np.testing.assert_array_equal(episode.rewards, played.timesteps.reward)
    assert episode.episode_return == pytest.approx(played.timesteps.reward.sum())

    memory = run.agent.initial_memory(1)
    each = jax.tree.map(lambda x: jnp.asarray(x)[None, :-1], played.timesteps)
    _, output = jax.jit(run.agent.apply)({"params": run.params}, memory, each)
    (mean,), (scale,) = run.value_units[0]
    values = scale * output.value[0, :, 0] + mean
    np.testing.assert_allclose(episode.values, values, rtol=1e-3, atol=1e-4)
    expected = jax.nn.softmax(output.policy.logits[0])
    np.testing.assert_allclose(episode.choices[0], expected, rtol=1e-3, atol=1e-4)

    limits = {"corridor_length": 3, "max_steps_in_episode": 9}
    assert limits.items() <= episode.params.items()

    gamma = run.config.algorithm.gamma
    for step in range(steps + 1):
        later = episode.rewards[step + 1 :]
        assert episode.returns[step] == pytest.approx(later @ gamma ** np.arange(len(later)))


def test_gates_are_recorded_at_each_step(run):
    episode = inspect_episode(run, seed=3)
    (played,) = record_episodes(run.policy, run.tasks[0], run.params, seed=3, episodes=1)
    openings = {name: x for name, x in episode.metrics.items() if name.endswith("opening")}
    assert len(openings) == 2  # of attention and of the feed-forward network
    # The segment form reports the mean over the steps.
    memory = run.agent.initial_memory(1)
    each = jax.tree.map(lambda x: jnp.asarray(x)[None], played.timesteps)
    report = jax.jit(functools.partial(run.agent.apply, mutable="metrics"))
    _, sown = report({"params": run.params}, memory, each)
    means = sorted(map(float, jax.tree.leaves(sown["metrics"]["core"])))
    np.testing.assert_allclose(sorted(x.mean() for x in openings.values()), means, rtol=1e-4)
    assert all(len(x) == episode.num_actions + 1 for x in openings.values())


def test_a_long_episode_is_cut(run):
    whole, cut = inspect_episode(run, seed=3), inspect_episode(run, seed=3, num_steps=2)
    assert cut.num_actions == 2
    assert (cut.length, cut.episode_return) == (whole.length, whole.episode_return)
    assert len(cut.frames) == len(cut.rewards) == cut.attention.shape[2] == 3
    np.testing.assert_array_equal(cut.returns, whole.returns[:3])
    assert cut.influence.shape == (2, 2)


@pytest.mark.slow
def test_a_core_without_attention(tmp_path):
    episode = inspect_episode(make_run(tmp_path, "lstm"))
    assert episode.attention is None
    assert not episode.metrics
    assert np.tril(episode.influence, -1).any()
    with pytest.raises(ValueError, match=r"core lstm has no attention"):
        save_memory_gif(episode, tmp_path / "a.gif")


def test_there_is_at_least_one_step(run):
    with pytest.raises(ValueError, match="num_steps must be at least 1, got 0"):
        inspect_episode(run, num_steps=0)


def test_tasks_are_numbered(run):
    with pytest.raises(ValueError, match="task must be below 1, the run's number of tasks: 1"):
        inspect_episode(run, task=1)


def test_gif_has_a_frame_for_each_action(run, tmp_path):
    episode = inspect_episode(run, seed=3)
    save_memory_gif(episode, tmp_path / "a.gif")
    with Image.open(tmp_path / "a.gif") as image:
        assert image.n_frames == episode.num_actions
        assert image.size == (720, 350)


def test_hybrid_actions_and_action_values():
    rng = np.random.default_rng(0)
    mean, logits = rng.random((5, 2)), rng.random((5, 3))
    policy = Hybrid(Gaussian(mean, 2 * mean), (Categorical(logits),))
    taken = {"continuous": rng.random((5, 2)), "discrete": rng.integers(0, 3, (5, 1))}
    spec = ActionSpec(((-1.0, 1.0), (-1.0, 1.0)), (3,))
    found = _actions(AgentOutput(policy, rng.random(5)), taken, spec)
    np.testing.assert_array_equal(found["means"], mean)
    np.testing.assert_array_equal(found["scales"], 2 * mean)
    np.testing.assert_array_equal(found["continuous"], taken["continuous"])
    np.testing.assert_array_equal(found["chosen"], taken["discrete"])
    p = np.exp(logits)
    np.testing.assert_allclose(found["choices"][0], p / p.sum(axis=1, keepdims=True), rtol=1e-5)
    assert found["has_probabilities"]

    found = _actions(logits, taken["discrete"][:, 0], ActionSpec((), (3,)))
    np.testing.assert_array_equal(found["choices"][0], logits)
    assert not found["has_probabilities"]
    assert found["means"].shape == found["continuous"].shape == (5, 0)

    squashed = SquashedGaussian(Gaussian(mean, mean), np.zeros((5, 2)), np.ones((5, 2)))
    found = _actions(squashed, taken["continuous"], ActionSpec(((-1.0, 1.0), (-1.0, 1.0))))
    np.testing.assert_allclose(found["means"], np.tanh(mean), rtol=1e-5)
    assert isinstance(found["scales"], np.ndarray)
