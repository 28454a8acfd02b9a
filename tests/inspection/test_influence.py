"""Influence against episodes with a replaced step, and against integrated gradients.

A step is replaced by the mean of the episode, or by the steps of other episodes.
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

REVERSED, SOME = slice(None, None, -1), slice(2, 4)
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


def others_of(timesteps):
    """Return other episodes: the steps in reverse order, and a few of them."""
    return [jax.tree.map(lambda x, part=part: x[part], timesteps) for part in (REVERSED, SOME)]


def decisions_of(policy, params, timesteps, actions):
    """Return the influence on decisions of a policy without a memory by segments."""
    found = influence(policy, params, timesteps, actions, others_of(timesteps))
    assert found.memory is None
    return found.decisions


def outputs(agent, params, timesteps, x_TD):
    """Return what the heads compute in an episode with the given encodings."""
    bound = agent.bind({"params": params})
    first_1T = jnp.asarray(timesteps.first)[None]
    _, y_1TD = bound.core(agent.initial_memory(1), x_TD[None], first_1T)
    return jax.tree.map(lambda x: x[0], bound.heads(y_1TD, None))


def replacements(x_TD, step):
    """Return the episode with the step replaced by the mean, and by that of each of `others_of`."""
    others = [other[min(step, len(other) - 1)] for other in (x_TD[REVERSED], x_TD[SOME])]
    return [x_TD.at[step].set(y_D) for y_D in (x_TD.mean(axis=0), *others)]


def join(to_mean, *to_others):
    """Return the influence of a step from the changes by its replacements."""
    return np.maximum(to_mean, np.mean(to_others, axis=0))


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
        np.testing.assert_allclose(found[:, step], join(*changes), rtol=2e-3, atol=2e-5)
    assert np.tril(found, -1).max() > 0.01  # earlier steps count
    np.testing.assert_allclose(np.triu(found, 1), 0, atol=1e-5)  # later ones do not


@pytest.mark.parametrize("core", slow_except(CORES, {"lstm"}))
def test_it_is_the_integrated_gradient(core):
    agent, params, timesteps, actions = play(core)
    x_TD = encoded(agent, params, timesteps)

    def log_odds(far, x_TD, y_TD):
        x_TD = x_TD + far * (y_TD - x_TD)
        logits_TA = outputs(agent, params, timesteps, x_TD).policy.logits
        log_p_T = jax.nn.log_softmax(logits_TA)[np.arange(len(x_TD)), actions]
        return log_p_T - jnp.log1p(-jnp.exp(log_p_T))

    gradient = jax.jit(jax.vmap(jax.jacfwd(log_odds), in_axes=(0, None, None)))
    middles = jnp.asarray((np.arange(500) + 0.5) / 500, x_TD.dtype)  # across the kinks of ReLUs
    changes = [
        [np.abs(gradient(middles, x_TD, y_TD).mean(axis=0)) for y_TD in replacements(x_TD, step)]
        for step in range(len(x_TD))
    ]
    expected = np.stack([join(*of_step) for of_step in changes], axis=-1)
    found = decisions_of(AgentPolicy(agent), params, timesteps, actions)
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=4e-3)


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
    np.testing.assert_allclose(found[:, 0], join(*changes), rtol=2e-3, atol=2e-5)


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
    np.testing.assert_allclose(found[:, 1], join(*changes), rtol=2e-3, atol=2e-5)


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
    expected = np.stack([join(*(np.abs(y - odds) for y, _ in each)) for each in replaced], axis=-1)
    found = influence(policy, params, timesteps, actions, others_of(timesteps))
    np.testing.assert_allclose(found.decisions, expected, rtol=5e-3, atol=1e-4)
    assert np.tril(found.decisions, -1).max() > 0.01
    if name not in ("rate", "elmur"):
        assert found.memory is None
        return
    assert found.memory.shape[::3] == (3, steps)
    x = np.asarray(vectors, np.float64)[:: model.context]
    for step, each in enumerate(replaced):
        y_R = np.stack([np.asarray(held, np.float64)[:: model.context] for _, held in each])
        size_R = np.linalg.norm(x, axis=-1) + np.linalg.norm(y_R, axis=-1)
        expected = join(*(np.linalg.norm(x - y_R, axis=-1) / size_R))
        np.testing.assert_allclose(found.memory[..., step], expected, rtol=5e-3, atol=1e-4)
        # A segment holds nothing of its own steps, and something of those before.
        own = step // model.context
        assert not found.memory[: own + 1, ..., step].any()
    assert found.memory[1:, ..., 0].max() > 0.01


@pytest.mark.slow  # tests/test_checkpoints.py is quick
def test_a_trained_agent_decides_by_the_cue():
    """At the end of its corridor, nothing in the past counts as much as the sight of the object."""
    episode = inspect_episode(load(ROOT / "checkpoints" / "minigrid"), seed=6)
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


@pytest.mark.slow
def test_the_cue_counts_whichever_it_is():
    """Also where the action is that of an agent that has seen no cue."""
    run = load("bundled://tmaze")
    for seed in range(8):
        episode = inspect_episode(run, seed=seed)
        past = episode.influence[-1, :-1]
        assert past.argmax() == episode.cue == 0
        assert past[0] > 5 * past[1:].max()
