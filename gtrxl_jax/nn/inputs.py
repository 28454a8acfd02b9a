"""What every memory core asks of its inputs, said in one line where it is not so."""

from typing import Any

import jax
import jax.numpy as jnp


def check_inputs(x: jax.Array, first: jax.Array, batch_size: int, width: int, axes: str) -> None:
    """Refuse features or episode starts that do not fit a core and its memory.

    Only shapes and types are looked at, so this costs nothing once compiled.

    Args:
      x: features.
      first: where episodes begin.
      batch_size: B, of the memory.
      width: D, of the core.
      axes: "B T D" for a segment, "B D" for a step.

    Raises:
      ValueError: x is not of those axes with that B and D, or first not of all of them but D.
      TypeError: first is not bool.
    """
    rank = len(axes.split())
    if x.ndim != rank:
        other = "`step` takes one step [B, D]" if rank == 3 else "a segment is for the core's call"
        raise ValueError(f"x must be [{', '.join(axes.split())}], got shape {x.shape}: {other}")
    if x.shape[-1] != width:
        raise ValueError(
            f"x has shape {x.shape} but the core has width {width}: bring features to that width, "
            "for example with a Dense layer"
        )
    if x.shape[0] != batch_size:
        raise ValueError(
            f"x has shape {x.shape} but the memory has {batch_size} rows: arrays are batch-major, "
            f"and initial_memory({x.shape[0]}) has as many rows as x"
        )
    if first.shape != x.shape[:-1]:
        raise ValueError(
            f"first must have shape {x.shape[:-1]}, that of x without D: {first.shape}"
        )
    if first.dtype != jnp.bool_:
        raise TypeError(f"first must be bool, not {first.dtype}: true where an episode begins")


def check_kind(name: str, value: Any, kind: type, remedy: str) -> None:
    """Refuse a cache where a memory belongs, or a memory where a cache does.

    Raises:
      TypeError: with the remedy.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, not {type(value).__name__}: {remedy}")
