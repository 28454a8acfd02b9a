"""Save a run without interrupting it, and restore it.

    checkpoints/<step>/   the whole state after that many steps, by orbax, with `checksums`
    unusable/<step>/      a checkpoint that was found to be damaged when the run was resumed

A checkpoint appears by a rename once it is complete on disk, so a run that is killed while saving
keeps its last complete checkpoint. Arrays are stored under their path in the state
(`params/core/layer_0/kernel`), without the types of the containers around them. Restoring never
executes or unpickles data.
"""

import contextlib
import dataclasses
import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from gtrxl_jax.files import is_full
from gtrxl_jax.parallel import hosts
from gtrxl_jax.runs.checkpoints import checksums
from gtrxl_jax.runs.checkpoints.arrays import abstract, by_name, require_same_arrays, snapshot
from gtrxl_jax.runs.checkpoints.checksums import UnusableError
from gtrxl_jax.runs.checkpoints.quiet import ignore_orphans, quiet
from gtrxl_jax.runs.directory import (
    Folder,
    available_steps,
    difference,
    require_storable,
    settings,
)

State = TypeVar("State")
Found = TypeVar("Found")


class SaveError(RuntimeError):
    """Raised when a checkpoint cannot be written. Earlier checkpoints are unaffected."""


class Saver:
    """Saves the checkpoints of a run. Close it after use, or use it as a context manager.

    Incomplete checkpoints left in `checkpoints/` by a process that was killed are removed.

    Args:
      folder: the run, locked by this process (see `directory.locked`).
      keep: number of newest checkpoints to keep, in addition to the best.
      best: step of the best checkpoint so far.
    """

    def __init__(self, folder: Folder, *, keep: int = 3, best: int | None = None):
        self._folder = folder
        self._config = settings(folder)
        self._retention = _Retention(keep, best)
        self._resources = contextlib.ExitStack()
        self._resources.enter_context(quiet())
        self._failed = False
        heed_orphans = ignore_orphans()
        # Orphaned threads of a failed save may outlive this object.
        self._resources.callback(lambda: None if self._failed else heed_orphans())
        self._remove_incomplete()
        options = ocp.CheckpointManagerOptions(preservation_policy=self._retention)
        self._manager = _manager(folder, options, _SealingHandler())
        self._resources.callback(self._manager.close)
        self._step: int | None = None

    def save(
        self, step: int, state: Any, record: Mapping[str, Any] | None = None, *, best: bool = False
    ) -> None:
        """Take a snapshot of the state, and write it in the background.

        If an earlier save is still being written, this waits for it (see `busy`).

        Args:
          step: step of the run, greater than that of any existing checkpoint.
          state: any pytree of arrays, including PRNG key arrays, on one device or sharded. It may
            be donated as soon as this returns.
          record: JSON-serializable values to store with it.
          best: whether to keep this checkpoint until a later one is the best.

        Raises:
          ValueError: if the folder has a checkpoint of this step or a later one, or two leaves have
            the same path because of a "/" in a key.
          TypeError: if a leaf is not an array or a number.
          SaveError: if this checkpoint, or the previous one, cannot be written.
        """
        # Orbax rejects arrays without entries, and they have nothing to store.
        arrays = {name: leaf for name, leaf in by_name(state).items() if np.size(leaf)}
        self.wait()
        latest = self._manager.latest_step()
        if latest is not None and step <= latest:
            raise ValueError(
                f"{self._folder} has a checkpoint of step {latest}, and {step} does not come after "
                "it: resume that run, or choose another folder"
            )
        self._step = step
        record = {**(record or {}), "step": step, "config": self._config}
        if best:
            self._retention.best = step
        with self._failures_named():
            copies = {name: snapshot(leaf) for name, leaf in arrays.items()}
            self._manager.save(step, args=_SealedSave(copies, record=record))

    @property
    def busy(self) -> bool:
        """Whether `save` would have to wait; always False with several hosts, which must agree."""
        return jax.process_count() == 1 and self._manager.is_saving_in_progress()

    def check(self) -> None:
        """Raise, without waiting, if a save has failed.

        Raises:
          SaveError: if it has.
        """
        with self._failures_named():
            self._manager.check_for_errors()

    def wait(self) -> None:
        """Wait until everything is on disk.

        Raises:
          SaveError: if it cannot be written.
        """
        with self._failures_named():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait for a running save, whether or not it fails, and release all resources."""
        try:
            with self._resources, contextlib.suppress(SaveError):
                self.wait()
        except Exception:
            if not self._failed:  # of which orbax may raise once more
                raise
        if self._failed:
            self._remove_incomplete()

    def _remove_incomplete(self) -> None:
        # Not by the manager's option, whose thread may outlive the manager.
        if hosts.is_first():
            for half in Path(self._folder, "checkpoints").glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*"):
                shutil.rmtree(half, ignore_errors=True)

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _failures_named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failed = True
            reason = " ".join(str(error)[:300].split()) or type(error).__name__
            if is_full(error):
                reason = os.strerror(errno.ENOSPC)
            raise SaveError(
                f"the checkpoint of step {self._step} cannot be saved in {self._folder}, earlier "
                f"ones are intact: {reason}"
            ) from error


def restore(
    folder: Folder,
    like: State,
    step: int | None = None,
    part: Callable[[State], Any] | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Restore a checkpoint, or a part of it.

    Args:
      folder: the run.
      like: the state to fill: a pytree of arrays, or of `jax.ShapeDtypeStruct` as returned by
        `jax.eval_shape`. Each array is placed by the `sharding` of its leaf, regardless of its
        placement when saved, or on the first device if the leaf has none.
      step: step of the checkpoint; if None, that of `newest_record`.
      part: selects what to read from the state, for example its parameters, which are converted if
        `jax_enable_x64` is not as it was for the run; the whole state by default, which is not.

    Returns:
      The part of the state, with its containers around the arrays of the checkpoint; and the
      record, see `newest_record`.

    Raises:
      FileNotFoundError: if there is no checkpoint.
      UnusableError: if the given checkpoint, or every one, is damaged or of another run.
      ValueError: if there is none of the given step, or it has another architecture: its arrays
        differ in name, shape or dtype from those of `like`.
    """

    def read() -> tuple[Any, dict[str, Any]]:
        if step is None:
            record = newest_record(folder)
        elif step not in (steps := available_steps(folder)):
            raise ValueError(f"{folder} has no checkpoint of step {step}; it has {steps}")
        else:
            record = _verify(folder, step)
        return _read(folder, record["step"], like, part), record

    return while_saving(folder, read)


def restore_below(folder: Folder, path: str) -> dict[str, np.ndarray]:
    """Restore the arrays below a path of the newest checkpoint, whatever state it has.

    Args:
      folder: the run.
      path: for example `learner/trainable/params/`.

    Returns:
      The arrays by name, without the path; none if the state has no such path.

    Raises:
      FileNotFoundError, UnusableError: see `restore`.
    """

    def read() -> dict[str, jax.Array]:
        step = newest_record(folder)["step"]
        with _reading(folder) as manager:
            there = manager.item_metadata(step).tree
            stored = {name: abstract(x) for name, x in there.items() if name.startswith(path)}
            return _arrays(manager, step, stored) if stored else {}

    arrays = while_saving(folder, read)
    return {name.removeprefix(path): np.asarray(array) for name, array in arrays.items()}


def while_saving(folder: Folder, read: Callable[[], Found]) -> Found:
    """Call a function that reads checkpoints, again if it fails since a process has removed them.

    A running process removes a checkpoint only after it has saved a newer one.
    """
    while True:
        steps = available_steps(folder)
        try:
            return read()
        except Exception:
            if available_steps(folder) == steps:
                raise


def newest_record(folder: Folder) -> dict[str, Any]:
    """Return what was recorded with the newest intact checkpoint.

    Newer ones that are not are reported on standard error.

    Returns:
      The record, which also has its "step", the run's "config" and, as "unusable", the steps of the
      newer ones.

    Raises:
      FileNotFoundError, UnusableError: see `restore`.
    """
    steps = available_steps(folder)
    if not steps:
        raise FileNotFoundError(
            f"{folder} holds no checkpoint: pass the folder of a run that has saved one"
        )
    unusable: list[int] = []
    for step in reversed(steps):
        try:
            return _verify(folder, step) | {"unusable": unusable}
        except UnusableError as error:
            if available_steps(folder) != steps:  # removed after a newer one was saved
                return newest_record(folder)
            print(f"{error}; skipping it", file=sys.stderr)
            unusable.append(step)
    raise UnusableError(f"no checkpoint in {folder} can be used, of {steps}: choose another folder")


def set_aside(folder: Folder, steps: Sequence[int]) -> None:
    """Move checkpoints to `unusable/`."""
    for step in steps:
        aside = Path(folder, "unusable", str(step))
        aside.parent.mkdir(exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        Path(folder, "checkpoints", str(step)).rename(aside)


def _verify(folder: Folder, step: int) -> dict[str, Any]:
    try:
        record = checksums.verify(Path(folder, "checkpoints", str(step), "default"))
        there, here = ({"step": step, **config} for config in (record["config"], settings(folder)))
        if found := difference(there | {"step": record["step"]}, here):
            raise UnusableError(f"it is of another run ({found})")
    except UnusableError as error:
        message = f"the checkpoint of step {step} in {folder} cannot be used: {error}"
        raise UnusableError(message) from None
    return record


def _read(folder: Folder, step: int, like: State, part: Callable[[State], Any] | None) -> Any:
    wanted = {name: abstract(leaf) for name, leaf in by_name(like).items()}
    names = jax.tree.unflatten(jax.tree.structure(like), list(wanted))
    if part:
        names = part(names)
    chosen = {name: wanted[name] for name in jax.tree.leaves(names)}
    stored = {name: leaf for name, leaf in chosen.items() if leaf.size}
    with _reading(folder) as manager:
        require_same_arrays(
            f"the checkpoint in {folder}",
            manager.item_metadata(step).tree,
            wanted,
            f"build the agent from {Path(folder, 'config.json')}, or restore another run",
            convert=part is not None,
        )
        arrays = _arrays(manager, step, stored)
    for name, leaf in stored.items():
        if arrays[name].dtype != leaf.dtype:  # keys of different types may be stored alike
            raise ValueError(
                f"{name} in {folder} is a PRNG key of type {arrays[name].dtype}, and {leaf.dtype} "
                "here: set jax_default_prng_impl as for that run, and create keys as it did"
            )

    def array(name: str) -> jax.Array:
        leaf = chosen[name]
        if name in stored:
            return arrays[name]
        return jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding)

    return jax.tree.map(array, names)


@contextlib.contextmanager
def _reading(folder: Folder) -> Iterator[ocp.CheckpointManager]:
    heed_orphans = ignore_orphans()
    with quiet():
        options = ocp.CheckpointManagerOptions(read_only=True)
        manager = _manager(folder, options, ocp.PyTreeCheckpointHandler())
        with contextlib.closing(manager):
            yield manager
    heed_orphans()  # not after a failure, whose threads may outlive it


def _arrays(
    manager: ocp.CheckpointManager, step: int, stored: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array]:
    """Read arrays of a checkpoint."""
    arguments = ocp.args.PyTreeRestore(
        stored,
        restore_args=ocp.checkpoint_utils.construct_restore_args(stored),
        partial_restore=True,
    )
    return manager.restore(step, args=arguments)


class _SealingHandler(ocp.StandardCheckpointHandler):
    """Writes the checksums of a checkpoint when it is complete, before it is renamed."""

    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        self._record = kwargs["args"].record
        return await super().async_save(directory, *args, **kwargs)

    def finalize(self, directory: Any) -> None:
        super().finalize(directory)
        checksums.write(directory, self._record)


@ocp.args.register_with_handler(_SealingHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class _SealedSave(ocp.args.StandardSave):
    """The arguments of a save by `_SealingHandler`: arrays, and the record for the checksums."""

    record: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class _Retention:
    """The policy of which checkpoints to keep after a save: the newest, and the best."""

    def __init__(self, keep: int, best: int | None):
        self._keep = keep
        self.best = best

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        newest = sorted(checkpoint.step for checkpoint in checkpoints)[-self._keep :]
        return [c.step in newest or c.step == self.best for c in checkpoints]


def _manager(
    folder: Folder, options: ocp.CheckpointManagerOptions, handler: ocp.CheckpointHandler
) -> ocp.CheckpointManager:
    require_storable(folder)
    path = Path(folder, "checkpoints").absolute()
    return ocp.CheckpointManager(path, options=options, item_handlers=handler)
