"""`gtrxl data show` and `gtrxl data convert`."""

import json

import gymnasium
import h5py
import jax
import numpy as np
import pytest

from gtrxl_jax.cli.main import main
from gtrxl_jax.data import dataset_spaces, datasets, minari
from gtrxl_jax.data.trajectories import select
from tests.bad_inputs.refusal import refused
from tests.data.files import d4rl_arrays, write_d4rl, write_mazes, write_shard
from tests.data.sets import NESTED, make_set


def damaged(path):
    """Write four episodes, of which the second has a NaN and the third has lost its rewards."""
    minari.save(make_set((6, 9, 2, 3)), path, minari.Metadata("Walk-v0", policy="oracle"))
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        file["episode_1/observations"][5, 0] = np.nan
        del file["episode_2/rewards"]
    return path


def test_text(tmp_path, capsys):
    minari.save(make_set((6, 6, 9, 5), seed=3), tmp_path / "set", minari.Metadata("Walk-v0"))
    main(["data", "show", str(tmp_path / "set")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        f"{tmp_path / 'set' / 'data'}: a Minari dataset",
        "environment  Walk-v0",
        "observation  Box(-inf, inf, (2,), float32): numbers, normalized",
        "action       Discrete(5): a choice",
        "episodes     4; 2 terminated, 2 were cut",
    ]
    assert lines[5:7] == ["steps        26", "lengths      5 to 9, mean 6.5"]
    assert lines[-1] == "faults       none"
    bars = [line.rpartition(" ")[2] for line in lines if " to " in line and "mean" not in line]
    assert len(bars) == 10
    assert sum(map(int, bars)) == 4


def test_spaces_are_described(tmp_path, capsys):
    minari.save(make_set(spaces=NESTED), tmp_path / "set")
    main(["data", "show", str(tmp_path / "set"), "--drop", "codes"])
    shown = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines()[1:5])
    assert {name.strip(): value.strip() for name, value in shown.items()} == {
        "observation['body']['place']": "Box(-1.0, 1.0, (3,), float64): numbers, normalized",
        "observation['body']['room']": "Discrete(4, start=2): one-hot",
        "observation['image']": "Box(0, 255, (33, 40, 3), uint8): an image [H W C], normalized by "
        "channel",
        "action": "Box([-1.0, 0.0], 2.0, (2,), float32): one Gaussian for each number",
    }


def test_faults(tmp_path, capsys):
    path = damaged(tmp_path / "set")
    main(["data", "show", str(path)])
    *_, count, first, second = capsys.readouterr().out.splitlines()
    assert count.split() == ["faults", "2", "bad", "episodes"]
    assert "episode 1, step 5: observations[0] is" in first
    assert "episode 2 cannot be read as a Minari dataset" in second
    main(["data", "show", str(path), "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert [fault["episode"] for fault in shown["faults"]] == [1, 2]
    assert (shown["episodes"], shown["steps"], shown["policy"]) == (4, 9, "oracle")
    returns = make_set((6, 9, 2, 3)).rewards[[0, 3]].sum(axis=1)
    np.testing.assert_allclose(shown["returns"]["greatest"], returns.max(), rtol=1e-5)
    assert sum(shown["histogram"]) == 2


def test_nothing_is_sound(tmp_path, capsys):
    whole = make_set((3,))
    minari.save(whole, tmp_path / "set")
    with h5py.File(tmp_path / "set" / "data" / "main_data.hdf5", "a") as file:
        file["episode_0/rewards"][1] = np.inf
    main(["data", "show", str(tmp_path / "set")])
    assert "episode 0, step 1: rewards is inf" in capsys.readouterr().out


WRITERS = {
    "d4rl": lambda path: write_d4rl(path, d4rl_arrays()),
    "dqn-replay": lambda path: write_shard(path, 0, (5, 2), unfinished=4),
    "memory-maze": write_mazes,
    "minari": lambda path: minari.save(make_set(spaces=NESTED), path),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_all_formats_are_shown_and_converted(tmp_path, kind, capsys):
    WRITERS[kind](tmp_path / "theirs")
    before = datasets.load(tmp_path / "theirs")
    main(["data", "convert", str(tmp_path / "theirs"), str(tmp_path / "ours")])
    said = capsys.readouterr()
    episodes, steps = before.num_episodes, before.length.sum()
    assert said.out == f"{episodes} episodes, {steps} steps | {tmp_path / 'ours'}\n"
    assert said.err.count("\n") == (kind in ("d4rl", "dqn-replay"))  # of last observations
    after = datasets.load(tmp_path / "ours")
    assert after.spaces == before.spaces
    jax.tree.map(np.testing.assert_array_equal, before, after)
    shown = []
    for name in ("theirs", "ours"):
        main(["data", "show", str(tmp_path / name), "--json"])
        shown.append(json.loads(capsys.readouterr().out))
    for one in shown:
        for differs in ("path", "format", "missing"):
            del one[differs]
    assert shown[0] == shown[1]


def test_inferred_spaces_stay_inferred(tmp_path):
    """Those of an environment of the same shapes apply to the converted data, too."""
    arrays = d4rl_arrays() | {"actions": np.arange(12) % 2}
    write_d4rl(tmp_path / "theirs", arrays)
    main(["data", "convert", str(tmp_path / "theirs"), str(tmp_path / "ours")])
    given = dataset_spaces(
        gymnasium.spaces.Box(-9.0, 9.0, (3,)), gymnasium.spaces.Discrete(7, dtype=np.int32)
    )
    for name in ("theirs", "ours"):
        with datasets.DatasetReader(tmp_path / name, spaces=given) as reader:
            assert reader.spaces == given


def test_returns_that_differ_by_rounding_are_one(tmp_path, capsys):
    rng = np.random.default_rng(0)
    one = rng.uniform(0, 1e-9, 200)
    one[0] = 1
    rewards = np.stack([rng.permutation(one) for _ in range(8)]).astype(np.float32)
    whole = make_set((200,) * 8).replace(rewards=rewards)
    assert len(set(rewards.sum(axis=1, dtype=np.float64))) > 1
    minari.save(whole, tmp_path / "set")
    main(["data", "show", str(tmp_path / "set"), "--json"])
    assert sorted(json.loads(capsys.readouterr().out)["histogram"]) == [0] * 9 + [8]


def test_bad_episodes_are_left_out(tmp_path, capsys):
    path = damaged(tmp_path / "set")
    line = refused(tmp_path, "data", "convert", path, tmp_path / "new")
    assert "episode 1, step 5" in line
    assert "leave out all bad episodes with --skip-bad" in line
    main(["data", "convert", str(path), str(tmp_path / "new"), "--skip-bad"])
    said = capsys.readouterr()
    assert said.out == f"2 episodes, 9 steps | {tmp_path / 'new'}\n"
    assert [line.startswith("left out: ") for line in said.err.splitlines()] == [True, True]
    whole = select(make_set((6, 9, 2, 3)), np.array([0, 3]))
    read = datasets.load(tmp_path / "new")
    np.testing.assert_array_equal(read.actions[:, :3], whole.actions[:, :3])
    assert datasets.load_metadata(tmp_path / "new") == minari.Metadata("Walk-v0", policy="oracle")


def test_number_of_episodes(tmp_path, capsys):
    minari.save(make_set((6, 9, 2)), tmp_path / "set")
    main(["data", "convert", str(tmp_path / "set"), str(tmp_path / "new"), "--episodes", "2"])
    assert capsys.readouterr().out.startswith("2 episodes, 15 steps")
    assert datasets.load(tmp_path / "new").length.tolist() == [6, 9]


REFUSED = {
    "data": "Valid: convert, show",
    "data list x": "Valid: convert, show",
    "data show nowhere": "nowhere holds no dataset: give Minari's folder",
    "data convert set set": "set exists already: choose another folder",
    "data convert set new --episodes 0": "episodes must be at least 1, not 0",
    "data show set --keys a": "keys selects keys of dicts, and observations are no dicts",
    "data show nested --keys a": "keys (of observations) 'a'",
    "data show nested --drop image codes body": "keys and drop leave nothing of the observations",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_refusals(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    minari.save(make_set((3,)), tmp_path / "set")
    minari.save(make_set((3,), NESTED), tmp_path / "nested")
    assert REFUSED[arguments] in refused(tmp_path, *arguments.split())
