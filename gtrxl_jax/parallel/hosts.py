"""Several processes, one for each host of a pod or a cluster, that train one run together.

Every process runs the same command. The arrays of the run are spread over the devices of all (see
`placement`), each process computes on its own part of them, and the first one writes what there
is to write but checkpoints, in which all take part. Without `join` there is one process, and
nothing here does anything.
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

HEARTBEAT_SECONDS = 40
"""After so long without a sign of life a process is taken for dead, and the others end."""

ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def join() -> None:
    """Join the other processes of the run. Before anything computes, as importing gymnax does.

    JAX finds them by itself on a TPU pod and under SLURM, Open MPI and Kubernetes. Elsewhere three
    environment variables say where they are: JAX_COORDINATOR_ADDRESS, `host:port` of the first
    process, JAX_NUM_PROCESSES and JAX_PROCESS_ID, which counts from 0.

    Raises:
      ValueError: they are not to be found, or a variable is no number, or out of range.
    """
    # It would take SIGTERM for itself: `Interruption` listens, and `all_max` tells the others.
    jax.config.update("jax_enable_preemption_service", False)
    count, index = _number(COUNT), _number(INDEX)
    if count is not None and index is not None and not 0 <= index < count:
        raise ValueError(f"{INDEX} must be from 0 to {COUNT} - 1 = {count - 1}, not {index}")
    try:
        jax.distributed.initialize(
            num_processes=count, process_id=index, heartbeat_timeout_seconds=HEARTBEAT_SECONDS
        )
    except ValueError as error:
        raise ValueError(
            f"distributed: no other processes to join ({error}): run it on a TPU pod or under "
            f"SLURM, Open MPI or Kubernetes, or set {ADDRESS}, {COUNT} and {INDEX}"
        ) from None


def is_first() -> bool:
    """Whether this is the process that writes."""
    return jax.process_index() == 0


def all_max(number: int) -> int:
    """The largest of the numbers that the processes give, each at the same place of its program."""
    if jax.process_count() == 1:
        return number
    return int(np.max(multihost_utils.process_allgather(np.int32(number))))


def wait_for_all(place: str) -> None:
    """Wait until every process has come to this place."""
    multihost_utils.sync_global_devices(place)


def on_main_process(action: Callable[[], None], place: str) -> None:
    """Let the first process do something while the others wait."""
    wait_for_all(f"before {place}")
    if is_first():
        action()
    wait_for_all(f"after {place}")


@contextlib.contextmanager
def ending_together(*shared: type[Exception]) -> Iterator[None]:
    """End the process at once, with a line, where it alone cannot go on.

    It must not wait for what it would otherwise close: the others are on their way to a place that
    it will not come to, or are gone. They notice, in time by the missing heartbeats, and end too.

    Args:
      shared: exceptions that all processes raise at the same place; these are left alone.
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
