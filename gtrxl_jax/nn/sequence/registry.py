"""Sequence models by name and preset."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from gtrxl_jax.nn.sequence.cloning import MLPCloningConfig, RecurrentCloningConfig
from gtrxl_jax.nn.sequence.core_model import CoreModelConfig
from gtrxl_jax.nn.sequence.decision_transformer import GPTConfig
from gtrxl_jax.nn.sequence.elmur import ELMURConfig
from gtrxl_jax.nn.sequence.model import ModelConfig, register_model
from gtrxl_jax.nn.sequence.rate import DTConfig, RATEConfig, RMTConfig, TransformerXLConfig
from gtrxl_jax.validation import require_choice, validate

register_model("rate", RATEConfig)
register_model("rmt", RMTConfig)
register_model("trxl", TransformerXLConfig)
register_model("elmur", ELMURConfig)
register_model("dt", DTConfig)
register_model("dt-gpt", GPTConfig)
register_model("dmamba", CoreModelConfig)
register_model("core", CoreModelConfig)
register_model("bc-mlp", MLPCloningConfig)
register_model("bc-lstm", RecurrentCloningConfig)

PRESETS: dict[str, dict[str, Any]] = {
    "small": dict(),
    "debug": dict(layers=1, width=16, heads=2, head_width=8, memory_tokens=2, memory_slots=2),
    # RATE's table 5 and the configurations that its authors published.
    "tmaze": dict(layers=8, heads=10, cache_size=2, dropout=0.05),
    "aar": dict(layers=6, heads=8, cache_size=2, dropout=0.1, attention_dropout=0.05),
    "vizdoom": dict(layers=6, width=128, heads=8, dropout=0.2, attention_dropout=0.05),
    "minigrid": dict(layers=8, heads=10, dropout=0.2, attention_dropout=0.05),
    "memory-maze": dict(
        layers=6, heads=8, memory_tokens=15, valve_heads=4, dropout=0.5, attention_dropout=0.2
    ),
    "atari": dict(
        layers=6, width=128, heads=8, memory_tokens=15, dropout=0.2, attention_dropout=0.05
    ),
    "mujoco": dict(layers=3, width=128, heads=1, dropout=0.2, attention_dropout=0.05),
}


def model_config(name: str = "rate", preset: str = "small", **overrides: Any) -> ModelConfig:
    """Return the config of a model: a preset with fields overridden.

    Args:
      name: see `ModelConfig.name`.
      preset: "small" (minutes on a laptop), "debug" (seconds), or the paper's for a task: "tmaze",
        "aar", "vizdoom", "minigrid", "memory-maze", "atari", "mujoco". Models ignore settings of it
        that they do not have.
      overrides: fields of the model's config.

    Raises:
      ValueError: if a name, preset or field is unknown, or a value is invalid.
    """
    require_choice("preset of models", preset, PRESETS)
    kind = ModelConfig.named(name)
    fields = [field.name for field in dataclasses.fields(kind)]
    for field in overrides:
        require_choice(f"setting of {name}", field, fields)
    settings = {field: value for field, value in PRESETS[preset].items() if field in fields}
    config = kind(**{"name": name, **settings, **overrides})
    validate(config, "model.")
    return config


def make_model(
    config: ModelConfig,
    observation_space: Any,
    action_space: Any,
    context: int,
    param_dtype: Any = jnp.float32,
) -> nn.Module:
    """Build a model for an environment's spaces; for the arguments, see `ModelConfig.make`.

    Raises:
      ValueError: if the config is invalid or the encoder does not fit the observations.
      TypeError: if a space is not supported.
    """
    validate(config, "model.")
    return config.make(observation_space, action_space, context, param_dtype)
