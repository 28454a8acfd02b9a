"""Small instances of every core, for tests shared by all cores."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gtrxl_jax.nn.cores.gtrxl import GATES
from gtrxl_jax.nn.cores.registry import make_core

MEMORY_SIZE = 5
LAYERS = 2
WIDTH = 8

TRANSFORMERS = ["trxl", "trxl-i", *(f"gtrxl/{gate}" for gate in sorted(GATES))]
STACKS = ["mingru", "lru", "s5", "ffm", "agalite", "mlstm", "mamba2"]
ALL_CORES = ["lstm", "gru", *TRANSFORMERS]
WITH_ONE_GATE = [name for name in ALL_CORES if "/" not in name or name == "gtrxl/gru"]
"""Every core once: a gate maps one step of the stream, so most properties hold for all of them."""


def small_core(name: str, param_dtype: Any = jnp.float64, **overrides: Any) -> Any:
    """Return the core called `name` ("gtrxl/gru" sets the gate too), with two layers of width 8."""
    name, _, gate = name.partition("/")
    settings: dict[str, Any] = dict(layers=LAYERS, width=WIDTH)
    if "trxl" in name:
        settings |= dict(heads=2, head_width=3, memory_size=MEMORY_SIZE, feedforward_width=11)
        settings |= {"gate": gate or "gru"}
    if name == "dnc":
        settings |= dict(slots=MEMORY_SIZE, heads=2, retroactive_decay=0.7)
    if name == "ffm":
        settings |= dict(traces=3, contexts=2)
    if name in ("lru", "s5", "mamba2"):
        settings |= dict(state_size=5)
    if name in ("agalite", "mlstm"):
        settings |= dict(heads=2, head_width=3)
    if name == "mamba2":
        settings |= dict(heads=2)
    if name == "agalite":
        settings |= dict(features=2, terms=4)
    settings |= overrides
    return make_core(name, **settings).clone(param_dtype=param_dtype)


def random_params(core: Any, seed: int = 0) -> Any:
    """Return random parameters of the core; see `random_values`."""
    x_BTD = jnp.zeros((1, 1, WIDTH), core.param_dtype)
    first_BT = jnp.zeros((1, 1), bool)
    shapes = jax.eval_shape(core.init, jax.random.key(0), core.initial_memory(1), x_BTD, first_BT)
    return random_values({"params": shapes["params"]}, seed)


def random_values(shapes: Any, seed: int = 0) -> Any:
    """Return random parameters of these shapes: initial values of 0 or 1 would hide mistakes."""
    rng = np.random.default_rng(seed)

    def leaf(path: Any, shape: jax.ShapeDtypeStruct) -> jax.Array:
        center = 1.0 if path[-1].key in ("scale", "variance") else 0.0
        stacked = any(key.key == "blocks" for key in path)
        own = shape.shape[1:] if stacked else shape.shape
        spread = 0.3 if len(own) < 2 else max(1, own[0]) ** -0.5
        values = center + spread * rng.standard_normal(shape.shape)
        if path[-1].key == "variance":
            values = np.abs(values)
        return jnp.asarray(values.astype(shape.dtype))

    return jax.tree_util.tree_map_with_path(leaf, shapes)


def random_segment(rng: np.random.Generator, batch: int, steps: int, dtype: Any) -> Any:
    """Return inputs `[B, T, D]` and episode starts `[B, T]`, at about one step in six."""
    x_BTD = jnp.asarray(rng.standard_normal((batch, steps, WIDTH)), dtype)
    return x_BTD, jnp.asarray(rng.random((batch, steps)) < 1 / 6)
