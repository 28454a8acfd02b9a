"""Sequence models as policies: what they see of the episodes before."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.offline.policy import PlayingState, SequencePolicy
from gtrxl_jax.specs import action_spec
from gtrxl_jax.timestep import TimeStep
from tests.nn.models import (
    ACTIONS,
    MODELS,
    VALVES_ALONE,
    random_params,
    random_steps,
    small_model,
)

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.integration]

STEPS, BATCH = 15, 3
RESTARTS = {0: [6], 1: [], 2: [3, 8]}
"""The steps at which rows begin another episode; segments have 4 steps."""


def timesteps(first_TB):
    """Return random time steps `[T, B]`."""
    rng = np.random.default_rng(0)
    return TimeStep(
        observation=jnp.asarray(rng.standard_normal((STEPS, BATCH, 3))),
        action=jnp.zeros((STEPS, BATCH), jnp.int32),
        reward=jnp.where(first_TB, 0, jnp.asarray(rng.standard_normal((STEPS, BATCH)))),
        discount=jnp.ones((STEPS, BATCH)),
        first=first_TB,
        last=jnp.zeros((STEPS, BATCH), bool),
    )


@pytest.mark.usefixtures("unchecked")
def test_another_batch_size_than_that_of_the_state_raises():
    policy = SequencePolicy(None, None, 0.0)
    step = jax.tree.map(lambda x: x[0], timesteps(jnp.zeros((STEPS, BATCH), bool)))
    for rows in (1, 2):
        state = PlayingState((), jnp.zeros(rows), jnp.zeros(rows, jnp.int32))
        with pytest.raises(
            ValueError, match=rf"shape \(3,\), but the state has {rows} rows: start"
        ):
            policy.act((), state, step, jax.random.key(0))


@functools.partial(jax.jit, static_argnums=0)
def logits(policy, params, steps_TB):
    """Return the logits `[T, B, A]` of a new policy."""

    def act(state, step_B):
        state, _, distribution = policy.act(params, state, step_B, jax.random.key(0))
        return state, distribution.logits

    return jax.lax.scan(act, policy.init(params, BATCH), steps_TB)[1]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in MODELS if name not in VALVES_ALONE),
        ("rate", {"restart_every": 5}),
        ("rate", {"memory_noise": True}),
    ],
)
def test_each_episode_is_played_like_the_first(name, settings):
    """Exactly, also where only some of the environments begin another one."""
    model, segments, context = small_model(name)
    variables = random_params(model, random_steps(segments, context))
    policy = SequencePolicy(model, action_spec(ACTIONS), 1.0, **settings)
    first_TB = np.zeros((STEPS, BATCH), bool)
    first_TB[0] = True
    for row, restarts in RESTARTS.items():
        first_TB[restarts, row] = True
    steps = timesteps(jnp.asarray(first_TB))
    played = logits(policy, variables["params"], steps)
    for row, restarts in RESTARTS.items():
        ends = [*restarts, STEPS]
        for begin, end in zip([0, *restarts], ends, strict=True):
            # The same program, in which this row begins with this episode.
            alone = jax.tree.map(lambda x, b=begin: jnp.roll(x, -b, axis=0), steps)
            fresh = logits(policy, variables["params"], alone)
            np.testing.assert_array_equal(played[begin:end, row], fresh[: end - begin, row])
    assert np.abs(played[6, 0] - played[0, 0]).max() > 1e-3
