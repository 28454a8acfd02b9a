"""Save a run without interrupting it, and restore it.

    checkpoints/<step>/   the whole state after that many steps, by orbax
    unusable/<step>/      a checkpoint that was found to be damaged when the run was resumed

A checkpoint appears by a rename once it is complete on disk, so a run that is killed while saving
keeps its last complete checkpoint. Arrays are stored under their path in the state
(`params/core/layer_0/kernel`), without the types of the containers around them. Restoring never
executes or unpickles data.

`checksums.json` is a file in each checkpoint with the size and the CRC-32 of every other file, the
run's record at that step, and a CRC-32 of these entries. It is written last, before the checkpoint
is renamed. Orbax has no checksum of array data: without it, a flipped bit would be another number.
"""

import contextlib
import dataclasses
import errno
import json
import logging
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from gtrxl_jax.files import is_full
from gtrxl_jax.parallel import hosts
from gtrxl_jax.runs.arrays import abstract, by_name, require_same_arrays, snapshot
from gtrxl_jax.runs.directory import (
    Folder,
    available_steps,
    difference,
    read_config,
    require_storable,
)

State = TypeVar("State")
Found = TypeVar("Found")

CHECKSUMS = "checksums.json"


class UnusableError(ValueError):
    """Raised for a checkpoint that is damaged or belongs to another run."""


class SaveError(RuntimeError):
    """Raised when a checkpoint cannot be written. Earlier checkpoints are unaffected."""


class Saver:
    """Saves the checkpoints of a run. Close it after use, or use it as a context manager.

    Incomplete checkpoints left in `checkpoints/` by a process that was killed are removed.

    Args:
      folder: the run, locked by this process (see `directory.lock_folder`).
      keep: number of newest checkpoints to keep, in addition to the best.
      best: step of the best checkpoint so far.
    """

    def __init__(self, folder: Folder, *, keep: int = 3, best: int | None = None):
        self._folder = folder
        self._config = read_config(folder)
        self._retention = _Retention(keep, best)
        self._resources = contextlib.ExitStack()
        self._resources.enter_context(_quiet())
        self._failed = False
        report_orphans = _ignore_orphans()
        # Orphaned threads of a failed save may outlive this object.
        self._resources.callback(lambda: None if self._failed else report_orphans())
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
          step: step of the run, greater than the steps of existing checkpoints.
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
        with self._convert_errors():
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
        with self._convert_errors():
            self._manager.check_for_errors()

    def wait(self) -> None:
        """Wait until everything is on disk.

        Raises:
          SaveError: if it cannot be written.
        """
        with self._convert_errors():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait for a running save, whether or not it fails, and release all resources."""
        try:
            with self._resources, contextlib.suppress(SaveError):
                self.wait()
        except Exception:
            if not self._failed:  # After a failure, orbax may raise once more.
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
    def _convert_errors(self) -> Iterator[None]:
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


def restore(folder: Folder, like: State) -> tuple[State, dict[str, Any]]:
    """Restore the newest intact checkpoint.

    Args:
      folder: the run.
      like: the state to fill: a pytree of arrays, or of `jax.ShapeDtypeStruct` as returned by
        `jax.eval_shape`. Each array is placed by the `sharding` of its leaf, regardless of its
        placement when saved, or on the first device if the leaf has none.

    Returns:
      The state, with its containers around the arrays of the checkpoint; and the record, see
      `newest_record`.

    Raises:
      FileNotFoundError: if there is no checkpoint.
      UnusableError: if every checkpoint is damaged or of another run.
      ValueError: if it has another architecture: its arrays differ in name, shape or dtype from
        `like`.
    """
    wanted = {name: abstract(leaf) for name, leaf in by_name(like).items()}

    def read() -> tuple[dict[str, jax.Array], dict[str, Any]]:
        record = newest_record(folder)
        with _reading(folder, record["step"]) as checkpoint:
            remedy = f"build the agent from {Path(folder, 'config.json')}, or restore another run"
            require_same_arrays(f"the checkpoint in {folder}", checkpoint.described, wanted, remedy)
            stored = {name: leaf for name, leaf in wanted.items() if leaf.size}
            return checkpoint.read(stored), record

    arrays, record = _retry_reads(folder, read)
    for name, array in arrays.items():
        if array.dtype != wanted[name].dtype:  # keys of different types may be stored alike
            raise ValueError(
                f"{name} in {folder} is a PRNG key of type {array.dtype}, and "
                f"{wanted[name].dtype} here: set jax_default_prng_impl as for that run, and create "
                "keys as it did"
            )
    leaves = [
        arrays[name] if name in arrays else jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding)
        for name, leaf in wanted.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(like), leaves), record


def read_arrays(
    folder: Folder, wanted: Callable[[str], bool], *, best: bool = False, step: int | None = None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read some arrays of the newest checkpoint, or of another, whatever state it has.

    Args:
      folder: the run.
      wanted: whether to read the array of a path.
      best: whether to read the best checkpoint.
      step: the step of the checkpoint to read.

    Returns:
      The arrays by path, of those that there are; and the record, see `newest_record`.

    Raises:
      FileNotFoundError: if there is no checkpoint.
      UnusableError: if the chosen checkpoint, or without a choice every one, is damaged or of
        another run.
      ValueError: if the run has no best checkpoint, or none of the given step.
    """

    def read() -> tuple[dict[str, jax.Array], dict[str, Any]]:
        record = newest_record(folder) if step is None else _record_of(folder, step)
        if best:
            if not record["best"]:
                raise ValueError(
                    f"{folder} has no best checkpoint: its config names no score for it"
                )
            record = _record_of(folder, record["best"][0])
        with _reading(folder, record["step"]) as checkpoint:
            stored = {
                name: abstract(leaf) for name, leaf in checkpoint.described.items() if wanted(name)
            }
            return checkpoint.read(stored), record

    arrays, record = _retry_reads(folder, read)
    return {name: np.asarray(array) for name, array in arrays.items()}, record


def _retry_reads(folder: Folder, read: Callable[[], Found]) -> Found:
    """Call a function that reads checkpoints; retry if a running process removed one meanwhile.

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
            return _verified_record(folder, step) | {"unusable": unusable}
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


def _record_of(folder: Folder, step: int) -> dict[str, Any]:
    """Return the record of a checkpoint, if it is intact and of this run."""
    if step not in (steps := available_steps(folder)):
        raise ValueError(f"{folder} has no checkpoint of step {step}; it has {steps}")
    return _verified_record(folder, step)


def _verified_record(folder: Folder, step: int) -> dict[str, Any]:
    try:
        record = _verify_checksums(Path(folder, "checkpoints", str(step), "default"))
        there, here = (
            {"step": step, **config} for config in (record["config"], read_config(folder))
        )
        if found := difference(there | {"step": record["step"]}, here):
            raise UnusableError(f"it is of another run ({found})")
    except UnusableError as error:
        message = f"the checkpoint of step {step} in {folder} cannot be used: {error}"
        raise UnusableError(message) from None
    return record


@dataclasses.dataclass(frozen=True)
class _Checkpoint:
    """An open checkpoint, with a description of each array by its path."""

    manager: ocp.CheckpointManager
    step: int
    described: Mapping[str, Any]

    def read(self, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        """Return arrays by path, with the given shardings."""
        if not wanted:
            return {}
        arguments = ocp.args.PyTreeRestore(
            wanted,
            restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
            partial_restore=True,
        )
        return self.manager.restore(self.step, args=arguments)


@contextlib.contextmanager
def _reading(folder: Folder, step: int) -> Iterator[_Checkpoint]:
    report_orphans = _ignore_orphans()
    with _quiet():
        options = ocp.CheckpointManagerOptions(read_only=True)
        manager = _manager(folder, options, ocp.PyTreeCheckpointHandler())
        with contextlib.closing(manager):
            yield _Checkpoint(manager, step, manager.item_metadata(step).tree)
    report_orphans()  # Skipped after a failure, whose threads may outlive this block.


class _SealingHandler(ocp.StandardCheckpointHandler):
    """Writes the checksums of a checkpoint when it is complete, before it is renamed."""

    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        self._record = kwargs["args"].record
        return await super().async_save(directory, *args, **kwargs)

    def finalize(self, directory: Any) -> None:
        super().finalize(directory)
        _write_checksums(Path(directory), self._record)


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


def _write_checksums(folder: Path, record: Mapping[str, Any]) -> None:
    """Write the checksums of all files in and below `folder`, with a JSON record."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    content = {
        "record": dict(record),
        "files": {str(path.relative_to(folder)): _size_and_crc(path) for path in sorted(files)},
    }
    checked = {"crc32": _crc_of(content), **content}
    with open(folder / CHECKSUMS, "w", encoding="utf-8") as file:
        json.dump(checked, file)
        file.flush()
        os.fsync(file.fileno())


def _verify_checksums(folder: Path) -> dict[str, Any]:
    """Return the record if all files in the folder exist and are unchanged.

    Raises:
      UnusableError: naming the first file that is missing or has changed.
    """
    try:
        content = json.loads((folder / CHECKSUMS).read_text("utf-8"))
        stated, record, files = (content.pop(name) for name in ("crc32", "record", "files"))
    except FileNotFoundError:
        raise UnusableError(f"it has no {CHECKSUMS}: it was not written by this library") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise UnusableError(f"its {CHECKSUMS} cannot be read") from None
    if stated != _crc_of({"record": record, "files": files}):
        raise UnusableError(f"its {CHECKSUMS} has changed")
    for name, description in files.items():
        path = folder / name
        try:
            size = path.stat().st_size
            if size != description[0]:
                raise UnusableError(f"{name} has {size:,} bytes instead of {description[0]:,}")
            if _size_and_crc(path) != description:
                raise UnusableError(f"the content of {name} has changed")
        except (FileNotFoundError, IsADirectoryError):
            raise UnusableError(f"{name} is missing") from None
    return record


def _size_and_crc(path: Path) -> list[int]:
    """Return the size and the CRC-32 of a file."""
    crc = size = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
            size += len(block)
    return [size, crc]


def _crc_of(content: Any) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress orbax's log messages, on each phase of its work and on errors that it raises."""
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _ignore_orphans() -> Callable[[], None]:
    """Suppress reports of threads whose save or read has failed; return a function that ends this.

    When one array cannot be written or read, orbax stops waiting, and the threads of the others
    find their event loop closed.
    """
    hook = sys.unraisablehook

    def unraisable(failure: Any) -> None:
        if str(failure.exc_value) != "Event loop is closed":
            hook(failure)

    def report_orphans() -> None:
        sys.unraisablehook = hook

    sys.unraisablehook = unraisable
    return report_orphans
