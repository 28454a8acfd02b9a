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


def data_mesh(num_devices: int, num_envs: int, num_tasks: int = 1) -> Mesh:
    """A mesh of one axis, "data".

    Args:
      num_devices: how many devices; 0 for all there are.
      num_envs: what they share.
      num_tasks: how many tasks the environments are of; each is shared by all devices.

    Raises:
      ValueError: there are fewer devices, or they do not divide the environments of a task.
    """
    present = jax.devices()
    count = num_devices or len(present)
    if count > len(present):
        raise ValueError(f"devices is {count}, but there are {len(present)}: ask for fewer")
    if num_envs % (count * num_tasks):
        shares = f"{count} devices" + (f" and {num_tasks} tasks" if num_tasks > 1 else "")
        raise ValueError(
            f"env.num_envs {num_envs} does not divide over {shares}: make it a multiple of "
            f"{count * num_tasks}, or set devices to a divisor of {num_envs // num_tasks}"
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
