"""Where the arrays of a run live: the batch split over devices, the rest on each of them.

The program is written for the global batch; `jax.jit` derives from these placements what every
device computes and what they exchange (the gradient's sum and a few scalars).
"""

import dataclasses
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

BATCHED = ("stream", "timestep", "memory")
"""The fields of a `TrainState` whose arrays begin with the batch axis."""


def data_mesh(num_devices: int, batch_size: int) -> Mesh:
    """A mesh of one axis, "data".

    Args:
      num_devices: how many devices; 0 for all there are.
      batch_size: what they share.

    Raises:
      ValueError: there are fewer devices, or they do not divide the batch.
    """
    present = jax.devices()
    count = num_devices or len(present)
    if count > len(present):
        raise ValueError(f"devices is {count}, but there are {len(present)}: ask for fewer")
    if batch_size % count:
        raise ValueError(
            f"env.num_envs {batch_size} does not divide over {count} devices: make it a multiple "
            f"of {count}, or set devices to a divisor of {batch_size}"
        )
    return Mesh(present[:count], ("data",), axis_types=(AxisType.Auto,))


def shardings(state: Any, mesh: Mesh, *, seeds: bool) -> Any:
    """The sharding of each array of a `TrainState`; with `seeds`, after a leading axis of seeds."""
    batch = NamedSharding(mesh, PartitionSpec(None, "data") if seeds else PartitionSpec("data"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    fields = {}
    for field in dataclasses.fields(state):
        sharding = batch if field.name in BATCHED else everywhere
        fields[field.name] = jax.tree.map(lambda _, s=sharding: s, getattr(state, field.name))
    return type(state)(**fields)
