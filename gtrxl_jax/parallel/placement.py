"""Placement of a run's arrays: the batch is split over devices, parameters optionally.

The devices form a mesh of two axes, "data" x "model". The batch is split over both: every device
has its own part. Parameters, and with them the optimizer's state, are split over "model" only, by a
table of rules; an axis of one device, the default, leaves all of them on every device.

Splitting affects how parameters are stored, not how they are used (ZeRO, Rajbhandari et al. 2020;
"fully sharded data parallel"): an update gathers each parameter where it is used and returns to
each device its part of the gradient. The arithmetic thus equals data parallelism for any
network, while memory and the optimizer's work are divided by the number of shards. Programs are
written for the global batch; from these placements, `jax.jit` derives what every device computes
and communicates.

`split_batch`, `on_each_device`, `split_gradients` and `gather_parameters` refer to the mesh set by
`jax.set_mesh` and have no effect without one, so the trainers' functions also run on a single
device.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax import struct
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int

AXES = ("data", "model")

RULES = (
    (r"\bkernel$", -1),
    (r"\bembedding$", -1),
)
"""The axis along which a parameter is split, by the end of its path, `core/blocks/mlp/kernel`;
the optimizer's moments have the same paths. Others, such as biases and gains, are too small to
split.
"""


def make_mesh(
    num_devices: int,
    batch: int,
    *,
    field: str = "env.num_envs",
    num_tasks: int = 1,
    parameter_shards: int = 1,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """Create the mesh of a run, "data" x "model".

    Args:
      num_devices: number of devices; 0 for all devices of all hosts.
      batch: size of the batch to split.
      field: name of `batch` in the config, for error messages.
      num_tasks: number of tasks in the batch; each is split over all devices.
      parameter_shards: number of neighboring devices that share one copy of the parameters.
      devices: the devices to choose from; by default those that JAX sees.

    Raises:
      ValueError: if fewer devices are available, if their number does not divide the batch of a
        task or is not a multiple of `parameter_shards`, or if there are several processes and not
        all of their devices are used.
    """
    present = jax.devices() if devices is None else devices
    count = num_devices or len(present)
    if count > len(present):
        raise ValueError(f"devices is {count}, but only {len(present)} are available: lower it")
    if count < len(present) and len({device.process_index for device in present}) > 1:
        raise ValueError(
            f"devices is {count}, but the processes of this run have {len(present)}: set it to 0"
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


def batch_field() -> Any:
    """Declare a field of a state whose arrays begin with the batch axis, which devices split."""
    return struct.field(metadata={"batch": True})


def shardings(state: Any, mesh: Mesh, *, seeds: bool) -> Any:
    """Return the sharding of each array of a run's state.

    Args:
      state: a flax.struct dataclass, whose fields with a batch axis are `batch_field`s; fields that
        are dataclasses may have such fields too.
      mesh: the devices.
      seeds: whether arrays begin with an axis of seeds.
    """
    lead = (None,) if seeds else ()
    batch = NamedSharding(mesh, PartitionSpec(*lead, AXES))

    def of_fields(state: Any) -> Any:
        return type(state)(
            **{
                field.name: jax.tree.map(lambda _: batch, getattr(state, field.name))
                if field.metadata.get("batch")
                else of_value(getattr(state, field.name))
                for field in dataclasses.fields(state)
            }
        )

    def of_value(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return of_fields(value)
        return jax.tree.map_with_path(
            lambda path, x: NamedSharding(mesh, _parameter_spec(path, x, mesh, len(lead))), value
        )

    return of_fields(state)


def replicate(tree: Any, mesh: Mesh) -> Any:
    """Place arrays that every process has on every device of the mesh, unsplit."""
    everywhere = NamedSharding(mesh, PartitionSpec())

    def put(leaf: Any) -> jax.Array:
        # Unlike `jax.device_put`, this does not compare the processes' copies over the network.
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, everywhere, lambda index: array[index])

    return jax.tree.map(put, tree)


def local_rows(mesh: Mesh, batch: int) -> Int[np.ndarray, " b"]:
    """Return the sorted rows of a batch that are placed on this process's devices."""
    over_batch = NamedSharding(mesh, PartitionSpec(AXES))
    parts = over_batch.addressable_devices_indices_map((batch,)).values()
    return np.unique([row for part in parts if part for row in range(*part[0].indices(batch))])


def split_local_rows(tree: Any, mesh: Mesh, batch: int, *, axis: int) -> Any:
    """Place the arrays of a batch on the mesh, given each process's `local_rows`.

    Args:
      tree: arrays with those rows along `axis`.
      mesh: the devices.
      batch: total number of rows.
      axis: the axis of the rows.
    """
    over_batch = NamedSharding(mesh, PartitionSpec(*(None,) * axis, AXES))

    def put(leaf: np.ndarray) -> jax.Array:
        shape = (*leaf.shape[:axis], batch, *leaf.shape[axis + 1 :])
        return jax.make_array_from_process_local_data(over_batch, leaf, shape)

    return jax.tree.map(put, tree)


def split_batch(tree: Any) -> Any:
    """Split arrays `[B, ...]` over the devices; those whose B does not divide are unchanged."""
    mesh = _mesh()

    def split(leaf: Any) -> Any:
        if mesh is None or mesh.size == 1 or leaf.shape[0] % mesh.size:
            return leaf
        return jax.lax.with_sharding_constraint(leaf, PartitionSpec(AXES))

    return jax.tree.map(split, tree)


def on_each_device(function: Callable[..., Any], *batches: Any) -> Any:
    """Apply a function of arrays `[B, ...]` on each device to its own part of them.

    Nothing is exchanged, so loops and branches may differ between devices. The results, also
    `[B, ...]`, must be the same for any division of the batch. If B does not divide, the function
    gets the whole batch.
    """
    mesh = _mesh()
    divides = mesh is not None and all(
        leaf.shape[0] % mesh.size == 0 for leaf in jax.tree.leaves(batches)
    )
    if not divides or mesh.size == 1:
        return function(*batches)
    parts = PartitionSpec(AXES)
    # A loop that some devices leave earlier has no replicated results that could be verified.
    return jax.shard_map(function, in_specs=parts, out_specs=parts, check_vma=False)(*batches)


def split_gradients(tree: Any) -> Any:
    """Split gradients over the devices as the parameters are split, by the `RULES`."""
    mesh = _mesh()
    if mesh is None or mesh.shape["model"] == 1:
        return tree
    # Whole first; otherwise the compiler may split the gradients of a recurrent core within its
    # loop over time, and sum them over the devices in each step.
    return jax.tree.map_with_path(
        lambda path, x: jax.lax.with_sharding_constraint(x, _parameter_spec(path, x, mesh)),
        gather_parameters(tree),
    )


def gather_parameters(tree: Any) -> Any:
    """Gather parameters, unsplit, on every device."""
    mesh = _mesh()
    if mesh is None or mesh.shape["model"] == 1:
        return tree
    return jax.lax.with_sharding_constraint(tree, PartitionSpec())


def _mesh() -> Any:
    """Return the mesh that is set, if it has the axes `AXES`."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh if mesh.axis_names == AXES else None


def _parameter_spec(path: Any, leaf: Any, mesh: Any, lead: int = 0) -> PartitionSpec:
    """Return the partition of an array with `lead` axes before the parameter's own."""
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    shards = mesh.shape["model"]
    for pattern, axis in RULES:
        if re.search(pattern, name):
            if -axis <= leaf.ndim - lead and leaf.shape[axis] % shards == 0:
                return PartitionSpec(*(None,) * (leaf.ndim + axis), "model")
            break
    return PartitionSpec()
