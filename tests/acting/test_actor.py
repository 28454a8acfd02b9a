"""An actor acts as its policy does, from NumPy to NumPy."""

import dataclasses

import jax
import numpy as np
import pytest
from gymnasium import spaces

from gtrxl_jax.acting.actor import Actor
from gtrxl_jax.acting.policy import AgentPolicy
from gtrxl_jax.acting.scripted import RandomPolicy
from gtrxl_jax.nn.agent import make_agent
from gtrxl_jax.nn.cores.registry import make_core
from gtrxl_jax.nn.sequence.registry import model_config
from gtrxl_jax.offline.config import preset
from gtrxl_jax.offline.policy import SequencePolicy
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.specs import action_spec, environment_action
from gtrxl_jax.timestep import zero_timestep
from tests.jobs import changed
from tests.nn.cores import random_values

OBSERVATIONS = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(4)})
ACTIONS = spaces.Dict({"continuous": spaces.Box(-1, 1, (1,)), "discrete": spaces.Discrete(3)})


def agent():
    """Return a sampling policy with a memory, its parameters and its spaces."""
    core = make_core("gtrxl", width=8, layers=1, heads=2, memory_size=4)
    made = make_agent(core, OBSERVATIONS, ACTIONS, encoder_width=8, head_width=8)
    example = zero_timestep(OBSERVATIONS, ACTIONS, 1, 1)
    shapes = jax.eval_shape(made.init, jax.random.key(0), made.initial_memory(1), example)
    return AgentPolicy(made), random_values(shapes["params"]), OBSERVATIONS, ACTIONS


def model():
    config = changed(
        preset("debug"), model=model_config("rate", "debug"), evaluation__target_return=1.0
    )
    trainer = OfflineTrainer(config)
    params = random_values(jax.eval_shape(trainer.init, 0).params)
    return trainer.policy, params, trainer.observation_space, trainer.action_space


@pytest.mark.integration
@pytest.mark.parametrize(
    ("make", "first", "masked"),
    [
        (agent, "1001010", True),
        pytest.param(agent, "0000000", False, marks=pytest.mark.slow),
        (model, "1001000", False),
    ],
)
def test_actor_equals_policy(make, first, masked):
    """In several episodes; without `first`, they share one memory."""
    policy, params, *space = make()
    actor, act = Actor(policy, params, *space, seed=3), jax.jit(policy.act)
    example, random = zero_timestep(*space, 1), np.random.default_rng(0)
    action = state = None
    for t, starts in enumerate(np.array(list(first)) == "1"):
        fresh = starts or t == 0
        timestep = dataclasses.replace(
            example,
            observation=jax.tree.map(
                lambda x: random.uniform(0, 2, x.shape).astype(x.dtype), example.observation
            ),
            reward=np.float32([0 if fresh else random.normal()]),
            action=example.action if fresh else action_spec(space[1]).clip(action),
            first=np.array([fresh]),
            legal=np.arange(3)[None] == random.integers(3) if masked else None,
        )
        state = policy.init(params, 1) if fresh else state
        key = jax.random.fold_in(jax.random.key(3), t)
        state, action, _ = act(params, state, timestep, key)
        expected = jax.tree.map(lambda x: x[0], environment_action(space[1], action))
        now = jax.tree.map(lambda x: np.asarray(x)[0], timestep)
        # The reward before a first step is that of another episode.
        reward = 7.0 if fresh else float(now.reward)
        chosen = actor(now.observation, reward, bool(starts), *([now.legal] if masked else []))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), chosen, expected)
        if masked:
            assert now.legal[chosen["discrete"]]
            assert chosen in ACTIONS


@pytest.mark.parametrize(
    "action_space",
    [
        spaces.Discrete(3),
        spaces.Box(-2, 2, (2,)),
        spaces.MultiDiscrete([2, 3]),
        spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]),
        ACTIONS,
    ],
)
def test_actions_are_in_the_space(action_space):
    actor = Actor(RandomPolicy(action_space), (), OBSERVATIONS, action_space)
    for _ in range(3):
        action = actor({"a": np.zeros(2, np.float64), "b": np.int64(3)})
        assert action in action_space
        assert all(isinstance(x, np.ndarray | np.generic) for x in jax.tree.leaves(action))


A = np.zeros(2)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("observation", "legal", "error", "message"),
    [
        (
            {"a": np.zeros((1, 2)), "b": 1},
            None,
            ValueError,
            r"\['a'\] has shape \(1, 2\) instead of",
        ),
        ({"a": A}, None, ValueError, "observation must be a dict with the keys a, b"),
        (A, None, ValueError, "observation must be a dict with the keys a, b"),
        ({"a": A, "b": 1.5}, None, TypeError, r"\['b'\] is float64, but its space is"),
        ({"a": A, "b": 9}, None, ValueError, r"\['b'\] is 9, outside Discrete\("),
        ({"a": A * np.nan, "b": 1}, None, ValueError, r"\['a'\]\[0\] is nan, not finite"),
        ({"a": A + 1e300, "b": 1}, None, ValueError, r"\['a'\]\[0\] is 1e\+300, too large for"),
        ({"a": A, "b": 1}, np.ones(2, bool), ValueError, r"legal has shape \(2,\) instead of \(3,"),
        ({"a": A, "b": 1}, np.ones(3), TypeError, "legal is of type float64 instead of bool"),
        ({"a": A, "b": 1}, [0, 1, 2], TypeError, "legal is of type int64 instead of bool"),
        ({"a": A, "b": 1}, np.zeros(3, bool), ValueError, "no choice of discrete dimension 0: all"),
    ],
)
def test_what_does_not_fit_the_spaces_raises(observation, legal, error, message):
    actor = Actor(RandomPolicy(ACTIONS), (), OBSERVATIONS, ACTIONS)
    with pytest.raises(error, match=message):
        actor(observation, legal=legal)


@pytest.mark.usefixtures("unchecked")
def test_offline_models_refuse_masks():
    actor = Actor(SequencePolicy(None, None, 0.0), (), OBSERVATIONS, ACTIONS)
    with pytest.raises(ValueError, match="legal has no effect on an offline model: leave it out"):
        actor({"a": A, "b": 1}, legal=np.ones(3, bool))


def test_masks_may_be_integers():
    choices = spaces.MultiDiscrete([2, 3])
    actor = Actor(RandomPolicy(choices), (), OBSERVATIONS, choices)
    action = actor({"a": A, "b": 1}, legal=np.array([0, 1, 0, 0, 1], np.int8))
    np.testing.assert_array_equal(action, [1, 2])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("reward", "first", "error", "message"),
    [
        (np.nan, False, ValueError, "reward is nan: pass a finite one"),
        (np.zeros(3), True, ValueError, r"reward has shape \(3,\) instead of \(\)"),
        (0.0, np.zeros(2, bool), ValueError, r"first has shape \(2,\) instead of \(\)"),
        (0.0, "False", TypeError, "first is of type <U5 instead of bool"),
    ],
)
def test_other_rewards_and_starts_raise(reward, first, error, message):
    actor = Actor(RandomPolicy(ACTIONS), (), OBSERVATIONS, ACTIONS)
    with pytest.raises(error, match=message):
        actor({"a": A, "b": 1}, reward, first)


def test_texts_that_training_turned_into_tokens_name_the_environment_to_act_in():
    """The space of a run on the host has tokens, and the simulator's own observations texts."""
    space = spaces.MultiDiscrete([5] * 4)
    actor = Actor(RandomPolicy(spaces.Discrete(2)), (), space, spaces.Discrete(2))
    with pytest.raises(ValueError, match=r"observation is a text.*run\.tasks\[0\]\.env\.make\(\)"):
        actor("go to the red ball", 0.0, True)
