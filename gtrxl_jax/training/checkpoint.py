"""Saving a run and taking it up again.

A run is one folder:

    config.json           what the run is, as JSON; whoever writes it first owns the folder
    checkpoints/<step>/   the whole state after that many steps, by orbax

A checkpoint appears by a rename once all of it is on disk, so what can be seen can be restored.
Arrays are stored under their path in the state (`params/core/layer_0/kernel`), without the types of
the containers around them: nothing that is read back is executed or unpickled.
"""

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import SingleDeviceSharding

from gtrxl_jax.files import atomic

Folder = str | os.PathLike[str]
State = TypeVar("State")


def claim(folder: Folder, config_json: str, *, resume: bool = False) -> None:
    """Make `folder` the run of this config. Call it first: it costs nothing and may refuse.

    Args:
      folder: made if missing.
      config_json: the resolved config as a JSON object.
      resume: take up the run that is there, if there is one, provided that its config is this one.

    Raises:
      ValueError: the folder holds a run already and `resume` is false, or it holds another run.
    """
    path = Path(folder, "config.json")
    if path.exists() and not resume:
        raise ValueError(f"{folder} holds a run already: choose another folder")
    _require_same_run(folder, config_json)
    if jax.process_index() or (resume and path.exists()):
        return
    try:
        with atomic(path, replace=False) as temporary:
            temporary.write_text(config_json)
    except FileExistsError:
        # Taken since we looked. Whoever resumes may share it with a run of the same config.
        if not resume:
            raise ValueError(f"{folder} was just taken by another run: choose another") from None
        _require_same_run(folder, config_json)


def save(folder: Folder, step: int, state: Any, config_json: str, *, keep: int = 3) -> None:
    """Store `state` as the checkpoint of `step`, and delete all but the newest `keep`.

    Args:
      folder: the run; it becomes one by `claim` if it is not yet.
      step: how far the run is; past every checkpoint there.
      state: any pytree of arrays, PRNG key arrays among them, on one device or sharded.
      config_json: the resolved config of the run.
      keep: how many checkpoints stay.

    Raises:
      ValueError: the folder holds another run, or a checkpoint of this step or a later one; or two
        leaves have one path, by a "/" in a key.
      TypeError: a leaf is not an array or a number.
    """
    # An array without entries has nothing to store, and orbax would not have it.
    arrays = {name: leaf for name, leaf in _by_name(state).items() if np.size(leaf)}
    claim(folder, config_json, resume=True)
    with _manager(folder, max_to_keep=keep) as manager:
        latest = manager.latest_step()
        if latest is not None and step <= latest:
            raise ValueError(
                f"{folder} has a checkpoint of step {latest}, and {step} does not come after it: "
                "resume that run, or choose another folder"
            )
        manager.save(step, args=ocp.args.StandardSave(arrays))


def restore(folder: Folder, like: State, step: int | None = None) -> State:
    """Read a checkpoint back.

    Args:
      folder: the run.
      like: the state to fill: a pytree of arrays, or of `jax.ShapeDtypeStruct` such as
        `jax.eval_shape` gives. Each array goes where the leaf's `sharding` says, whatever it was
        when it was saved, or to the first device where it says nothing.
      step: which checkpoint; the newest if None.

    Returns:
      The state, with the containers of `like` around the arrays of the checkpoint.

    Raises:
      FileNotFoundError: there is no checkpoint.
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
    step = steps[-1] if step is None else step
    wanted = {name: _abstract(leaf) for name, leaf in _by_name(like).items()}
    with _manager(folder, read_only=True) as manager:
        _require_same_arrays(folder, manager.item_metadata(step).tree, wanted)
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


def available_steps(folder: Folder) -> list[int]:
    """The steps whose checkpoints can be restored, in order; none if there is no such folder."""
    if not Path(folder, "checkpoints").is_dir():
        return []
    with _manager(folder, read_only=True) as manager:
        return sorted(manager.all_steps())


def load_config(folder: Folder) -> str:
    """The config of the run in `folder`, the JSON text that it was claimed with.

    Raises:
      FileNotFoundError: there is no run.
    """
    try:
        return Path(folder, "config.json").read_text()
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} holds no run: it has no config.json") from None


@contextlib.contextmanager
def _manager(
    folder: Folder, *, read_only: bool = False, max_to_keep: int | None = None
) -> Iterator[ocp.CheckpointManager]:
    # Orbax logs every phase of its work, and warns of the options that it derives from ours.
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        options = ocp.CheckpointManagerOptions(
            read_only=read_only,
            max_to_keep=max_to_keep,
            cleanup_tmp_directories=not read_only,  # left by a run that was killed while saving
            enable_async_checkpointing=False,
        )
        handler = ocp.StandardCheckpointHandler()
        path = Path(folder, "checkpoints").absolute()
        with ocp.CheckpointManager(path, options=options, item_handlers=handler) as manager:
            yield manager
    finally:
        logger.setLevel(level)


def _by_name(tree: Any) -> dict[str, Any]:
    """The leaves under their paths, `params/core/layer_0/kernel`, in the order of the tree."""
    leaves, _ = jax.tree.flatten_with_path(tree)
    by_name = {}
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
            leaf = np.asarray(leaf)
            if leaf.dtype.kind not in "biufV":
                raise TypeError(
                    f"{name} is not an array or a number, and cannot be saved: {leaf!r}"
                )
        if name in by_name:
            raise ValueError(f"two arrays of the state are called {name}: rename a key with a '/'")
        by_name[name] = leaf
    return by_name


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _require_same_arrays(folder: Folder, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Compare what a checkpoint has with what is asked for, before orbax reads any of it."""
    saved = {name: _describe(metadata) for name, metadata in there.items()}
    # Of an array without entries there is nothing in the checkpoint.
    asked = {name: _describe(leaf) for name, leaf in here.items() if leaf.size or name in saved}
    differing = [n for n in [*asked, *(saved.keys() - asked)] if saved.get(n) != asked.get(n)]
    if differing:
        name = differing[0]
        raise ValueError(
            f"the checkpoint in {folder} is of another architecture, in {len(differing)} of "
            f"{len(saved.keys() | asked)} arrays: {name} is {saved.get(name, 'absent')} there and "
            f"{asked.get(name, 'absent')} here; "
            f"build the agent from {Path(folder, 'config.json')}, or restore another run"
        )


def _describe(leaf: Any) -> str:
    """Type and shape, `float32[3, 4]`, of an array or of what stands for one."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        # Keys are stored as the integers that they are made of.
        leaf = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    return f"{jnp.dtype(leaf.dtype).name}{list(leaf.shape)}"


def _require_same_run(folder: Folder, config_json: str) -> None:
    try:
        there = json.loads(load_config(folder))
    except FileNotFoundError:
        return
    difference = _first_difference(there, json.loads(config_json), "")
    if difference:
        raise ValueError(f"{folder} holds another run ({difference}): choose another folder")


def _first_difference(there: Any, here: Any, name: str) -> str | None:
    if isinstance(there, dict) and isinstance(here, dict):
        for key in [*here, *(there.keys() - here)]:
            inner = f"{name}.{key}" if name else key
            found = _first_difference(there.get(key), here.get(key), inner)
            if found:
                return found
        return None
    return (
        None if there == here else f"{name} is {json.dumps(there)} there, {json.dumps(here)} here"
    )
