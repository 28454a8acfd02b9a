"""The presets of RATE's tasks train on data of their shapes."""

import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from gtrxl_jax.acting.collecting import collect
from gtrxl_jax.acting.scripted import RandomPolicy
from gtrxl_jax.data import dataset_spaces
from gtrxl_jax.envs import make_env
from gtrxl_jax.nn.encoders import LinearEncoder, NatureEncoder, SmallConvEncoder
from gtrxl_jax.nn.sequence.registry import PRESETS, model_config
from gtrxl_jax.offline.config import preset
from gtrxl_jax.offline.trainer import OfflineTrainer
from tests.data.sets import make_set
from tests.jobs import changed
from tests.tiers import slow_except

pytestmark = pytest.mark.integration


def image(*shape):
    return Box(0, 255, shape, np.uint8)


def floats(size, dtype=np.float32):
    return Box(-np.inf, np.inf, (size,), dtype)


# The preset, spaces and the encoder that they take. Images are [H, W, C].
SHAPES = {
    "tmaze": ("tmaze", floats(4), Discrete(4), LinearEncoder),
    "aar": ("aar", floats(3), Discrete(3), LinearEncoder),
    "vizdoom": ("vizdoom", image(64, 112, 3), Discrete(3), NatureEncoder),
    "minigrid": ("minigrid", image(84, 84, 3), Discrete(3), NatureEncoder),
    "minigrid, symbols": ("minigrid", image(7, 7, 3), Discrete(7), SmallConvEncoder),
    "minigrid, of this package": ("minigrid", None, None, LinearEncoder),
    "memory-maze": ("memory-maze", image(64, 64, 3), Discrete(6), NatureEncoder),
    "atari": ("atari", image(84, 84, 4), Discrete(18), NatureEncoder),
    "mujoco": ("mujoco", floats(17, np.float64), Box(-1.0, 1.0, (6,)), LinearEncoder),
}
every_shape = pytest.mark.parametrize("name", SHAPES)


def trainer_of(name, **overrides):
    """Return a trainer of the preset's own size on a small set of its shape."""
    preset_name, observation, action, _ = SHAPES[name]
    if observation is None:
        env, params = make_env("MiniGrid-MemoryS9-v0", max_steps_in_episode=6)
        whole = collect(
            env, params, RandomPolicy(env.action_space(params)), 3, jax.random.key(0), num_envs=3
        )
    else:
        whole = make_set((4, 6), dataset_spaces(observation, action))
    config = changed(
        preset("debug"),
        env__name="",
        evaluation__lengths=(),
        model=model_config("rate", preset_name, **overrides),
        optimizer__warmup=0.0,
        unroll=3,
        batch_size=4,
        devices=1,
        # Quicker to compile than the gradient through the memory.
        bptt=0,
        remat=False,
    )
    return OfflineTrainer(config, whole)


def test_every_task_has_a_shape():
    assert {name for name, *_ in SHAPES.values()} == PRESETS.keys() - {"small", "debug"}


@every_shape
def test_encoder_fits_observations(name):
    encoder = trainer_of(name).model.embedding.observation
    assert type(encoder) is SHAPES[name][-1]


@pytest.mark.parametrize(
    "name",
    slow_except(
        {preset: name for name, (preset, *_) in SHAPES.items()}.values(),
        quick=["tmaze"],
    ),
)
def test_update_of_whole_size_has_shapes(name):
    """Traced, not compiled."""
    trainer = trainer_of(name)
    data = next(trainer.feed(1, trainer.mesh()))[1]
    state = jax.eval_shape(trainer.init, 0)
    after, _ = jax.eval_shape(lambda state, data: trainer.update(state, data, 0), state, data)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), (after.params, after.update)) == jax.tree.map(
        lambda x: (x.shape, x.dtype), (state.params, state.update)
    )
    blocks = [part for part in state.params if part.startswith("blocks_")]
    assert len(blocks) == PRESETS[SHAPES[name][0]]["layers"]


# `test_dataset_alone.py` trains on vectors and continuous actions.
@pytest.mark.parametrize(
    "name",
    ["memory-maze", "mujoco", "vizdoom", "atari", "minigrid, of this package"],
)
@pytest.mark.slow
def test_updates_decrease_loss(name):
    """One layer of the preset's width and heads, and its encoder."""
    trainer = trainer_of(name, layers=1, dropout=0.0, attention_dropout=0.0)
    data = next(trainer.feed(1, trainer.mesh()))[1]
    update = jax.jit(lambda state, data: trainer.update(state, data, 0))
    state, losses = jax.jit(trainer.init)(0), []
    for _ in range(20):
        state, metrics = update(state, data)
        losses.append(float(metrics["loss"]))
    assert all(value for name, value in metrics.items() if name.startswith("finite/"))
    assert np.mean(losses[-3:]) < 0.8 * losses[0], losses
