"""Every memory core by its name and preset, behind one contract.

    memory = core.initial_memory(batch_size)
    memory, y_BTD = core.apply(params, memory, x_BTD, first_BT)             learning: a segment
    cache = core.apply(params, memory, num_steps, method="start")           acting: step by step
    cache, y_BD = core.apply(params, cache, x_BD, first_B, method="step")
    memory = core.apply(params, cache, method="finish")

Both ways give the same outputs and the same memory, however the sequence is cut and wherever
episodes begin. A memory is a pytree of arrays whose leading axis is the batch. What does not fit is
refused by `gtrxl_jax.nn.inputs` while it is traced.
"""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp

from gtrxl_jax.nn.cores.recurrent import CELLS, RecurrentCore
from gtrxl_jax.nn.cores.transformer import TransformerCore
from gtrxl_jax.nn.gates import GATES
from gtrxl_jax.validation import check_choice, choice, number, validate

CORES = ("lstm", "gru", "trxl", "trxl-i", "gtrxl")
DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class CoreConfig:
    """The architecture of a memory core.

    The recurrent cores use `layers`, `width`, `remat` and `dtype` alone and ignore the rest, so
    that one core can be swapped for another by its name.
    """

    name: str = choice("gtrxl", CORES)
    """lstm, gru, trxl, trxl-i or gtrxl."""
    layers: int = 2
    """Layers, one on another."""
    width: int = 64
    """Width of the stream, D."""
    heads: int = 4
    """Attention heads, H."""
    head_width: int | None = None
    """Width of a head, K; width / heads if not given."""
    memory_size: int = 64
    """Steps that each layer sees before the present one, M."""
    feedforward_width: int | None = None
    """Hidden width of the feed-forward network, F; the stream's width if not given."""
    gate: str = choice("gru", tuple(GATES))
    """Gate of gtrxl: input, output, highway, sigtanh or gru."""
    gate_bias: float | None = number(None, at_least=-math.inf)
    """b of the gated identity initialisation; the paper's if not given (gru 2, the others 1)."""
    remat: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    dtype: str = choice("float32", DTYPES)
    """Of the activations and the memory: float32 or bfloat16. Parameters stay float32."""

    def check(self) -> None:
        """Raise ValueError where the heads do not divide the width."""
        if self.name not in CELLS and self.head_width is None and self.width % self.heads:
            raise ValueError(
                f"core.width {self.width} does not divide into core.heads {self.heads}: "
                "change one of them, or give core.head_width"
            )


TRANSFORMER_PRESETS: dict[str, dict[str, Any]] = {
    # The paper's table gives width 256 (128 for thin), its parameter counts 512 (256): we follow
    # the counts. It does not give F; F = D comes nearest to them.
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
    """The config of a core of that name: a preset, with fields overridden.

    Args:
      name: lstm, gru, trxl, trxl-i or gtrxl.
      preset: "paper" (Parisotto et al. 2019: 12 layers, 8 heads of 64, memory 512; LSTM of 3
        layers), "thin" (half the width; transformers), "large" (12 layers of 512; recurrent cores),
        "small" (minutes on a laptop), "debug" (seconds).
      overrides: fields of `CoreConfig`.

    Raises:
      ValueError: an unknown name, preset or field, or an invalid value.
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
    config: CoreConfig | str = "gtrxl", preset: str = "small", **overrides: Any
) -> TransformerCore | RecurrentCore:
    """Build a core from its config, or from its name, a preset and overridden fields.

    `make_core("gtrxl", preset="small", memory_size=128)`; see `core_config` for the arguments and
    the errors. The core maps `[B, T, width]` to `[B, T, width]`.
    """
    if isinstance(config, str):
        config = core_config(config, preset, **overrides)
    elif overrides:
        config = dataclasses.replace(config, **overrides)
    validate(config, "core.")
    precision: dict[str, Any] = {
        "remat": config.remat,
        "dtype": None if config.dtype == "float32" else jnp.dtype(config.dtype),
    }
    if config.name in CELLS:
        return RecurrentCore(config.name, config.layers, config.width, **precision)
    return TransformerCore(
        layers=config.layers,
        width=config.width,
        heads=config.heads,
        head_width=config.head_width or config.width // config.heads,
        memory_size=config.memory_size,
        feedforward_width=config.feedforward_width or config.width,
        norm_first=config.name != "trxl",
        gate=config.gate if config.name == "gtrxl" else None,
        gate_bias=config.gate_bias,
        **precision,
    )
