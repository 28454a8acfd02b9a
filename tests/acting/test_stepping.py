"""The exported step acts as the policy does."""

import dataclasses

import jax
import jax.export
import numpy as np
import pytest

from gtrxl_jax.acting.stepping import export_step
from gtrxl_jax.nn.sequence.registry import model_config
from gtrxl_jax.offline.config import preset
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.specs import action_spec, environment_action
from gtrxl_jax.timestep import zero_timestep
from tests.jobs import changed, small_job
from tests.nn.cores import random_values

pytestmark = pytest.mark.integration


def hybrid_agent():
    """In bfloat16, with actions in two parts, one of them masked, in episodes of up to 3."""
    return OnlineTrainer(
        small_job("gtrxl", env__name="Clock-v0", env__params={}, core__dtype="bfloat16")
    )


def model():
    config = changed(
        preset("debug"), model=model_config("rate", "debug"), evaluation__target_return=1.0
    )
    return OfflineTrainer(config)


@pytest.mark.parametrize(
    ("make", "first", "masked"), [(hybrid_agent, "10010100", True), (model, "1000000", False)]
)
def test_step_equals_policy(make, first, masked):
    """Over several episodes for agents, one for sequence models."""
    trainer = make()
    params = random_values(jax.eval_shape(trainer.init, 0).params)
    policy, spaces = trainer.policy, (trainer.observation_space, trainer.action_space)
    exported = export_step(policy, params, *spaces, ["cpu"], masked=masked)
    exported = jax.export.deserialize(exported.serialize())
    (state, *_), _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    state = [np.full(array.shape, 7, array.dtype) for array in state]
    step, act = jax.jit(exported.call), jax.jit(policy.act)

    memory = jax.jit(policy.init, static_argnums=1)(params, 1)
    example = zero_timestep(*spaces, 1)
    action, random = example.action, np.random.default_rng(0)
    for t, starts in enumerate(np.array(list(first)) == "1"):
        timestep = dataclasses.replace(
            example,
            observation=jax.tree.map(
                lambda x: random.uniform(0, 2, x.shape).astype(x.dtype), example.observation
            ),
            reward=np.float32([0 if starts else random.normal()]),
            action=example.action if starts else action_spec(spaces[1]).clip(action),
            first=np.array([starts]),
            legal=np.arange(3)[None] == random.integers(3) if masked else None,
        )
        now = jax.tree.map(lambda x: np.asarray(x)[0], timestep)
        mask = [now.legal] if masked else []
        state, chosen = step(state, now.observation, now.reward, now.first, np.uint32(t), *mask)
        memory, action, _ = act(params, memory, timestep, jax.random.key(t))
        expected = jax.tree.map(lambda x: x[0], environment_action(spaces[1], action))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), chosen, expected)
        if masked:
            assert now.legal[chosen["discrete"]]
