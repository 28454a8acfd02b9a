"""Where the arrays of a run live: the batch split over devices, parameters split where asked.

The devices are a mesh of two axes, "data" x "model". The batch is split over both: every device
has its own part. Parameters, and with them the optimiser's state, are split over "model" alone, by
a table of rules; an axis of one device, the default, leaves all of them on every device.

Split parameters are a way to store them, not to compute with them (ZeRO, Rajbhandari et al. 2020;
"fully sharded data parallel"): an update gathers each where it is used and gives each device its
part of the gradient. So the arithmetic is that of data parallelism, whatever the network, and
memory and optimiser's work are divided by the shards. The program is written for the global
batch; `jax.jit` derives from these placements what every device computes and what they exchange.

`split_batch`, `split_parameters` and `gather_parameters` speak of the mesh that is set
(`jax.set_mesh`), and do nothing without one: the trainers' functions run on any device as they are.
"""

import dataclasses
import re
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int

AXES = ("data", "model")

BATCHED = ("stream", "timestep", "memory")
"""The fields of a `TrainState` whose arrays begin with the batch axis."""

RULES = (
    (r"\bkernel$", -1),
    (r"\bembedding$", -1),
)
"""Which axis of a parameter is split, by the end of its path, `core/blocks_0/mlp/kernel`; the
optimiser's moments have the same paths. Others, biases and gains, are too small to be worth it."""


def make_mesh(
    num_devices: int,
    batch: int,
    *,
    field: str = "env.num_envs",
    num_tasks: int = 1,
    parameter_shards: int = 1,
) -> Mesh:
    """The mesh of a run, "data" x "model".

    Args:
      num_devices: how many devices; 0 for all there are, on all hosts.
      batch: what they share.
      field: the name of that in the config.
      num_tasks: how many tasks the batch is of; each is shared by all devices.
      parameter_shards: how many devices, neighbours, have a copy of the parameters between them.

    Raises:
      ValueError: there are fewer devices, or they do not divide the batch of a task, or into groups
        of that many shards; or there are several processes, and not all of their devices are used.
    """
    present = jax.devices()
    count = num_devices or len(present)
    if count > len(present):
        raise ValueError(f"devices is {count}, but there are {len(present)}: ask for fewer")
    if jax.process_count() > 1 and count < len(present):
        raise ValueError(
            f"devices is {count}, but the processes of this run have {len(present)}: leave it at 0"
        )
    if count % parameter_shards:
        raise ValueError(
            f"parameter_shards {parameter_shards} does not divide {count} devices: make it a "
            "divisor, or 1"
        )
    if batch % (count * num_tasks):
        shares = f"{count} devices" + (f" and {num_tasks} tasks" if num_tasks > 1 else "")
        raise ValueError(
            f"{field} {batch} does not divide over {shares}: make it a multiple of "
            f"{count * num_tasks}, or set devices to a divisor of {batch // num_tasks}"
        )
    grid = np.array(present[:count]).reshape(-1, parameter_shards)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 2)


def shardings(state: Any, mesh: Mesh, *, seeds: bool) -> Any:
    """The sharding of each array of a `TrainState`; with `seeds`, after a leading axis of seeds."""
    lead = (None,) if seeds else ()
    fields = {}
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if field.name in BATCHED:
            batch = NamedSharding(mesh, PartitionSpec(*lead, AXES))
            fields[field.name] = jax.tree.map(lambda _, s=batch: s, value)
        else:
            fields[field.name] = jax.tree.map_with_path(
                lambda path, x: NamedSharding(mesh, _parameter_spec(path, x, mesh, len(lead))),
                value,
            )
    return type(state)(**fields)


def replicated(tree: Any, mesh: Mesh) -> Any:
    """Arrays that every process has, put whole on every device of the mesh."""
    everywhere = NamedSharding(mesh, PartitionSpec())

    def put(leaf: Any) -> jax.Array:
        # Unlike `jax.device_put`, it does not compare the processes' copies over the network.
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, everywhere, lambda index: array[index])

    return jax.tree.map(put, tree)


def local_rows(mesh: Mesh, batch: int) -> Int[np.ndarray, " b"]:
    """The rows of a batch that this process's devices have between them, in order."""
    over_batch = NamedSharding(mesh, PartitionSpec(AXES))
    parts = over_batch.addressable_devices_indices_map((batch,)).values()
    return np.unique([row for part in parts if part for row in range(*part[0].indices(batch))])


def split_local_rows(tree: Any, mesh: Mesh, batch: int, *, axis: int) -> Any:
    """Arrays of a batch, of which each process has its `local_rows`, on the mesh.

    Args:
      tree: arrays with those rows at `axis`.
      mesh: the devices.
      batch: how many rows there are in all.
      axis: where they are.
    """
    over_batch = NamedSharding(mesh, PartitionSpec(*(None,) * axis, AXES))

    def put(leaf: np.ndarray) -> jax.Array:
        shape = (*leaf.shape[:axis], batch, *leaf.shape[axis + 1 :])
        return jax.make_array_from_process_local_data(over_batch, leaf, shape)

    return jax.tree.map(put, tree)


def split_batch(tree: Any) -> Any:
    """Arrays `[B, ...]`, each device with its part of them; as they are if B does not divide."""
    mesh = _mesh()

    def split(leaf: Any) -> Any:
        if mesh is None or mesh.size == 1 or leaf.shape[0] % mesh.size:
            return leaf
        return jax.lax.with_sharding_constraint(leaf, PartitionSpec(AXES))

    return jax.tree.map(split, tree)


def split_parameters(tree: Any) -> Any:
    """Parameters, or gradients of them, each device with its part by the `RULES`."""
    mesh = _mesh()
    if mesh is None or mesh.shape["model"] == 1:
        return tree
    return jax.tree.map_with_path(
        lambda path, x: jax.lax.with_sharding_constraint(x, _parameter_spec(path, x, mesh)), tree
    )


def gather_parameters(tree: Any) -> Any:
    """Parameters, whole on every device."""
    mesh = _mesh()
    if mesh is None or mesh.shape["model"] == 1:
        return tree
    return jax.lax.with_sharding_constraint(tree, PartitionSpec())


def _mesh() -> Any:
    """The mesh that is set, if it is one of ours."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh if mesh.axis_names == AXES else None


def _parameter_spec(path: Any, leaf: Any, mesh: Any, lead: int = 0) -> PartitionSpec:
    """Of an array with `lead` axes before the parameter's own."""
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    shards = mesh.shape["model"]
    for pattern, axis in RULES:
        if re.search(pattern, name):
            if -axis <= leaf.ndim - lead and leaf.shape[axis] % shards == 0:
                return PartitionSpec(*(None,) * (leaf.ndim + axis), "model")
            break
    return PartitionSpec()
