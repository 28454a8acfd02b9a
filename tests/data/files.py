"""Datasets in the formats of others, written as they are published."""

import gzip
import io

import h5py
import numpy as np

STACK = 4


def d4rl_arrays(lengths=(5, 3, 4), ends=("terminal", "timeout", "terminal")):
    """Return the arrays of a file of D4RL; the end "" leaves an episode unfinished."""
    rng = np.random.default_rng(0)
    total = sum(lengths)
    arrays = {
        "observations": rng.normal(size=(total, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (total, 2)).astype(np.float32),
        "rewards": rng.normal(size=total).astype(np.float32),
        "terminals": np.zeros(total, bool),
        "timeouts": np.zeros(total, bool),
    }
    for last, end in zip(np.cumsum(lengths) - 1, ends, strict=True):
        if end:
            arrays[f"{end}s"][last] = True
    return arrays


def write_d4rl(path, arrays):
    """Write a file of D4RL, with the arrays that every version of it has beside."""
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
        file["infos/qpos"] = np.zeros((12, 6))
        file["metadata/algorithm"] = "SAC"
    return path


def write_shard(
    folder, shard, episodes, *, begun=0, unfinished=0, left_over=0, padded=True, counted=True
):
    """Write a shard of DQN-replay as Dopamine does: its buffer, one entry before it is full.

    Args:
      folder: the folder of the shards.
      shard: its number.
      episodes: the numbers of steps of its complete episodes.
      begun: how many steps at the beginning belong to an episode of the shard before.
      unfinished: how many steps the last episode has so far.
      left_over: how many entries remain of the shard before, as at the end of the training.
      counted: whether the number of entries is there.
      padded: whether there are three zero entries before each episode.

    Returns:
      The frames, actions and rewards of each episode, without zero entries.
    """
    rng = np.random.default_rng([0, shard])
    parts, whole = [], []
    for number, length in enumerate((begun, *episodes, unfinished)):
        if not length:
            continue
        lead = (STACK - 1) * (padded and (number > 0 or not begun))
        frame = rng.integers(1, 256, (length, 6, 5), np.uint8)
        action = rng.integers(1, 5, length).astype(np.int32)
        reward = rng.choice([-1.0, 0, 1], length).astype(np.float32)
        terminal = np.zeros(length, np.uint8)
        terminal[-1] = number <= len(episodes)
        entries = frame, action, reward, terminal
        whole.append(entries[:3])
        parts.append([np.pad(x, [(lead, 0)] + [(0, 0)] * (x.ndim - 1)) for x in entries])
    stored = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    # The entries that are not yet overwritten.
    old = max(left_over, int(unfinished > 0))
    stale = [
        np.full((old, 6, 5), 7, np.uint8),
        np.ones(old, np.int32),
        np.ones(old, np.float32),
        (np.arange(old) % 3 == 1).astype(np.uint8),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for name, array, last in zip(
        ("observation", "action", "reward", "terminal"), stored, stale, strict=True
    ):
        write_gzip(folder / f"$store$_{name}_ckpt.{shard}.gz", np.concatenate([array, last]))
    if counted:
        count = np.array(len(stored[0]) + shard * (len(stored[0]) + old))
        write_gzip(folder / f"add_count_ckpt.{shard}.gz", count)
    # Other parts of the buffer are pickled there, and not read.
    (folder / f"invalid_range_ckpt.{shard}.gz").write_bytes(b"")
    return whole


def write_gzip(path, array):
    """Write an NPY file in gzip."""
    content = io.BytesIO()
    np.save(content, array)
    path.write_bytes(gzip.compress(content.getvalue(), 1))


def stacked(frames):
    """Return the stacks of the last four frames at each step, zero before the first."""
    padded = np.concatenate([np.zeros((STACK - 1, *frames.shape[1:]), frames.dtype), frames])
    return np.stack([padded[t : t + STACK] for t in range(len(frames))]).transpose(0, 2, 3, 1)


def maze_arrays(steps):
    """Return the arrays of a trajectory of Memory Maze."""
    rng = np.random.default_rng([0, steps])
    action = np.eye(6, dtype=np.float32)[rng.integers(0, 6, steps + 1)]
    action[0] = 0
    reward = rng.integers(0, 2, steps + 1).astype(np.float32)
    return {
        "image": rng.integers(0, 256, (steps + 1, 12, 12, 3), np.uint8),
        "action": action,
        "reward": reward,
        "terminal": np.zeros(steps + 1, bool),
        "maze_layout": np.zeros((steps + 1, 9, 9), np.uint8),
        "agent_pos": rng.normal(size=(steps + 1, 2)),
    }


def write_mazes(folder, lengths=(4, 6, 3)):
    """Write trajectories of Memory Maze, a file each."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, steps in enumerate(lengths):
        np.savez_compressed(folder / f"episode-{number + 8}.npz", **maze_arrays(steps))
    return folder
