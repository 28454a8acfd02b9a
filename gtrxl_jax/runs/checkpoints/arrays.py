"""A state as arrays under their names, and whether two states can stand for each other."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from gtrxl_jax.runs.directory import Folder


def by_name(tree: Any) -> dict[str, Any]:
    """The leaves under their paths, `params/core/layer_0/kernel`, in the order of the tree."""
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
            raise ValueError(f"two arrays of the state are called {name}: rename a key with a '/'")
        by_name[name] = leaf
    return by_name


def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape, type and place of an array; the first device if it has no place."""
    sharding = getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def require_same_arrays(folder: Folder, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Compare what a checkpoint has with what is asked for, before orbax reads any of it."""
    saved = {name: _describe(metadata) for name, metadata in there.items()}
    # Of an array without entries there is nothing in the checkpoint.
    asked = {name: _describe(leaf) for name, leaf in here.items() if leaf.size or name in saved}
    differing = [n for n in [*asked, *(saved.keys() - asked)] if saved.get(n) != asked.get(n)]
    if differing:
        name = differing[0]
        raise ValueError(
            f"the checkpoint in {folder} is of another architecture, in {len(differing)} of "
            f"{len(saved.keys() | asked)} arrays: {name} is {saved.get(name, 'absent')} there and "
            f"{asked.get(name, 'absent')} here; "
            f"build the agent from {Path(folder, 'config.json')}, or restore another run"
        )


def _describe(leaf: Any) -> str:
    """Type and shape, `float32[3, 4]`, of an array or of what stands for one."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        # Keys are stored as the integers that they are made of.
        leaf = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    return f"{jnp.dtype(leaf.dtype).name}{list(leaf.shape)}"
