"""Memory cores by name and preset, with a common interface.

    memory = core.initial_memory(batch_size)
    memory, y_BTD = core.apply(params, memory, x_BTD, first_BT)             learning: a segment
    cache = core.apply(params, memory, num_steps, method="start")           acting: step by step
    cache, y_BD = core.apply(params, cache, x_BD, first_B, method="step")
    memory = core.apply(params, cache, method="finish")

Both return the same outputs and the same memory, regardless of how the sequence is cut and where
episodes begin. A memory is a pytree of arrays whose leading axis is the batch. Inputs of the wrong
shape or dtype raise an error at trace time (see `gtrxl_jax.nn.inputs`).
"""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp

from gtrxl_jax.nn.core import MemoryCore
from gtrxl_jax.nn.cores.recurrent import CELLS, RecurrentCore
from gtrxl_jax.nn.cores.transformer import TransformerCore
from gtrxl_jax.nn.gates import GATES
from gtrxl_jax.validation import check_choice, choice, number, validate

CORES = ("lstm", "gru", "trxl", "trxl-i", "gtrxl")
DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class CoreConfig:
    """The architecture of a memory core.

    The recurrent cores use only `layers`, `width`, `remat` and `dtype` and ignore the rest, so that
    cores can be swapped by name.
    """

    name: str = choice("gtrxl", CORES)
    """lstm, gru, trxl, trxl-i or gtrxl."""
    layers: int = 2
    """Number of layers."""
    width: int = 64
    """Width of the stream, D."""
    heads: int = 4
    """Number of attention heads, H."""
    head_width: int | None = None
    """Width of a head, K; width / heads by default."""
    memory_size: int = 64
    """Number of past steps that each layer attends to, M."""
    feedforward_width: int | None = None
    """Hidden width of the feed-forward network, F; the stream's width by default."""
    gate: str = choice("gru", tuple(GATES))
    """Gate of gtrxl: input, output, highway, sigtanh or gru."""
    gate_bias: float | None = number(None, at_least=-math.inf)
    """b of the gated identity initialisation; the paper's value by default (gru 2, others 1)."""
    remat: bool = False
    """Recompute activations in the backward pass instead of storing them."""
    dtype: str = choice("float32", DTYPES)
    """Dtype of the activations and the memory: float32 or bfloat16. Parameters stay float32."""

    def check(self) -> None:
        """Raise ValueError if the number of heads does not divide the width."""
        if self.name not in CELLS and self.head_width is None and self.width % self.heads:
            raise ValueError(
                f"core.width {self.width} does not divide into core.heads {self.heads}: "
                "change one of them, or set core.head_width"
            )


TRANSFORMER_PRESETS: dict[str, dict[str, Any]] = {
    # The paper's table states width 256 (128 for thin), but its parameter counts imply 512 (256),
    # which is used here. It does not state F; F = D comes nearest to the counts.
    "paper": dict(layers=12, width=512, heads=8, head_width=64, memory_size=512),
    "thin": dict(layers=12, width=256, heads=4, head_width=64, memory_size=512),
    "small": dict(layers=2, width=64, heads=4, memory_size=64),
    "debug": dict(layers=1, width=16, heads=2, memory_size=8),
}
RECURRENT_PRESETS: dict[str, dict[str, Any]] = {
    "paper": dict(layers=3, width=256),
    "large": dict(layers=12, width=512),
    "small": dict(layers=1, width=64),
    "debug": dict(layers=1, width=16),
}


def core_config(name: str = "gtrxl", preset: str = "small", **overrides: Any) -> CoreConfig:
    """Return the config of a core: a preset with fields overridden.

    Args:
      name: lstm, gru, trxl, trxl-i or gtrxl.
      preset: "paper" (Parisotto et al. 2019: 12 layers, 8 heads of 64, memory 512; LSTM of 3
        layers), "thin" (half the width; transformers), "large" (12 layers of 512; recurrent cores),
        "small" (minutes on a laptop), "debug" (seconds).
      overrides: fields of `CoreConfig`.

    Raises:
      ValueError: if a name, preset or field is unknown, or a value is invalid.
    """
    check_choice("core", name, CORES)
    presets = RECURRENT_PRESETS if name in CELLS else TRANSFORMER_PRESETS
    check_choice(f"preset of {name}", preset, presets)
    fields = [field.name for field in dataclasses.fields(CoreConfig)]
    for field in overrides:
        check_choice("core setting", field, fields)
    config = CoreConfig(**{"name": name, **presets[preset], **overrides})
    validate(config, "core.")
    return config


def make_core(
    config: CoreConfig | str = "gtrxl", preset: str | None = None, **overrides: Any
) -> MemoryCore:
    """Build a core from its config, or from its name, a preset and overridden fields.

    For example `make_core("gtrxl", preset="small", memory_size=128)`. See `core_config` for the
    arguments and errors. The core maps `[B, T, width]` to `[B, T, width]`.
    """
    if isinstance(config, str):
        config = core_config(config, preset or "small", **overrides)
    elif preset:
        raise ValueError(f"preset {preset!r} is for the name of a core: {config} has its own sizes")
    elif overrides:
        config = dataclasses.replace(config, **overrides)
    validate(config, "core.")
    shared: dict[str, Any] = {
        "width": config.width,
        "remat": config.remat,
        "dtype": None if config.dtype == "float32" else jnp.dtype(config.dtype),
    }
    if config.name in CELLS:
        return RecurrentCore(config.name, config.layers, **shared)
    return TransformerCore(
        layers=config.layers,
        heads=config.heads,
        head_width=config.head_width or config.width // config.heads,
        memory_size=config.memory_size,
        feedforward_width=config.feedforward_width or config.width,
        norm_first=config.name != "trxl",
        gate=config.gate if config.name == "gtrxl" else None,
        gate_bias=config.gate_bias,
        **shared,
    )
