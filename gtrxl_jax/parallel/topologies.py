"""Devices that this machine lacks, for which XLA compiles programs all the same.

XLA's compilers for TPUs and for Nvidia's GPUs are in packages that need no such device: libtpu, and
JAX's plugin for CUDA. Nothing can be run on these devices: arguments are `jax.ShapeDtypeStruct`.
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
from gtrxl_jax.machine import set_no_tpu

GIB = 2**30


class Chip(NamedTuple):
    """What is published of a device, as JAX counts devices.

    Attributes:
      memory: bytes of its memory.
      clock: cycles per second of its cores; None if it is not published, or there are no estimates
        in cycles.
      link: bytes per second over the link to a neighbor, in one direction; None if unknown.
      ring: the axes of a topology, which links connect, are rings if their length is a multiple.
    """

    memory: int
    clock: float | None = None
    link: float | None = None
    ring: int = 1


CHIPS = {
    "TPU v2": Chip(8 * GIB, 0.7e9),
    "TPU v3": Chip(16 * GIB, 0.94e9),
    "TPU v4": Chip(32 * GIB, 1.05e9, 45e9, 4),
    "TPU v5 lite": Chip(16 * GIB, 1.5e9, 45e9, 16),
    "TPU v5": Chip(95 * GIB, 1.75e9, 90e9, 4),
    "TPU v6 lite": Chip(32 * GIB, 1.75e9, 90e9, 16),
    "TPU7x": Chip(96 * GIB),
    "NVIDIA H100 80GB HBM3": Chip(84_942_979_072),
    "NVIDIA A100-SXM4-80GB": Chip(84_987_740_160),
}
"""Published data of each chip, by JAX's `device_kind`. Clocks of TPUs are at their peaks."""

TPUS = ("v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x")
"""The names of TPUs in topologies."""

_GPU = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536 shared_memory_per_block: 49152
  shared_memory_per_core: {shared} shared_memory_per_block_optin: {optin} fpus_per_core: {fpus}
  core_count: {cores} clock_rate_ghz: {clock} memory_bandwidth: {bandwidth} l2_cache_size: {l2}
  device_memory_size: {memory} cuda_compute_capability {{ major: {major} }}
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }}
runtime_version {{ major: 12 minor: 9 }} device_description_str: "{kind}"
"""

_GPUS: dict[str, dict[str, Any]] = {
    "h100": dict(
        kind="NVIDIA H100 80GB HBM3",
        cores=132,
        fpus=128,
        shared=233_472,
        optin=232_448,
        clock=1.98,
        bandwidth=3_352_320_000_000,
        l2=52_428_800,
        major=9,
    ),
    "a100": dict(
        kind="NVIDIA A100-SXM4-80GB",
        cores=108,
        fpus=64,
        shared=167_936,
        optin=166_912,
        clock=1.41,
        bandwidth=2_039_000_000_000,
        l2=41_943_040,
        major=8,
    ),
}
"""The fields of `_GPU` by the names of GPUs in topologies."""

GPU_OPTIONS: dict[str, Any] = {
    "xla_gpu_autotune_level": 0,
    "xla_gpu_enable_triton_gemm": False,
}
"""Options with which a program for a GPU is compiled without it: tuning would time its kernels."""


def devices_of(topology: str) -> Sequence[Any]:
    """Return the devices of a topology.

    Args:
      topology: a kind of TPU, and the number of chips along each axis, such as v5e:4x4; or a GPU,
        h100 or a100, and how many, such as h100:8, or h100:2x8 for two hosts with eight each.

    Raises:
      ValueError: if there is no such topology.
      ModuleNotFoundError: if the compiler is not installed.
    """
    name, sides = _parse(topology)
    if name in _GPUS:
        if not _is_installed("jax_cuda12_plugin", "jax_cuda13_plugin"):
            raise ModuleNotFoundError(
                f"to compile for GPUs requires JAX's plugin for CUDA: {install_command('cuda12')}"
            )
        values = _GPUS[name]
        return topologies.get_topology_desc(
            name,
            "cuda",
            topology="x".join(map(str, (1, *sides) if len(sides) > 1 else (1, 1, *sides))),
            target_config=_GPU.format(**values, memory=CHIPS[values["kind"]].memory),
        ).devices
    if not _is_installed("libtpu") and "TPU_LIBRARY_PATH" not in os.environ:
        raise ModuleNotFoundError(f"to compile for TPUs requires libtpu: {install_command('tpu')}")
    set_no_tpu()
    options: dict[str, Any] = {}
    if math.prod(sides) < 4:  # a host with a part of the usual 2 x 2 chips
        options["chips_per_host_bounds"] = [*sides, 1][:3]
    if name == "v4":  # the two cores of a chip are one device, as on Cloud TPU
        options["chip_config_name"] = "megacore"
    try:
        return topologies.get_topology_desc(topology, "tpu", **options).devices
    except jax.errors.JaxRuntimeError:
        example = f"{name}:{'2x2x4' if name in ('v4', 'v5p', 'tpu7x') else '4x4'}"
        raise ValueError(
            f"there is no topology {topology}: use whole hosts, of 2 x 2 chips, such as {example}"
        ) from None


def bandwidth(topology: str, chip: Chip) -> float | None:
    """Return the bytes per second that a chip can send to its neighbors together; None if unknown.

    A chip has a link to the next chip of each axis, and another to the one before if the axis is a
    ring.
    """
    links = [1 + (side % chip.ring == 0) for side in _parse(topology)[1] if side > 1]
    return chip.link * sum(links) if chip.link and links else None


def _parse(topology: str) -> tuple[str, list[int]]:
    """Return the kind of chip and the number of chips along each axis."""
    name, _, layout = topology.partition(":")
    axes = "{1,2}" if name in TPUS else "{0,1}"
    if name in _GPUS and not layout:
        layout = "1"
    if name not in (*TPUS, *_GPUS) or not re.fullmatch(rf"[1-9]\d*(x[1-9]\d*){axes}", layout):
        raise ValueError(
            f"topology must be a kind of TPU ({', '.join(TPUS)}) and the chips along each axis, "
            f"such as v5e:4x4 or v4:2x2x4, or a GPU ({', '.join(_GPUS)}) and how many, such as "
            f"h100:8, not {topology!r}"
        )
    return name, [int(side) for side in layout.split("x")]


def _is_installed(*packages: str) -> bool:
    return any(importlib.util.find_spec(package) for package in packages)
