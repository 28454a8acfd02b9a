"""Devices that this machine lacks, for which XLA compiles programs all the same.

XLA's compiler for TPUs is in the package libtpu, and needs no TPU. Nothing can be run on these
devices: arguments of programs are of `jax.ShapeDtypeStruct`.
"""

import importlib.util
import math
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from gtrxl_jax.extras import install_command

GIB = 2**30


class Chip(NamedTuple):
    """What is public of a device, as JAX counts devices.

    Attributes:
      memory: bytes of its memory.
      clock: cycles per second of its cores; None if it is not public.
      link: bytes per second over the link to a neighbor, in one direction; None if unknown.
    """

    memory: int
    clock: float | None
    link: float | None


CHIPS = {
    "TPU v2": Chip(8 * GIB, 0.7e9, None),
    "TPU v3": Chip(16 * GIB, 0.94e9, None),
    "TPU v4": Chip(32 * GIB, 1.05e9, 45e9),
    "TPU v5 lite": Chip(16 * GIB, 1.5e9, 45e9),
    "TPU v5": Chip(95 * GIB, 1.75e9, 90e9),
    "TPU v6 lite": Chip(32 * GIB, 1.75e9, 90e9),
    "TPU7x": Chip(96 * GIB, None, None),
}
"""By JAX's `device_kind`. The clocks are those of the published peaks."""

GENERATIONS = ("v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x")
"""The names of TPUs in topologies."""

_QUIET = {
    # Otherwise, one process at a time may load libtpu, and it looks for TPUs over the network.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_LOG_DIR": "disabled",
}


def devices_of(topology: str) -> Sequence[Any]:
    """Return the devices of a topology.

    Args:
      topology: the kind of TPU, and the number of chips along each axis, such as v5e:4x4.

    Raises:
      ValueError: if there is no such topology.
      ModuleNotFoundError: if the compiler is not installed.
    """
    name, _, layout = topology.partition(":")
    if name not in GENERATIONS or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", layout):
        raise ValueError(
            f"topology must be a kind of TPU ({', '.join(GENERATIONS)}) and the number of chips "
            f"along each axis, such as v5e:4x4 or v4:2x2x4, not {topology!r}"
        )
    if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        raise ModuleNotFoundError(
            f"to compile for TPUs without a TPU requires libtpu: {install_command('tpu')}"
        )
    for variable, value in _QUIET.items():
        os.environ.setdefault(variable, value)
    sides = [int(side) for side in layout.split("x")]
    options: dict[str, Any] = {}
    if math.prod(sides) < 4:  # a host with a part of the usual 2 x 2 chips
        options["chips_per_host_bounds"] = [*sides, 1][:3]
    if name == "v4":  # the two cores of a chip are one device, as on Cloud TPU
        options["chip_config_name"] = "megacore"
    try:
        found = topologies.get_topology_desc(topology, "tpu", **options)
    except jax.errors.JaxRuntimeError:
        example = f"{name}:{'2x2x4' if name in ('v4', 'v5p', 'tpu7x') else '4x4'}"
        raise ValueError(
            f"there is no topology {topology}: use whole hosts, of 2 x 2 chips, such as {example}"
        ) from None
    return found.devices
