"""The arrays of a state: their names, copies of them, and comparison of two states."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from gtrxl_jax.custom import describe_array


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


def paths_of(part: Any, tree: Any) -> Any:
    """Return a part of a tree, such as `tree.params`, with the path of each leaf in the tree.

    Args:
      part: a pytree, whose leaves are leaves of `tree`.
      tree: a pytree of arrays, or of `jax.ShapeDtypeStruct`.
    """
    paths = {id(leaf): path for path, leaf in by_name(tree).items()}
    return jax.tree.map(lambda leaf: paths[id(leaf)], part)


def replace_arrays(tree: Any, arrays: Mapping[str, Any]) -> Any:
    """Return the tree with the arrays of the given paths, see `by_name`, replaced."""
    leaves = [arrays.get(name, leaf) for name, leaf in by_name(tree).items()]
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def each_seed(num_seeds: int, tree: Any) -> list[Any]:
    """Return the tree of each seed, from a single seed's tree or one with an axis of seeds."""
    if num_seeds == 1:
        return [tree]
    return [jax.tree.map(lambda x, n=n: x[n], tree) for n in range(num_seeds)]


def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return shape, dtype and sharding of an array; without a sharding, the first local device."""
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, Sharding):
        sharding = SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def snapshot(leaf: Any) -> Any:
    """Copy an array, to the host if possible, so that the copy survives donation of the state.

    A view of the buffer would suffice on accelerators, but on CPU it would be the buffer itself.
    """
    if not isinstance(leaf, jax.Array):
        return leaf
    copy = jnp.copy(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) or not leaf.is_fully_addressable:
        return copy
    return np.asarray(copy)


def require_same_arrays(
    source: str,
    there: Mapping[str, Any],
    here: Mapping[str, Any],
    remedy: str,
    *,
    convert: bool = False,
) -> None:
    """Raise if stored arrays differ in name, shape or dtype from those requested.

    Args:
      source: what stores them, for the message.
      there: the stored arrays, or their descriptions, by name.
      here: the requested ones.
      remedy: what to do about it, for the message.
      convert: whether 32 and 64 bits are the same, since the arrays will be converted.

    Raises:
      ValueError: naming the first array that differs.
    """
    saved = {name: _describe(metadata) for name, metadata in there.items()}
    # Arrays without entries are not stored.
    asked = {name: _describe(leaf) for name, leaf in here.items() if leaf.size or name in saved}
    differing = [n for n in dict.fromkeys([*asked, *saved]) if saved.get(n) != asked.get(n)]
    if all(_in_32_bits(saved.get(n)) == _in_32_bits(asked.get(n)) for n in differing):
        if differing and not convert:
            name = differing[0]
            raise ValueError(
                f"{source} is of another precision: {name} is {saved[name]} there and "
                f"{asked[name]} here; set JAX_ENABLE_X64 as for that run"
            )
    else:
        name = differing[0]
        raise ValueError(
            f"{source} has another architecture in {len(differing)} of "
            f"{len(saved.keys() | asked)} arrays: {name} is {saved.get(name, 'absent')} there and "
            f"{asked.get(name, 'absent')} here; {remedy}"
        )


def _in_32_bits(description: str | None) -> str | None:
    return description and re.sub(r"^(float|u?int)64", r"\g<1>32", description)


def _describe(leaf: Any) -> str:
    """Describe an array as it is stored, see `custom.describe_array`."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        # Keys are stored as their underlying integers.
        leaf = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    return describe_array(leaf)
