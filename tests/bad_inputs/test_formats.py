"""Damaged datasets of all formats are refused in a line with the file, the place and the remedy.

By `gtrxl data convert`, which reads as `gtrxl train-offline` does, and leaves nothing behind.
"""

import gzip
import io
import os
import re
import zipfile

import h5py
import numpy as np
import pytest

from gtrxl_jax.cli.main import main
from gtrxl_jax.data import datasets, minari
from tests.bad_inputs.refusal import refused
from tests.data.files import (
    d4rl_arrays,
    maze_arrays,
    write_d4rl,
    write_gzip,
    write_mazes,
    write_shard,
)
from tests.data.sets import make_set


class Objects:
    """An object that says so if it is unpickled."""

    def __reduce__(self):
        return os._exit, (3,)


def pickled(path):
    np.save(path, np.array([Objects()] * 12), allow_pickle=True)


def d4rl(**changes):
    """Write a file of D4RL with other arrays, or without those that are None."""

    def write(folder):
        arrays = d4rl_arrays()
        for name, change in changes.items():
            arrays[name] = change(arrays.get(name)) if callable(change) else change
        write_d4rl(folder / "data", {k: v for k, v in arrays.items() if v is not None})

    return write


def d4rl_file(change):
    def write(folder):
        write_d4rl(folder / "data", d4rl_arrays())
        with h5py.File(folder / "data", "a") as file:
            change(file)

    return write


def replaced(place, value):
    """Return a function that sets an entry of an array."""

    def change(array):
        array = array.copy()
        array[place] = value
        return array

    return change


def link_to(target):
    def change(file):
        del file["rewards"]
        file["rewards"] = target

    return change


def elsewhere(file):
    del file["rewards"]
    file.create_dataset("rewards", (12,), np.uint8, external=[("/etc/hostname", 0, 12)])


def cut(write, name):
    """Write a dataset, and cut a file of it short."""

    def write_and_cut(folder):
        write(folder)
        file = folder / "data" / name if name else folder / "data"
        os.truncate(file, file.stat().st_size * 2 // 3)

    return write_and_cut


def shard(change=None, **options):
    """Write a shard of DQN-replay, and change its folder."""

    def write(folder):
        write_shard(folder / "data", 0, **{"episodes": (5, 2), "padded": False, **options})
        if change:
            change(folder / "data")

    return write


def stored(field, array, number=0):
    return lambda folder: write_gzip(folder / f"$store$_{field}_ckpt.{number}.gz", array)


def content(field, change):
    """Change the bytes inside of the gzip of a field."""

    def write(folder):
        path = folder / f"$store$_{field}_ckpt.0.gz"
        path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))

    return write


def raw(field, change):
    """Change the bytes of the file of a field."""

    def write(folder):
        path = folder / f"$store$_{field}_ckpt.0.gz"
        path.write_bytes(change(path.read_bytes()))

    return write


def objects_in_gzip(folder):
    found = io.BytesIO()
    pickled(found)
    (folder / "$store$_action_ckpt.0.gz").write_bytes(gzip.compress(found.getvalue()))


def moved(name):
    """Put a file elsewhere, with a link to it."""

    def write(folder):
        (folder / name).rename(folder.parent / "elsewhere")
        (folder / name).symlink_to(folder.parent / "elsewhere")

    return write


def maze(**changes):
    """Write trajectories of Memory Maze, one of them with other arrays."""

    def write(folder):
        write_mazes(folder / "data")
        arrays = maze_arrays(4)
        for name, change in changes.items():
            arrays[name] = change(arrays[name]) if callable(change) else change
        arrays = {name: array for name, array in arrays.items() if array is not None}
        np.savez(folder / "data" / "episode-8.npz", **arrays)

    return write


def mazes(change):
    def write(folder):
        write_mazes(folder / "data")
        change(folder / "data")

    return write


def objects_in_zip(folder):
    with zipfile.ZipFile(folder / "episode-8.npz", "w") as archive:
        for name, array in maze_arrays(4).items():
            with archive.open(f"{name}.npy", "w") as file:
                pickled(file) if name == "reward" else np.save(file, array)


def flipped(path):
    """Change a byte in the middle of a file."""
    found = bytearray(path.read_bytes())
    found[len(found) // 2] ^= 255
    path.write_bytes(found)


def ours(change=None):
    """Write a dataset in the format of this package, and change its HDF5 file."""

    def write(folder):
        minari.save(make_set((6, 9, 2, 3)), folder / "data")
        if change:
            with h5py.File(folder / "data" / "data" / "main_data.hdf5", "a") as file:
                change(file)

    return write


def set_entry(name, place, value):
    return ours(lambda file: file[name].__setitem__(place, value))


def put(name, array):
    def change(file):
        del file[name]
        file[name] = array

    return ours(change)


SKIP = "leave out all bad episodes with --skip-bad"
AGAIN = "get it again"
DAMAGED = {
    # D4RL
    "d4rl: cut short": (cut(d4rl(), ""), "data cannot be read as a file of D4RL", AGAIN),
    "d4rl: no rewards": (d4rl(rewards=None), "data has no array rewards", "get a file of D4RL"),
    "d4rl: no actions": (d4rl(actions=None), "data has no array actions", "get a file of D4RL"),
    "d4rl: no timeouts": (d4rl(timeouts=None), "has no array timeouts", "add an array"),
    "d4rl: no terminals": (d4rl(terminals=None), "has no array terminals", "get a file"),
    "d4rl: lost rewards": (
        d4rl(rewards=lambda x: x[:-1]),
        "observations has 12 entries, but rewards has 11",
        AGAIN,
    ),
    "d4rl: lost actions": (
        d4rl(actions=lambda x: x[1:]),
        "actions has 11 entries, but rewards has 12",
        AGAIN,
    ),
    "d4rl: lost timeouts": (d4rl(timeouts=lambda x: x[1:]), "timeouts has 11 entries", AGAIN),
    "d4rl: lost next observations": (
        d4rl(next_observations=np.zeros((11, 3), np.float32)),
        "next_observations has 11 entries",
        AGAIN,
    ),
    "d4rl: other next observations": (
        d4rl(next_observations=np.zeros((12, 2), np.float32)),
        r"next_observations has shape \[12, 2\], but observations has \[12, 3\]",
        "remove or repair it",
    ),
    "d4rl: empty": (
        d4rl(**dict.fromkeys(d4rl_arrays(), lambda x: x[:0])),
        "data contains no episodes",
        "arrays are empty",
    ),
    "d4rl: text as rewards": (
        d4rl(rewards=np.array([b"1"] * 12)),
        r"rewards is bytes8\[12\]",
        "store one number for each step",
    ),
    "d4rl: two rewards": (
        d4rl(rewards=np.zeros((12, 2))),
        r"rewards is float64\[12, 2\]",
        "store one number for each step",
    ),
    "d4rl: terminal of 2": (
        d4rl(terminals=np.arange(12) % 3),
        r"terminals\[2\] is 2",
        "repair it to 0 or 1",
    ),
    "d4rl: NaN observation": (
        d4rl(observations=replaced((6, 1), np.nan)),
        r"episode 1, step 1: observations\[1\] is nan, not finite",
        SKIP,
    ),
    "d4rl: NaN action": (
        d4rl(actions=replaced((9, 0), np.nan)),
        r"episode 2, step 1: actions\[0\] is nan",
        SKIP,
    ),
    "d4rl: infinite reward": (
        d4rl(rewards=replaced(4, np.inf)),
        "episode 0, step 4: rewards is inf",
        SKIP,
    ),
    "d4rl: negative choice": (
        d4rl(actions=np.full(12, -1)),
        "actions are integers down to -1: choices count from 0",
        "store them so, or as floats",
    ),
    "d4rl: link to a file": (
        d4rl_file(link_to(h5py.ExternalLink("/etc/passwd", "/"))),
        "rewards is a link, and only data in the file itself are read",
        AGAIN,
    ),
    "d4rl: link inside": (d4rl_file(link_to(h5py.SoftLink("/terminals"))), "is a link", AGAIN),
    "d4rl: array elsewhere": (d4rl_file(elsewhere), "rewards is in another file", AGAIN),
    "d4rl: group as rewards": (
        d4rl_file(lambda file: (file.__delitem__("rewards"), file.create_group("rewards"))),
        "rewards is no array with an entry for each step",
        AGAIN,
    ),
    "d4rl: episodes of Minari": (
        lambda folder: h5py.File(folder / "data", "w").create_group("episode_0"),
        "data has no array observations",
        "the folder of a Minari dataset",
    ),
    # DQN-replay
    "dqn: observations cut short": (
        cut(shard(), "$store$_observation_ckpt.0.gz"),
        r"observation_ckpt.0.gz is damaged: ",
        AGAIN,
    ),
    "dqn: actions cut short": (
        cut(shard(), "$store$_action_ckpt.0.gz"),
        r"action_ckpt.0.gz is damaged",
        AGAIN,
    ),
    "dqn: fewer frames than declared": (
        shard(content("observation", lambda x: x[:-40])),
        "observation_ckpt.0.gz is damaged: it ends among the 7 frames that it declares",
        AGAIN,
    ),
    "dqn: more frames than declared": (
        shard(content("observation", lambda x: x + b"more")),
        "there are bytes after its 7 frames",
        AGAIN,
    ),
    "dqn: fewer rewards than declared": (
        shard(content("reward", lambda x: x[:-4])),
        r"reward_ckpt.0.gz declares float32\[7\], and has 24 bytes",
        AGAIN,
    ),
    "dqn: damaged frames": (
        shard(raw("observation", lambda x: x[:-8] + b"\0" * 8)),
        "observation_ckpt.0.gz is damaged: CRC check failed",
        AGAIN,
    ),
    "dqn: no gzip": (
        shard(raw("observation", gzip.decompress)),
        "observation_ckpt.0.gz is damaged: Not a gzipped file",
        AGAIN,
    ),
    "dqn: no NPY": (
        shard(content("terminal", lambda x: b"text" + x)),
        "terminal_ckpt.0.gz is damaged: the magic string is not correct",
        AGAIN,
    ),
    "dqn: no rewards": (
        shard(lambda folder: (folder / "$store$_reward_ckpt.0.gz").unlink()),
        "reward_ckpt.0.gz is missing",
        "get the whole dataset again",
    ),
    "dqn: rewards of a shorter shard": (
        shard(stored("reward", np.zeros(6, np.float32))),
        "reward_ckpt.0.gz has 6 entries, but there are 7 frames",
        AGAIN,
    ),
    "dqn: pickled actions": (
        shard(objects_in_gzip),
        "action_ckpt.0.gz is damaged: its elements are Python objects, which are never unpickled",
        AGAIN,
    ),
    "dqn: numbers as frames": (
        shard(stored("observation", np.zeros((7, 6, 5), np.float32))),
        r"observation_ckpt.0.gz has frames float32\[6, 5\], not bytes",
        AGAIN,
    ),
    "dqn: vectors as frames": (
        shard(stored("observation", np.zeros((7, 6), np.uint8))),
        r"observation_ckpt.0.gz has frames uint8\[6\], not bytes",
        AGAIN,
    ),
    "dqn: terminal of 2": (
        shard(stored("terminal", np.full(7, 2, np.uint8))),
        "terminal_ckpt.0.gz has values other than 0 and 1",
        AGAIN,
    ),
    "dqn: negative action": (
        shard(stored("action", np.full(7, -1, np.int32))),
        "action_ckpt.0.gz has values other than numbers of actions",
        AGAIN,
    ),
    "dqn: NaN reward": (
        shard(stored("reward", replaced(5, np.nan)(np.zeros(7, np.float32)))),
        "episode 1, step 0: rewards is nan",
        SKIP,
    ),
    "dqn: shards of other frames": (
        shard(lambda folder: _other_frames(folder)),
        r"data has shards with frames \[\(3, 3\), \(6, 5\)\]",
        "separate them",
    ),
    "dqn: link out of the folder": (
        shard(moved("$store$_reward_ckpt.0.gz")),
        "reward_ckpt.0.gz is a link out of its folder, which is not followed",
        "copy the file there",
    ),
    "dqn: count of another shape": (
        shard(lambda folder: write_gzip(folder / "add_count_ckpt.0.gz", np.arange(2))),
        r"add_count_ckpt.0.gz is damaged: it has int64\[2\] instead of one whole number",
        AGAIN,
    ),
    "dqn: count cut short": (
        cut(shard(), "add_count_ckpt.0.gz"),
        "add_count_ckpt.0.gz is damaged",
        AGAIN,
    ),
    "dqn: nothing but the beginning": (
        shard(episodes=(), unfinished=1),
        "data contains no episodes",
        "give another dataset",
    ),
    # Memory Maze
    "maze: cut short": (
        cut(mazes(lambda folder: None), "episode-9.npz"),
        "episode 1 cannot be read as trajectories of Memory Maze.*zip file",
        SKIP,
    ),
    "maze: no zip": (
        mazes(lambda folder: (folder / "episode-8.npz").write_bytes(b"text")),
        "episode 0 cannot be read as trajectories of Memory Maze.*zip file",
        SKIP,
    ),
    "maze: damaged image": (
        mazes(lambda folder: flipped(folder / "episode-9.npz")),
        "episode 1 cannot be read as trajectories of Memory Maze",
        SKIP,
    ),
    "maze: no image": (maze(image=None), "episode-8.npz has no image", SKIP),
    "maze: no action": (maze(action=None), "episode-8.npz has no action", SKIP),
    "maze: no reward": (maze(reward=None), "episode-8.npz has no reward", SKIP),
    "maze: lost image": (
        maze(image=lambda x: x[1:]),
        r"episode-8.npz: image has shape \[4, 12, 12, 3\], where reward has 5 entries",
        "repair or remove the file",
    ),
    "maze: lost action": (
        maze(action=lambda x: x[1:]),
        r"episode-8.npz: action has shape \[4, 6\], where reward has 5 entries",
        "repair or remove the file",
    ),
    "maze: choices as actions": (
        maze(action=np.zeros(5, int)),
        r"episode-8.npz: action has shape \[5\], where reward has 5 entries and action 2 axes",
        "repair or remove the file",
    ),
    "maze: two actions at once": (
        maze(action=replaced(3, 1)),
        r"episode-8.npz: action\[3\] is not one-hot",
        "repair or remove the file",
    ),
    "maze: two episodes in a file": (
        maze(terminal=replaced(2, True)),
        r"episode-8.npz: terminal\[2\] is set before the end",
        "store one episode in a file",
    ),
    "maze: other images": (
        maze(image=np.zeros((5, 10, 10, 3), np.uint8)),
        r"episode 0 cannot be read .* observations are uint8\[10, 10, 3\]",
        SKIP,
    ),
    "maze: numbers as image": (
        maze(image=np.zeros((5, 12, 12, 3))),
        r"episode 0 cannot be read .* observations are float64\[12, 12, 3\]",
        SKIP,
    ),
    "maze: NaN reward": (
        maze(reward=replaced(2, np.nan)),
        "episode 0, step 1: rewards is nan",
        SKIP,
    ),
    "maze: only an image": (
        maze(reward=lambda x: x[:1], image=lambda x: x[:1], action=lambda x: x[:1], terminal=None),
        "episode 0 is empty",
        SKIP,
    ),
    "maze: pickled rewards": (
        mazes(objects_in_zip),
        "its elements are Python objects, which are never unpickled",
        SKIP,
    ),
    "maze: link out of the folder": (
        mazes(moved("episode-9.npz")),
        "episode-9.npz is a link out of its folder, which is not followed",
        "copy the file there",
    ),
    # Minari
    "minari: NaN observation": (
        set_entry("episode_1/observations", (5, 0), np.nan),
        r"episode 1, step 5: observations\[0\] is nan",
        SKIP,
    ),
    "minari: action beyond its space": (
        set_entry("episode_3/actions", 2, 5),
        r"episode 3, step 2: actions is 5, outside Discrete\(5\)",
        SKIP,
    ),
    "minari: lost rewards": (
        ours(lambda file: file.__delitem__("episode_2/rewards")),
        "episode 2 cannot be read as a Minari dataset",
        SKIP,
    ),
    "minari: lost observations": (
        put("episode_0/observations", np.zeros((3, 2), np.float32)),
        "episode 0 has 6 rewards and 3 observations, not 7",
        SKIP,
    ),
    "minari: empty episode": (
        put("episode_0/rewards", np.zeros(0)),
        "episode 0 is empty",
        SKIP,
    ),
    "minari: metadata elsewhere": (
        lambda folder: (ours()(folder), moved("metadata.json")(folder / "data" / "data")),
        "metadata.json is a link out of its folder",
        "copy the file there",
    ),
    "minari: data elsewhere": (
        lambda folder: (ours()(folder), moved("main_data.hdf5")(folder / "data" / "data")),
        "main_data.hdf5 is a link out of its folder",
        "copy the file there",
    ),
    "minari: truncated after its only action": (
        lambda folder: _only_action(folder),
        "episode 0 was truncated after its only action, and what followed is not stored",
        "leave it out",
    ),
}


def _other_frames(folder):
    write_shard(folder, 1, (5,), padded=False)
    stored("observation", np.zeros((5, 3, 3), np.uint8), 1)(folder)


def _only_action(folder):
    whole = make_set((1, 4))
    minari.save(whole.replace(terminated=np.array([False, True])), folder / "data")
    with h5py.File(folder / "data" / "data" / "main_data.hdf5", "a") as file:
        first = file["episode_0/observations"][:1]
        del file["episode_0/observations"]
        file["episode_0/observations"] = first


def test_table_is_large_enough():
    assert len(DAMAGED) >= 60


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged(tmp_path, damage):
    write, message, remedy = DAMAGED[damage]
    write(tmp_path)
    line = refused(tmp_path, "data", "convert", tmp_path / "data", tmp_path / "new")
    assert str(tmp_path / "data") in line
    assert re.search(message, line), line
    assert remedy in line


@pytest.mark.parametrize("name", [name for name, row in DAMAGED.items() if row[2] == SKIP])
def test_bad_episode_is_left_out(tmp_path, name, capsys):
    write, message, _ = DAMAGED[name]
    write(tmp_path)
    main(["data", "convert", str(tmp_path / "data"), str(tmp_path / "new"), "--skip-bad"])
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "left out: " in line]
    assert re.search(message, said), said
    with datasets.DatasetReader(tmp_path / "data") as reader:
        assert datasets.load(tmp_path / "new").num_episodes == reader.num_episodes - 1
