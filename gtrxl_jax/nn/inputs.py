"""Input checks shared by all memory cores."""

from typing import Any

import jax
import jax.numpy as jnp


def check_inputs(x: jax.Array, first: jax.Array, batch_size: int, width: int, axes: str) -> None:
    """Check that features and episode starts fit a core and its memory.

    Only shapes and dtypes are checked, so this costs nothing once compiled.

    Args:
      x: features.
      first: true where an episode begins.
      batch_size: B, the batch size of the memory.
      width: D, the width of the core.
      axes: expected axes of x, "B T D" for a segment or "B D" for a step.

    Raises:
      ValueError: if x does not have these axes, B and D, or first does not have the shape of x
        without D.
      TypeError: if first is not bool.
    """
    rank = len(axes.split())
    if x.ndim != rank:
        other = "`step` takes one step [B, D]" if rank == 3 else "a segment is for `__call__`"
        raise ValueError(f"x must be [{', '.join(axes.split())}], got shape {x.shape}: {other}")
    if x.shape[-1] != width:
        raise ValueError(
            f"x has shape {x.shape} but the core has width {width}: project the features to that "
            "width, for example with a Dense layer"
        )
    if x.shape[0] != batch_size:
        raise ValueError(
            f"x has shape {x.shape} but the memory has {batch_size} rows: arrays are batch-major, "
            f"so check the axes of x, or start with {x.shape[0]} rows, by `initial_memory` of a "
            "core or an agent, or `init` of a policy or a loaded run"
        )
    if first.shape != x.shape[:-1]:
        raise ValueError(
            f"first must have shape {x.shape[:-1]}, that of x without D; got: {first.shape}"
        )
    if first.dtype != jnp.bool_:
        raise TypeError(f"first must be bool, not {first.dtype}: true where an episode begins")


def check_kind(name: str, value: Any, kind: type, remedy: str) -> None:
    """Check the type of a memory or a cache, so that the two are not confused.

    Raises:
      TypeError: if `value` is not of type `kind`; the message ends with `remedy`.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, not {type(value).__name__}: {remedy}")
