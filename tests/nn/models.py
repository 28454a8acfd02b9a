"""Small sequence models and random steps for them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from gymnax.environments import spaces

from gtrxl_jax.nn.encoders import make_encoder
from gtrxl_jax.nn.sequence.cloning import MLPCloning
from gtrxl_jax.nn.sequence.model import ModelConfig
from gtrxl_jax.nn.sequence.registry import make_model, model_config
from gtrxl_jax.nn.sequence.trajectory import ActionHead
from gtrxl_jax.segments import Segments
from gtrxl_jax.specs import action_spec
from tests.nn.cores import random_values

BATCH, SEGMENTS, CONTEXT = 2, 3, 4
OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,), jnp.float32)
ACTIONS = spaces.Discrete(4)

# Structural variants: valves, caches longer and shorter than a segment, blocks, no memory.
MODELS = {
    "rate": {},
    "rate, ca-1": {"valve": "ca-1"},
    "rate, g": {"valve": "g"},
    "rate, gru": {"valve": "gru"},
    "rate, lstm": {"valve": "lstm"},
    "rate, no valve": {"valve": "none"},
    "rate, short cache": {"cache_size": 5},
    "rate, long cache, gtrxl": {"cache_size": 20, "block": "gtrxl"},
    "rate, cache only": {"memory_tokens": 0, "cache_size": 7, "block": "trxl-i"},
    "rate, one token": {"memory_tokens": 1, "feedforward_width": 0},
    "elmur": {"name": "elmur", "blend": 0.3, "max_distance": 5},
    "dt": {"name": "dt"},
    "dt-gpt": {"name": "dt-gpt", "max_timestep": 6},
    "dmamba": {"name": "dmamba"},
    "core, mlstm": {"name": "core", "core": "mlstm", "core_settings": {"heads": 2}},
    "bc-mlp": {"name": "bc-mlp"},
    "bc-lstm": {"name": "bc-lstm"},
}


VALVES_ALONE = {"rate, ca-1", "rate, g", "rate, gru", "rate, lstm", "rate, no valve"}
"""Variants of "rate" that differ in what becomes of the memory tokens between segments."""


@dataclasses.dataclass(frozen=True)
class Shallow(ModelConfig):
    """A model with a setting of its own, whose segments are connected."""

    hidden: int = 8

    is_recurrent = True

    def make(self, observation_space, action_space, context, param_dtype):
        encoder = make_encoder(observation_space, self.encoder, param_dtype=param_dtype)
        head = ActionHead(action_spec(action_space), param_dtype)
        return MLPCloning(encoder, head, (self.hidden,), self.dropout, param_dtype=param_dtype)


def small_model(name="rate", action_space=ACTIONS, **overrides):
    """Return the model called `name` in `MODELS`, its number of segments and their length."""
    settings = {"name": "rate", "layers": 2, **MODELS[name], **overrides}
    config = model_config(settings.pop("name"), "debug", **settings)
    segments, context = (SEGMENTS, CONTEXT) if config.is_recurrent else (1, SEGMENTS * CONTEXT)
    model = make_model(config, OBSERVATIONS, action_space, context, jnp.result_type(float))
    return model, segments, context


def random_steps(segments, context, seed=0):
    """Return random steps `[B, K, T]`."""
    rng = np.random.default_rng(seed)
    shape = (BATCH, segments, context)
    timesteps = np.arange(segments * context, dtype=np.int32).reshape(1, segments, context)
    return Segments(
        observations=jnp.asarray(rng.standard_normal((*shape, 3))),
        actions=jnp.asarray(rng.integers(0, 4, shape), jnp.int32),
        returns_to_go=jnp.asarray(rng.standard_normal(shape)),
        timesteps=jnp.asarray(np.broadcast_to(timesteps, shape)),
        mask=jnp.ones(shape, bool),
    )


def segment(steps, n):
    return jax.tree.map(lambda x: x[:, n], steps)


def random_params(model, steps, seed=0):
    """Return random parameters, none of which is zero."""
    return random_values(param_shapes(model, steps), seed)


def param_shapes(model, steps):
    def init():
        first = segment(steps, 0)
        initialize = nn.init(lambda model: model(model.initial_memory(BATCH), first), model)
        return initialize(jax.random.key(0))

    return jax.eval_shape(init)


@functools.partial(jax.jit, static_argnums=0)
def run_segments(model, params, steps):
    """Return the memory after all segments and the logits `[B, K * T, A]`."""

    def one(memory, segment):
        memory, policy = model.apply(params, memory, segment)
        return memory, policy.logits

    memory = model.apply(params, BATCH, method="initial_memory")
    by_segment = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps)
    memory, logits_KBTA = jax.lax.scan(one, memory, by_segment)
    logits = jnp.swapaxes(logits_KBTA, 0, 1)
    return memory, logits.reshape(BATCH, -1, logits.shape[-1])
