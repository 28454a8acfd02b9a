"""The arrays of a state by name, and comparison of two states."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from gtrxl_jax.runs.directory import Folder


def by_name(tree: Any) -> dict[str, Any]:
    """Return the leaves by path, `params/core/layer_0/kernel`, in the order of the tree."""
    leaves, _ = jax.tree.flatten_with_path(tree)
    by_name = {}
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
            leaf = np.asarray(leaf)
            if leaf.dtype.kind not in "biufV":
                raise TypeError(
                    f"{name} is not an array or a number, and cannot be saved: {leaf!r}"
                )
        if name in by_name:
            raise ValueError(
                f"two arrays of the state are called {name}: rename the key with a '/'"
            )
        by_name[name] = leaf
    return by_name


def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return shape, dtype and sharding of an array; without a sharding, the first local device."""
    sharding = getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def require_same_arrays(folder: Folder, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise if the arrays of a checkpoint differ from those requested, before orbax reads them."""
    saved = {name: _describe(metadata) for name, metadata in there.items()}
    # Arrays without entries are not stored in checkpoints.
    asked = {name: _describe(leaf) for name, leaf in here.items() if leaf.size or name in saved}
    differing = [n for n in [*asked, *(saved.keys() - asked)] if saved.get(n) != asked.get(n)]
    if differing:
        name = differing[0]
        raise ValueError(
            f"the checkpoint in {folder} has another architecture in {len(differing)} of "
            f"{len(saved.keys() | asked)} arrays: {name} is {saved.get(name, 'absent')} there and "
            f"{asked.get(name, 'absent')} here; "
            f"build the agent from {Path(folder, 'config.json')}, or restore another run"
        )


def _describe(leaf: Any) -> str:
    """Return dtype and shape, `float32[3, 4]`, of an array or of its description."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        # Keys are stored as their underlying integers.
        leaf = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    return f"{jnp.dtype(leaf.dtype).name}{list(leaf.shape)}"
