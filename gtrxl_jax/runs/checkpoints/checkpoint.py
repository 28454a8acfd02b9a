"""Saving a run without stopping it, and taking it up again.

    checkpoints/<step>/   the whole state after that many steps, by orbax, with `checksums`
    unusable/<step>/      a checkpoint that had changed when the run was taken up, set aside

A checkpoint appears by a rename once all of it is on disk, so a run that is killed while it saves
has its last whole one. Arrays are stored under their path in the state
(`params/core/layer_0/kernel`), without the types of the containers around them: nothing that is
read back is executed or unpickled.
"""

import contextlib
import dataclasses
import logging
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from gtrxl_jax.parallel import hosts
from gtrxl_jax.runs.checkpoints import checksums
from gtrxl_jax.runs.checkpoints.arrays import abstract, by_name, require_same_arrays
from gtrxl_jax.runs.directory import Folder, difference, settings
from gtrxl_jax.runs.checkpoints.checksums import UnusableError

State = TypeVar("State")


class SaveError(RuntimeError):
    """A checkpoint could not be written. Those before it are as they were."""


class Saver:
    """Saves the checkpoints of a run that is going on; to be closed, or used with `with`.

    What is left in `checkpoints/` of a process that was killed while saving is cleared away.

    Args:
      folder: the run, which this process holds (see `directory.locked`).
      keep: how many checkpoints stay; the newest, and besides them the best.
      best: the step of the best one so far.
    """

    def __init__(self, folder: Folder, *, keep: int = 3, best: int | None = None):
        self._folder = folder
        self._config = settings(folder)
        self._retention = _Retention(keep, best)
        self._resources = contextlib.ExitStack()
        self._resources.enter_context(_quiet())
        self._failed = False
        heed_orphans = _ignore_orphans()
        # Those of a save that has failed may outlive this.
        self._resources.callback(lambda: None if self._failed else heed_orphans())
        if hosts.is_first():
            # Not by the manager's own option: that goes on in a thread, which may outlive it.
            for half in Path(folder, "checkpoints").glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*"):
                shutil.rmtree(half)
        options = ocp.CheckpointManagerOptions(preservation_policy=self._retention)
        self._manager = _manager(folder, options, _SealingHandler())
        self._resources.callback(self._manager.close)
        self._step: int | None = None

    def save(
        self, step: int, state: Any, record: Mapping[str, Any] | None = None, *, best: bool = False
    ) -> None:
        """Take the state as it is now, and write it while the caller goes on.

        A save that is still being written is waited for (see `busy`).

        Args:
          step: how far the run is; past every checkpoint there.
          state: any pytree of arrays, PRNG key arrays among them, on one device or sharded. It may
            be donated as soon as this returns.
          record: more to be kept with it, as JSON can hold it.
          best: it stays until a later one is the best.

        Raises:
          ValueError: the folder has a checkpoint of this step or a later one; or two leaves have
            one path, by a "/" in a key.
          TypeError: a leaf is not an array or a number.
          SaveError: this one, or the one before it, cannot be written.
        """
        # An array without entries has nothing to store, and orbax would not have it.
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
            snapshot = {name: _snapshot(leaf) for name, leaf in arrays.items()}
            self._manager.save(step, args=_SealedSave(snapshot, record=record))

    @property
    def busy(self) -> bool:
        """Whether `save` would have to wait; never so on several hosts, which must agree."""
        return jax.process_count() == 1 and self._manager.is_saving_in_progress()

    def check(self) -> None:
        """Find out, without waiting, whether a save has failed.

        Raises:
          SaveError: it has.
        """
        with self._failures_named():
            self._manager.check_for_errors()

    def wait(self) -> None:
        """Wait until everything is on disk.

        Raises:
          SaveError: it cannot be written.
        """
        with self._failures_named():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait for a save that is going on, whether it fails or not, and let go."""
        with self._resources, contextlib.suppress(SaveError):
            self.wait()

    def __enter__(self) -> Self:
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
            raise SaveError(
                f"the checkpoint of step {self._step} cannot be saved in {self._folder}, those "
                f"before it are intact: {reason}"
            ) from error


def restore(folder: Folder, like: State, step: int | None = None) -> tuple[State, dict[str, Any]]:
    """Read a checkpoint back.

    Args:
      folder: the run.
      like: the state to fill: a pytree of arrays, or of `jax.ShapeDtypeStruct` such as
        `jax.eval_shape` gives. Each array goes where the leaf's `sharding` says, whatever it was
        when it was saved, or to the first device where it says nothing.
      step: which checkpoint; if None, the newest that is as it was written, and standard error
        says which were passed over.

    Returns:
      The state, with the containers of `like` around the arrays of the checkpoint; and what was
      recorded with it, besides its "step" and the run's "config".

    Raises:
      FileNotFoundError: there is no checkpoint.
      UnusableError: that one, or every one, is damaged or of another run.
      ValueError: there is none of that step, or it is of another architecture: its arrays have
        other names, shapes or types than those of `like`.
    """
    steps = available_steps(folder)
    if not steps:
        raise FileNotFoundError(
            f"{folder} holds no checkpoint: give the folder of a run that saved"
        )
    if step is not None and step not in steps:
        raise ValueError(f"{folder} has no checkpoint of step {step}; it has {steps}")
    for candidate in [step] if step is not None else reversed(steps):
        try:
            record = _verify(folder, candidate)
        except UnusableError as error:
            if step is not None:
                raise
            print(f"{error}; it is passed over", file=sys.stderr)
        else:
            return _read(folder, candidate, like), record
    raise UnusableError(f"no checkpoint in {folder} can be used, of {steps}: choose another folder")


def set_aside_unusable(folder: Folder) -> None:
    """Move the newest checkpoints that cannot be used out of the way of those to come."""
    for step in reversed(available_steps(folder)):
        try:
            _verify(folder, step)
            return
        except UnusableError:
            aside = Path(folder, "unusable", str(step))
            aside.parent.mkdir(exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)
            Path(folder, "checkpoints", str(step)).rename(aside)


def available_steps(folder: Folder) -> list[int]:
    """The steps of the checkpoints, in order; none if there is no such folder."""
    path = Path(folder, "checkpoints")
    if not path.is_dir():
        return []
    return sorted(int(entry.name) for entry in path.iterdir() if entry.name.isdecimal())


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


def _read(folder: Folder, step: int, like: State) -> State:
    wanted = {name: abstract(leaf) for name, leaf in by_name(like).items()}
    with contextlib.ExitStack() as resources:
        resources.enter_context(_quiet())
        options = ocp.CheckpointManagerOptions(read_only=True)
        manager = _manager(folder, options, ocp.StandardCheckpointHandler())
        resources.callback(manager.close)
        require_same_arrays(folder, manager.item_metadata(step).tree, wanted)
        stored = {name: leaf for name, leaf in wanted.items() if leaf.size}
        arrays = manager.restore(step, args=ocp.args.StandardRestore(stored))
    for name, leaf in stored.items():
        if arrays[name].dtype != leaf.dtype:  # keys of two kinds can be stored alike
            raise ValueError(
                f"{name} in {folder} is a PRNG key of type {arrays[name].dtype}, and {leaf.dtype} "
                "here: set jax_default_prng_impl to what that run had, and make keys as it did"
            )
    leaves = [
        arrays[name] if name in arrays else jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding)
        for name, leaf in wanted.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


class _SealingHandler(ocp.StandardCheckpointHandler):
    """Seals a checkpoint when all of it has been written and it has not yet got its name."""

    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        self._record = kwargs["args"].record
        return await super().async_save(directory, *args, **kwargs)

    def finalize(self, directory: Any) -> None:
        super().finalize(directory)
        checksums.write(directory, self._record)


@ocp.args.register_with_handler(_SealingHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class _SealedSave(ocp.args.StandardSave):
    """What `_SealingHandler` saves: arrays, and the record for the checksums."""

    record: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class _Retention:
    """Which checkpoints stay when a new one has been written: the newest, and the best."""

    def __init__(self, keep: int, best: int | None):
        self._keep = keep
        self.best = best

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        newest = sorted(checkpoint.step for checkpoint in checkpoints)[-self._keep :]
        return [c.step in newest or c.step == self.best for c in checkpoints]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what orbax says besides: of each phase of its work, and of errors that it raises."""
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
    """Without reports of threads whose save has failed; returns what ends this.

    When one array cannot be written orbax stops waiting, and the threads that write the others find
    nobody to tell.
    """
    report = sys.unraisablehook

    def unraisable(failure: Any) -> None:
        if str(failure.exc_value) != "Event loop is closed":
            report(failure)

    def heed() -> None:
        sys.unraisablehook = report

    sys.unraisablehook = unraisable
    return heed


def _manager(
    folder: Folder, options: ocp.CheckpointManagerOptions, handler: ocp.CheckpointHandler
) -> ocp.CheckpointManager:
    path = Path(folder, "checkpoints").absolute()
    return ocp.CheckpointManager(path, options=options, item_handlers=handler)


def _snapshot(leaf: Any) -> Any:
    """A copy of an array that lives on when the state is donated, on the host if it can be there.

    A view of the buffer would do on accelerators, but on CPU it would be the buffer itself.
    """
    if not isinstance(leaf, jax.Array):
        return leaf
    copy = jnp.copy(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) or not leaf.is_fully_addressable:
        return copy
    return np.asarray(copy)
