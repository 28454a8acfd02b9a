import dataclasses

import jax
import numpy as np
import pytest

from gtrxl_jax import Stream, make_agent, make_core, make_env, zero_timestep
from gtrxl_jax.acting import evaluation, policy
from gtrxl_jax.acting.evaluation import record_episode, render_episode
from gtrxl_jax.acting.policy import AgentPolicy
from gtrxl_jax.acting.scripted import RandomPolicy
from gtrxl_jax.worlds import PassiveTMaze

pytestmark = pytest.mark.integration


def untrained(env, core, **params):
    """Return the first arguments of `record_episode`, with an untrained agent."""
    stream = Stream(*make_env(env, **params), num_envs=4)
    spaces = stream.observation_space, stream.action_space
    agent = make_agent(core, *spaces, encoder_width=8, head_width=8)
    example = zero_timestep(*spaces, 1, 1)
    init = jax.jit(agent.init)
    params = init(jax.random.key(0), agent.initial_memory(1), example)["params"]
    return AgentPolicy(agent), stream, params


def test_attention_to_step_matches_recorded_weights():
    core = make_core("gtrxl", "debug", layers=1, memory_size=3)
    acting, stream, params = untrained(
        "TMazePassive-v0", core, corridor_length=8, max_steps_in_episode=10
    )
    episode = record_episode(acting, stream, params, jax.random.key(1))
    layers, heads, steps, window = episode.attention.shape
    assert (layers, heads, window) == (1, 2, 4)
    assert steps == 11  # it does not find the junction before the time limit of 10 actions
    assert episode.decision == 9
    np.testing.assert_allclose(episode.attention.sum(-1), 1, rtol=1e-5)

    columns = np.stack([episode.attention_to(step) for step in range(steps)], axis=-1)
    for query in range(steps):
        for key in range(steps):
            ago = query - key
            expected = episode.attention[:, :, query, 3 - ago] if 0 <= ago <= 3 else 0
            np.testing.assert_array_equal(columns[:, :, query, key], expected)
    np.testing.assert_allclose(columns.sum(-1), 1, rtol=1e-5)  # nothing before the episode

    frames = render_episode(stream, episode)
    assert frames.shape[0] == steps
    assert frames.dtype == np.uint8
    np.testing.assert_array_equal(render_episode(stream, episode, max_frames=2), frames[:2])
    long = jax.tree.map(
        lambda x: np.resize(x, (1200, *x.shape[1:])), (episode.timesteps, episode.states)
    )
    many = dataclasses.replace(episode, timesteps=long[0], states=long[1])
    assert len(render_episode(stream, many)) == 1000
    for step in (-1, steps):
        with pytest.raises(ValueError, match=f"step must be in 0 to {steps - 1}.* got {step}"):
            episode.attention_to(step)


def test_long_episodes_are_recorded_in_parts(monkeypatch):
    acting, stream, params = untrained(
        "Catch-bsuite", make_core("lstm", "debug"), max_steps_in_episode=100
    )
    monkeypatch.setattr(evaluation, "MAX_CHUNK_STEPS", 4)
    episode = record_episode(acting, stream, params, jax.random.key(1))
    # The ball falls for nine steps: two parts of four steps, and one that the next episode enters.
    np.testing.assert_array_equal(episode.states.time, range(10))
    np.testing.assert_array_equal(episode.timesteps.first, [True] + 9 * [False])
    np.testing.assert_array_equal(episode.timesteps.last, 9 * [False] + [True])


def test_missing_attention_and_rendering():
    core = make_core("lstm", "debug")
    acting, stream, params = untrained("Catch-bsuite", core, max_steps_in_episode=5)
    episode = record_episode(acting, stream, params, jax.random.key(1))
    assert render_episode(stream, episode) is None
    with pytest.raises(ValueError, match="has no attention: its policy is not a transformer"):
        episode.attention_to(0)


def test_further_episodes_are_not_recompiled():
    core = make_core("gtrxl", "debug")
    acting, stream, params = untrained("TMazePassive-v0", core, corridor_length=4)
    record_episode(acting, stream, params, jax.random.key(0))
    programs = [evaluation._play, policy._segment]
    before = [program._cache_size() for program in programs]
    record_episode(acting, stream, jax.tree.map(lambda x: 2 * x, params), jax.random.key(1))
    assert [program._cache_size() for program in programs] == before


class TooLong(PassiveTMaze):
    """Ends two actions after its time limit."""

    def is_terminated(self, state, params):
        return state.time == params.max_steps_in_episode + 2


def test_episode_longer_than_its_limit_is_refused(monkeypatch):
    _, params = make_env("TMazePassive-v0", corridor_length=2, max_steps_in_episode=6)
    stream = Stream(TooLong(), params, 1)
    monkeypatch.setattr(evaluation, "MAX_CHUNK_STEPS", 4)  # the second part ends with the episode
    random = RandomPolicy(stream.action_space)
    with pytest.raises(ValueError, match="has not ended after 6 actions, but its time limit is 6"):
        record_episode(random, stream, (), jax.random.key(1))
