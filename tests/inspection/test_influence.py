"""Influence against episodes with a replaced step, and against integrated gradients.

A step is replaced by the mean of the episode, or by its mirror image in it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax import Stream, load, make_agent, make_core, make_env, zero_timestep
from gtrxl_jax.acting.evaluation import record_episode
from gtrxl_jax.acting.policy import AgentPolicy
from gtrxl_jax.inspection import influence as module
from gtrxl_jax.inspection.episode import inspect_episode
from gtrxl_jax.inspection.influence import influence
from gtrxl_jax.nn.agent import make_q_network
from gtrxl_jax.online.r2d2 import EpsilonGreedyPolicy
from tests import jobs  # noqa: F401, registers its environments
from tests.offline.test_attention import recorded
from tests.pages import ROOT
from tests.tiers import slow_except

pytestmark = pytest.mark.integration

CORES = {"gtrxl": {"heads": 2, "memory_size": 4}, "lstm": {}, "mingru": {}, "s5": {}}


def play(core, env="TMazePassive-v0", make=make_agent, **settings):
    """Return a random agent far from uniform, its parameters, and an episode of random actions."""
    of_env = {"corridor_length": 5, "max_steps_in_episode": 7} if "Maze" in env else {}
    stream = Stream(*make_env(env, **of_env), num_envs=1)
    spaces = stream.observation_space, stream.action_space
    core = make_core(core, width=8, layers=2, **CORES.get(core, {}))
    agent = make(core, *spaces, encoder_width=8, head_width=8, **settings)
    example = zero_timestep(*spaces, 1, 1)
    shapes = jax.eval_shape(agent.init, jax.random.key(0), agent.initial_memory(1), example)
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda p: jnp.asarray(0.6 * rng.standard_normal(p.shape), p.dtype), shapes["params"]
    )
    if make is make_agent:
        acting = AgentPolicy(agent)
    else:
        acting = EpsilonGreedyPolicy(agent, epsilons=(0.5,))
    episode = record_episode(acting, stream, params, jax.random.key(3))
    timesteps = jax.tree.map(lambda x: x[:-1], episode.timesteps)
    return agent, params, timesteps, jax.tree.map(lambda x: x[1:], episode.timesteps.action)


def decisions_of(*episode):
    """Return the influence on decisions of a policy without a memory by segments."""
    found = influence(*episode)
    assert found.memory is None
    return found.decisions


def outputs(agent, params, timesteps, x_TD):
    """Return what the heads compute in an episode with the given encodings."""
    bound = agent.bind({"params": params})
    first_1T = jnp.asarray(timesteps.first)[None]
    _, y_1TD = bound.core(agent.initial_memory(1), x_TD[None], first_1T)
    return jax.tree.map(lambda x: x[0], bound.heads(y_1TD, None))


def replacements(x_TD, step):
    """Return an episode with the step replaced by the mean, and by its mirror image."""
    mean_D = x_TD.mean(axis=0)
    return x_TD.at[step].set(mean_D), x_TD.at[step].set(2 * mean_D - x_TD[step])


def encoded(agent, params, timesteps):
    return agent.bind({"params": params}).encode(jax.tree.map(jnp.asarray, timesteps))


@pytest.mark.parametrize("core", slow_except(CORES, {"lstm"}))
@pytest.mark.parametrize("chunk", slow_except([3, 32], {3}))
def test_a_step_counts_as_much_as_its_replacement_changes(core, chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)
    agent, params, timesteps, actions = play(core)
    x_TD = encoded(agent, params, timesteps)

    logits_of = jax.jit(lambda x_TD: outputs(agent, params, timesteps, x_TD).policy.logits)

    def log_odds(x_TD):
        p_TA = jax.nn.softmax(logits_of(x_TD))
        p_T = np.asarray(p_TA, np.float64)[np.arange(len(x_TD)), actions]
        return np.log(p_T / (1 - p_T))

    found = decisions_of(AgentPolicy(agent), params, timesteps, actions)
    steps = len(x_TD)
    assert found.shape == (steps, steps)
    for step in range(steps):
        changes = [np.abs(log_odds(y) - log_odds(x_TD)) for y in replacements(x_TD, step)]
        np.testing.assert_allclose(found[:, step], np.maximum(*changes), rtol=2e-3, atol=2e-5)
    assert np.tril(found, -1).max() > 0.01  # earlier steps count
    np.testing.assert_allclose(np.triu(found, 1), 0, atol=1e-5)  # later ones do not


@pytest.mark.parametrize("core", slow_except(CORES, {"lstm"}))
def test_it_is_the_integrated_gradient(core):
    agent, params, timesteps, actions = play(core)
    x_TD = encoded(agent, params, timesteps)
    toward_TD = x_TD.mean(axis=0, keepdims=True) - x_TD

    def log_odds(far, step):
        x = x_TD.at[step].add(far * toward_TD[step])
        logits_TA = outputs(agent, params, timesteps, x).policy.logits
        log_p_T = jax.nn.log_softmax(logits_TA)[np.arange(len(x)), actions]
        return log_p_T - jnp.log1p(-jnp.exp(log_p_T))

    gradient = jax.jit(jax.vmap(jax.jacfwd(log_odds), in_axes=(0, None)))
    middles = jnp.asarray((np.arange(1000) + 0.5) / 500, x_TD.dtype)  # across the kinks of ReLUs
    parts = [gradient(middles, step) for step in range(len(x_TD))]
    to_mean, to_mirror = (
        np.abs(np.stack([part[:count].sum(axis=0) / 500 for part in parts], axis=-1))
        for count in (500, 1000)
    )
    found = decisions_of(AgentPolicy(agent), params, timesteps, actions)
    np.testing.assert_allclose(found, np.maximum(to_mean, to_mirror), rtol=1e-2, atol=4e-3)


def test_without_memory_only_the_present_counts():
    agent, *episode = play("lstm", memoryless=True)
    found = decisions_of(AgentPolicy(agent), *episode)
    np.testing.assert_allclose(found, np.diag(np.diag(found)), atol=1e-5)
    assert np.diag(found).max() > 0.01


def test_hybrid_actions():
    agent, params, timesteps, actions = play("lstm", "Clock-v0")
    x_TD = encoded(agent, params, timesteps)

    policy_of = jax.jit(lambda x_TD: outputs(agent, params, timesteps, x_TD).policy)

    def scores(x_TD):
        policy = policy_of(x_TD)
        p_TA = jax.nn.softmax(policy.categoricals[0].logits)
        p_T = p_TA[np.arange(len(x_TD)), actions["discrete"][:, 0]]
        mean_TC = policy.gaussian.mean / policy.gaussian.scale
        return np.concatenate([mean_TC, np.log(p_T / (1 - p_T))[:, None]], axis=1)

    changes = [np.linalg.norm(scores(y) - scores(x_TD), axis=1) for y in replacements(x_TD, 0)]
    found = decisions_of(AgentPolicy(agent), params, timesteps, actions)
    np.testing.assert_allclose(found[:, 0], np.maximum(*changes), rtol=2e-3, atol=2e-5)


def test_action_values():
    agent, params, timesteps, actions = play("lstm", make=make_q_network)
    x_TD = encoded(agent, params, timesteps)

    def lead(x_TD):
        values_TA = np.array(outputs(agent, params, timesteps, x_TD))
        chosen_T = values_TA[np.arange(len(x_TD)), actions]
        values_TA[np.arange(len(x_TD)), actions] = -np.inf
        return chosen_T - values_TA.max(axis=1)

    changes = [np.abs(lead(y) - lead(x_TD)) for y in replacements(x_TD, 1)]
    found = decisions_of(AgentPolicy(agent), params, timesteps, actions)
    np.testing.assert_allclose(found[:, 1], np.maximum(*changes), rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize(
    "name", slow_except(["rate", "elmur", "dt", "dt-gpt", "bc-lstm"], {"bc-lstm"})
)
def test_offline_models(name, monkeypatch):
    """Their encoder of vectors is linear: it maps replaced observations to replaced encodings."""
    monkeypatch.setattr(module, "CHUNK", 4)
    policy, params, episode = recorded(name)  # of sampled actions
    timesteps = jax.tree.map(lambda x: jnp.asarray(x)[:-1], episode.timesteps)
    actions = jnp.asarray(episode.timesteps.action[1:])
    model, steps = policy.model, len(actions)

    @jax.jit
    def play(observations):
        """Return the log-odds of the actions, and the memory's vectors at each step."""
        bound, odds, vectors = model.bind({"params": params}), [], []
        state = bound.start(1)
        to_go = 1.0 - jnp.cumsum(timesteps.reward)
        for t in range(steps):
            seen = to_go[t : t + 1], observations[t : t + 1], timesteps.first[t : t + 1]
            state, distribution = bound.decode(state, *seen)
            if name == "rate":
                vectors.append(state.tokens.tokens)
            elif name == "elmur":
                vectors.append([layer.vectors[0] for layer in state.memory.layers])
            p = jax.nn.softmax(distribution.logits)[0, actions[t]]
            odds.append(jnp.log(p) - jnp.log1p(-p))
            state = bound.observe_action(state, actions[t : t + 1])
        return jnp.stack(odds), vectors

    seen = timesteps.observation
    odds, vectors = play(seen)
    replaced = [[play(y) for y in replacements(seen, step)] for step in range(steps)]
    changes = np.stack([[np.abs(y - odds) for y, _ in both] for both in replaced], axis=-1)
    found = influence(policy, params, timesteps, actions)
    np.testing.assert_allclose(found.decisions, changes.max(axis=0), rtol=5e-3, atol=1e-4)
    assert np.tril(found.decisions, -1).max() > 0.01
    if name not in ("rate", "elmur"):
        assert found.memory is None
        return
    assert found.memory.shape[::3] == (3, steps)
    x = np.asarray(vectors, np.float64)[:: model.context]
    for step, both in enumerate(replaced):
        y_2 = np.stack([np.asarray(others, np.float64)[:: model.context] for _, others in both])
        size = np.linalg.norm(x, axis=-1) + np.linalg.norm(y_2, axis=-1)
        expected = (np.linalg.norm(x - y_2, axis=-1) / size).max(axis=0)
        np.testing.assert_allclose(found.memory[..., step], expected, rtol=5e-3, atol=1e-4)
        # A segment holds nothing of its own steps, and something of those before.
        own = step // model.context
        assert not found.memory[: own + 1, ..., step].any()
    assert found.memory[1:, ..., 0].max() > 0.01


@pytest.mark.slow  # tests/test_checkpoints.py is quick
def test_a_trained_agent_decides_by_the_cue():
    """At the end of its corridor, nothing in the past counts as much as the sight of the object."""
    episode = inspect_episode(load(ROOT / "checkpoints" / "minigrid"), seed=2)
    last = episode.num_actions - 1
    past = episode.influence[last, :last]
    assert past.argmax() == episode.cue
    assert past[episode.cue] > 5 * np.delete(past, episode.cue).max()


@pytest.mark.slow
def test_rate_decides_by_a_cue_five_segments_ago():
    """Of all steps before the junction, only the cue counts, which memory tokens have carried."""
    episode = inspect_episode(load(ROOT / "checkpoints" / "rate"), seed=1)
    last = episode.num_actions - 1
    past = episode.influence[last, :last]
    assert past.argmax() == episode.cue == 0
    assert past[0] > 100 * past[1:].max()
    # It is what memory tokens hold, in each segment after the first; the corridor is not.
    assert len(episode.held) == 5
    assert episode.held[1:, ..., 0].min() > 0.3
    assert episode.held[..., 1:].max() < 0.05
