"""Multi-process training, with one process for each host of a pod or a cluster.

Every process runs the same command. The run's arrays are spread over the devices of all processes
(see `placement`), and each process computes its own part. The first process writes all files except
checkpoints, which all processes write together. Without `join` there is a single process, and
nothing here has any effect.
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

HEARTBEAT_SECONDS = 40
"""A process without a heartbeat for this long is considered dead, and the others exit."""
SHUTDOWN_SECONDS = 3600
"""How long processes that have finished wait for the others, the first of which draws plots."""

ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def join() -> None:
    """Join the other processes of the run. Call this before computing or importing gymnax.

    JAX detects the processes on a TPU pod and under SLURM, Open MPI 4 and, with `jax[k8s]`, in Jobs
    of Kubernetes. Elsewhere, three environment variables define them: JAX_COORDINATOR_ADDRESS,
    `host:port` of the first process, JAX_NUM_PROCESSES, and JAX_PROCESS_ID, which counts from 0.

    Raises:
      ValueError: if the processes are not found, or a variable is not an integer or out of range.
    """
    # The service would intercept SIGTERM, which `Interruption` handles and `all_max` shares.
    jax.config.update("jax_enable_preemption_service", False)
    count, index = _number(COUNT), _number(INDEX)
    if count is not None and index is not None and not 0 <= index < count:
        raise ValueError(f"{INDEX} must be from 0 to {COUNT} - 1 = {count - 1}, not {index}")
    try:
        jax.distributed.initialize(
            num_processes=count,
            process_id=index,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
        )
    except ValueError as error:
        raise ValueError(
            f"distributed: no other processes to join ({error}): run on a TPU pod or under "
            f"SLURM, Open MPI or Kubernetes, or set {ADDRESS}, {COUNT} and {INDEX}"
        ) from None


def is_first() -> bool:
    """Return whether this is the process that writes files."""
    return jax.process_index() == 0


def all_max(number: int) -> int:
    """Return the maximum of `number` over all processes, which must call this at the same point."""
    if jax.process_count() == 1:
        return number
    return int(np.max(multihost_utils.process_allgather(np.int32(number))))


def of_first(arrays: Any) -> Any:
    """Return the arrays of the first process, of 32 bits; all must call this at the same point."""
    if jax.process_count() == 1:
        return arrays
    return multihost_utils.broadcast_one_to_all(arrays)


def wait_for_all(place: str) -> None:
    """Wait until every process has reached `place`."""
    multihost_utils.sync_global_devices(place)


def on_main_process(action: Callable[[], None], place: str) -> None:
    """Run `action` in the first process while the others wait."""
    wait_for_all(f"before {place}")
    if is_first():
        action()
    wait_for_all(f"after {place}")


@contextlib.contextmanager
def ending_together(*shared: type[Exception]) -> Iterator[None]:
    """Exit at once, with a one-line message, on an error in one of several processes.

    The process must not wait for resources to close: the others are waiting at a point that it will
    not reach, or have exited. They notice, at the latest by missing heartbeats, and exit too. With
    a single process, errors propagate.

    Args:
      shared: exceptions that all processes raise at the same point, which propagate.
    """
    try:
        yield
    except shared:
        raise
    except Exception as error:
        if jax.process_count() == 1:
            raise
        if os.environ.get("GTRXL_TRACEBACK"):
            traceback.print_exc()
        reason = " ".join(str(error)[:300].split())
        failed = jax.errors.JaxRuntimeError
        if isinstance(error, failed) or isinstance(error.__cause__, failed):
            reason = f"another process of the run has ended, or cannot be reached ({reason})"
        print(f"gtrxl: error: {reason}", file=sys.stderr, flush=True)
        os._exit(1)


def _number(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    if not text.isdecimal():
        raise ValueError(f"{name} must be a whole number, not {text!r}")
    return int(text)
