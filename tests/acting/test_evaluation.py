"""Evaluation against plain loops, and recorded episodes against naive indexing."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.acting import policy
from gtrxl_jax.acting.collecting import collect
from gtrxl_jax.acting.evaluation import make_evaluate, record_episode, summarize
from gtrxl_jax.acting.policy import AgentPolicy, Policy
from gtrxl_jax.acting.rollout import begin, rollout
from gtrxl_jax.acting.scripted import RandomPolicy
from gtrxl_jax.envs import Stream, make_env
from gtrxl_jax.nn.agent import make_agent
from gtrxl_jax.nn.cores.registry import make_core
from gtrxl_jax.ops.distributions import Gaussian
from gtrxl_jax.timestep import EpisodeStats, zero_timestep
from tests import jobs  # noqa: F401, registers its environments

pytestmark = pytest.mark.integration

EPISODES = 10


def make_stream(name="TMazePassive-v0", **params):
    return Stream(*make_env(name, **params), num_envs=3)


def random_agent(stream, core="lstm", seed=1, **settings):
    """Return an agent whose policy is far from uniform, and its parameters."""
    core = make_core(core, width=8, layers=2, **settings)
    spaces = stream.observation_space, stream.action_space
    agent = make_agent(core, *spaces, encoder_width=8, head_width=8)
    shapes = jax.eval_shape(
        agent.init, jax.random.key(0), agent.initial_memory(1), zero_timestep(*spaces, 1, 1)
    )
    rng = np.random.default_rng(seed)
    params = jax.tree.map(
        lambda p: jnp.asarray(0.6 * rng.standard_normal(p.shape), p.dtype), shapes["params"]
    )
    return agent, params


def play_in_a_loop(agent, stream, params, key, policy):
    """Return, length and last reward of the first episode of each environment."""
    stream = Stream(stream.env, stream.params, EPISODES)
    key_stream, key_act = jax.random.split(key)
    state, timestep = stream.reset(jax.random.fold_in(key_stream, 0))
    cache = agent.apply({"params": params}, agent.initial_memory(EPISODES), method="start")

    @jax.jit
    def advance(cache, state, timestep, key):
        cache, output = agent.apply({"params": params}, cache, timestep, method="step")
        action = output.policy.mode() if policy == "mode" else output.policy.sample(key)
        return cache, *stream.step(state, action)

    results, rewards, step = {}, np.zeros(EPISODES), 0
    while len(results) < EPISODES:
        key = jax.random.fold_in(key_act, step)
        cache, state, timestep = advance(cache, state, timestep, key)
        step += 1
        rewards += np.asarray(timestep.reward)
        for e in np.flatnonzero(timestep.last):
            results.setdefault(e, (rewards[e], step, float(timestep.reward[e])))
    return np.array([results[e] for e in range(EPISODES)]).T


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("TMazePassive-v0", "mode"),
        pytest.param("TMazePassive-v0", "sample", marks=pytest.mark.slow),
        ("Clock-v0", "sample"),
    ],
)
def test_only_first_episode_of_each_environment_counts(name, policy):
    stream = make_stream(name, **({"corridor_length": 1} if "Maze" in name else {}))
    # This agent succeeds in some episodes, with both policies.
    agent, params = random_agent(stream, seed=46)
    evaluate = jax.jit(make_evaluate(AgentPolicy(agent, policy), [stream], EPISODES))
    key = jax.random.key(3)
    results = evaluate(params, key)
    returns, lengths, last_rewards = play_in_a_loop(agent, stream, params, key, policy)
    assert results.done.shape == (1, EPISODES)
    assert results.done.all()
    np.testing.assert_allclose(results.episode_return[0], returns, rtol=1e-6)
    np.testing.assert_array_equal(results.length[0], lengths)
    if name == "Clock-v0":
        assert results.success is None
    else:
        np.testing.assert_array_equal(results.success[0], last_rewards == 1)
        assert results.success.any()
        assert not results.success.all()
    if policy == "sample":
        # Environments whose first episode ends early continue with another one.
        assert len(set(lengths)) > 1
        assert np.any(evaluate(params, jax.random.key(4)).episode_return != results.episode_return)


class Overshooting(Policy):
    """Acts with a mean of 5, or of 0 after an action of 1."""

    def __init__(self, scale):
        self.scale = scale

    def init(self, params, batch_size):
        return ()

    def act(self, params, state, timestep, key):
        mean = jnp.where(timestep.action == 1, 0.0, 5.0)
        return state, Gaussian(mean, jnp.full_like(mean, self.scale)).sample(key), mean


def test_no_array_is_as_long_as_an_episode():
    stream = make_stream(corridor_length=999_998, max_steps_in_episode=1_000_000)
    evaluate = make_evaluate(RandomPolicy(stream.action_space), stream, EPISODES)
    program = str(jax.make_jaxpr(evaluate)((), jax.random.key(0)))
    axes = {int(n) for shape in re.findall(r"\w\[([\d,]+)\]", program) for n in shape.split(",")}
    assert EPISODES in axes
    assert max(axes) < 1000


def test_environment_and_policy_receive_clipped_action():
    """The reward is the received action: 1, 0 and, for a third action, 1 again."""
    evaluate = make_evaluate(Overshooting(0.0), make_stream("Echo-v0"), 32)
    results = jax.jit(evaluate)((), jax.random.key(0))
    assert set(np.unique(results.length)) == {2, 3}
    np.testing.assert_array_equal(results.episode_return, np.where(results.length == 2, 1, 2))


def test_collected_actions_are_clipped():
    stream, acting = make_stream("Echo-v0"), Overshooting(1.0)
    whole = collect(stream.env, stream.params, acting, 32, jax.random.key(0), num_envs=32)
    played_ET = np.arange(3) < whole.length[:, None]
    assert np.abs(whole.actions).max() == 1
    assert (np.abs(whole.actions[played_ET]) < 1).any()
    np.testing.assert_array_equal(whole.actions[..., 0], whole.rewards)


def test_rollout_keeps_unclipped_actions_and_extras():
    stream, acting = make_stream("Echo-v0"), Overshooting(1.0)
    key_stream, key = jax.random.split(jax.random.key(0))
    start = begin(acting, (), stream, key_stream)
    state, played = jax.jit(lambda: rollout(acting, (), stream, start, key, 9))()
    assert played.timesteps.reward.shape == (3, 10)
    assert played.actions.shape == played.extras.shape == (3, 9, 2)
    before, after = played.timesteps.action[:, :-1], played.timesteps.action[:, 1:]
    np.testing.assert_array_equal(played.extras, np.where(before == 1, 0, 5))
    acted_BT = ~played.timesteps.first[:, 1:]
    np.testing.assert_array_equal(after[acted_BT], np.clip(played.actions, -1, 1)[acted_BT])
    assert np.abs(played.actions).max() > 1
    np.testing.assert_array_equal(played.episodes.done, played.timesteps.last[:, 1:])
    last = jax.tree.map(lambda x_BT: x_BT[:, -1], (played.timesteps, played.episodes))
    jax.tree.map(np.testing.assert_array_equal, last, (state.timestep, state.stream.episode))


def test_privileged_policy_observes_state():
    class Clairvoyant(Overshooting):
        is_privileged = True

        def act(self, params, state, timestep, key):
            return (), jnp.zeros((3,), jnp.int32), timestep.observation.hint

    stream, acting = make_stream(), Clairvoyant(0.0)
    key_stream, key = jax.random.split(jax.random.key(0))
    start = begin(acting, (), stream, key_stream)
    _, played = rollout(acting, (), stream, start, key, 4)
    np.testing.assert_array_equal(played.extras[:, 0], start.stream.env.hint)
    # The rollout keeps what an agent observes.
    np.testing.assert_array_equal(played.timesteps.observation[:, 0], start.timestep.observation)


def test_mode_is_deterministic():
    """Two policies with equal modes have equal returns with "mode", but not with "sample"."""
    stream = make_stream(corridor_length=3)
    agent, params = random_agent(stream)
    head = params["policy_head"]
    flatter = params | {
        "policy_head": head | {"output": jax.tree.map(lambda p: p / 50, head["output"])}
    }
    key = jax.random.key(0)
    for actions, alike in {"mode": True, "sample": False}.items():
        evaluate = jax.jit(make_evaluate(AgentPolicy(agent, actions), stream, 32))
        one, other = (evaluate(p, key).episode_return for p in (params, flatter))
        assert np.array_equal(one, other) == alike


def test_episodes_of_each_task():
    tasks = [make_stream(corridor_length=n, max_steps_in_episode=n + 2) for n in (1, 4, 2)]
    agent, params = random_agent(tasks[0])
    evaluate = jax.jit(make_evaluate(AgentPolicy(agent), tasks, EPISODES))
    results = evaluate(params, jax.random.key(0))
    assert results.length.shape == (3, EPISODES)
    assert results.done.all()
    for lengths, corridor in zip(results.length, (1, 4, 2), strict=True):
        # From the shortest solution to the time limit.
        assert set(np.unique(lengths)) <= {corridor + 1, corridor + 2}
        assert corridor + 2 in lengths
    numbers = summarize(results)
    assert numbers["return"].shape == (3 * EPISODES,)
    np.testing.assert_array_equal(numbers["length/task_1"], results.length[1])
    np.testing.assert_array_equal(numbers["length"].reshape(3, -1), results.length)


def test_summarize():
    def stats(*shape):
        rng = np.random.default_rng(0)
        return EpisodeStats(
            done=jnp.ones(shape, bool),
            episode_return=jnp.asarray(rng.standard_normal(shape), jnp.float32),
            length=jnp.asarray(rng.integers(1, 9, shape), jnp.int32),
            success=None,
            info={"apples": jnp.zeros(shape)},
        )

    one = summarize(stats(1, 5))
    assert set(one) == {"return", "length", "apples"}
    assert one["return"].shape == (5,)
    several = summarize(stats(4, 2, 5))  # seeds, tasks, episodes
    assert set(several) == {
        f"{n}{k}" for n in ("return", "length", "apples") for k in ("", "/task_0", "/task_1")
    }
    assert several["return"].shape == (4, 10)
    assert several["return/task_1"].shape == (4, 5)
    np.testing.assert_array_equal(several["return"][:, 5:], several["return/task_1"])


def test_info_at_last_step_is_score():
    """With a discount of 1, RockSample's discounted return is the return."""
    params = {"discount": 1.0, "max_steps_in_episode": 20}
    stream = make_stream("RockSample-5-5", **params)
    evaluate = jax.jit(make_evaluate(RandomPolicy(stream.action_space), stream, EPISODES))
    scores = summarize(evaluate(None, jax.random.key(0)))
    assert len(set(scores["length"].tolist())) > 1
    assert np.any(scores["return"] != 0)
    np.testing.assert_allclose(scores["discounted_return"], scores["return"])


@pytest.fixture(scope="module")
def recorded():
    """An episode of the Active T-Maze that is longer than the transformer's memory.

    Its attention is recorded in several chunks.
    """
    stream = make_stream("TMazeActive-v0", corridor_length=4, cue_distance=2)
    agent, params = random_agent(stream, "gtrxl", heads=2, memory_size=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "CHUNK", 4)
        episode = record_episode(AgentPolicy(agent), stream, params, jax.random.key(3))
    return stream, agent, params, episode


def test_recorded_episode_is_complete(recorded):
    _, _, _, episode = recorded
    steps = episode.timesteps
    np.testing.assert_array_equal(steps.first, np.arange(len(steps.first)) == 0)
    np.testing.assert_array_equal(steps.last, np.arange(len(steps.last)) == len(steps.last) - 1)
    np.testing.assert_array_equal(episode.states.time, np.arange(len(steps.first)))
    assert episode.success == (steps.reward[-1] == 1)


def test_recorded_attention_is_by_distance(recorded):
    _, agent, params, episode = recorded
    steps, window = len(episode.timesteps.first), 3 + 1
    attention = episode.attention
    assert steps > 2 * 4
    assert attention.shape == (2, 2, steps, window)
    np.testing.assert_allclose(attention.sum(axis=-1), 1, rtol=1e-5)
    timesteps = jax.tree.map(lambda x: jnp.asarray(x)[None], episode.timesteps)
    memory = agent.initial_memory(1)
    _, variables = jax.jit(
        lambda: agent.apply({"params": params}, memory, timesteps, mutable="attention")
    )()
    for layer in range(2):
        (whole,) = variables["attention"]["core"][f"blocks_{layer}/attention/weights"]
        np.testing.assert_allclose(attention[layer], whole[0], rtol=1e-5)
    assert np.std(attention[:, :, -1]) > 1e-3
    for query, place in np.ndindex(steps, window):
        if query - (window - 1 - place) < 0:
            np.testing.assert_array_equal(attention[:, :, query, place], 0)


def test_recorded_cue_is_first_step_showing_it(recorded):
    _, _, _, episode = recorded
    assert episode.cue == np.flatnonzero(episode.timesteps.observation[:, 1])[0]
    assert episode.cue > 0


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("TMazeActive-v0", {"corridor_length": 3, "cue_distance": 9, "max_steps_in_episode": 5}),
        ("Clock-v0", {}),
    ],
)
def test_recorded_episode_without_attention_or_cue(name, settings):
    stream = make_stream(name, **settings)
    agent, params = random_agent(stream)
    episode = record_episode(AgentPolicy(agent, "mode"), stream, params, jax.random.key(0))
    assert episode.attention is None
    assert episode.cue is None
    assert (episode.success is None) == (name == "Clock-v0")
    assert episode.timesteps.last[-1]
