"""Minari's datasets that are stored as Arrow or Parquet, written by Minari itself."""

import json
import re
import shutil
import sys

import gymnasium
import minari as theirs
import numpy as np
import pytest

from gtrxl_jax.data import datasets, minari
from gtrxl_jax.data.datasets import DatasetReader
from gtrxl_jax.data.loader import read_segments
from gtrxl_jax.extras import install_command
from tests.bad_inputs.refusal import contents
from tests.comparison import assert_same
from tests.data.sets import FLAT, NESTED, make_set
from tests.data.test_minari import EVERY, valid_text

SPACES = {"flat": FLAT, "both": NESTED} | {
    name: EVERY[name] for name in ("observed text", "observed nested", "acted nested")
}


def write(path, whole, data_format="arrow", *, jpeg_encoding=False):
    """Write trajectories with Minari."""
    path.mkdir(parents=True)
    storage = theirs.dataset.minari_storage.MinariStorage.new(
        path,
        whole.spaces.observation,
        whole.spaces.action,
        data_format=data_format,
        jpeg_encoding=jpeg_encoding,
    )
    storage.update_episodes([minari._buffer(whole, e) for e in range(whole.num_episodes)])
    return storage


@pytest.mark.parametrize(
    ("data_format", "spaces"),
    [*(("arrow", name) for name in SPACES), ("parquet", "both"), ("parquet", "observed text")],
)
def test_episodes_are_those_written(tmp_path, data_format, spaces):
    whole = valid_text(make_set(spaces=SPACES[spaces]))
    write(tmp_path / "set" / "data", whole, data_format)
    assert_same(datasets.load(tmp_path / "set"), whole)


@pytest.mark.parametrize("data_format", ["arrow", "parquet", "hdf5"])
def test_images_as_jpeg(tmp_path, data_format):
    whole = make_set(spaces=NESTED)
    storage = write(tmp_path / "set" / "data", whole, data_format, jpeg_encoding=True)
    read = datasets.load(tmp_path / "set")
    for e, episode in enumerate(storage.get_episodes(range(whole.num_episodes))):
        images = episode["observations"]["image"]
        np.testing.assert_array_equal(read.observations["image"][e, : len(images)], images)


def test_windows(tmp_path):
    whole = make_set()
    write(tmp_path / "arrow" / "data", whole)
    minari.save(whole, tmp_path / "hdf5")
    episode_B, start_B = np.array([[3, 1, 4], [5, 0, 2]], np.int32)
    read = []
    for name in ("arrow", "hdf5"):
        with DatasetReader(tmp_path / name) as reader:
            read.append(read_segments(reader, episode_B, start_B, 2, 3))
    for field in ("observations", "actions", "mask"):
        np.testing.assert_array_equal(getattr(read[0], field), getattr(read[1], field))


def test_last_observations_are_missing(tmp_path):
    """An episode of odd length has terminated; Minari itself loses its last action here."""
    import pyarrow as pa

    whole = make_set((3, 4))
    write(tmp_path / "data", whole)
    for number in (0, 1):
        path = tmp_path / "data" / str(number) / "part-0.arrow"
        table = pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all()
        with pa.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table.slice(0, len(table) - 1))
    read = datasets.load(tmp_path)
    assert read.length.tolist() == [3, 3]
    np.testing.assert_array_equal(read.actions[0, :3], whole.actions[0, :3])
    np.testing.assert_array_equal(read.observations[0, 3], whole.observations[0, 2])
    np.testing.assert_array_equal(read.observations[1, :4], whole.observations[1, :4])


def test_pyarrow_is_optional(tmp_path, monkeypatch):
    write(tmp_path / "data", make_set())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=re.escape(install_command("arrow"))):
        datasets.load(tmp_path)


def file_of(change, name="1/part-0.arrow"):
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def steps(number):
    return file_of(lambda _: json.dumps({"total_steps": number}).encode(), "1/metadata.json")


def lose(name):
    return lambda folder: (folder / name).unlink()


def link(folder):
    (folder / "1" / "part-0.arrow").rename(folder.parent / "elsewhere")
    (folder / "1" / "part-0.arrow").symlink_to(folder.parent / "elsewhere")


def link_folder(folder):
    (folder / "1").rename(folder.parent / "elsewhere")
    (folder / "1").symlink_to(folder.parent / "elsewhere")


UNREADABLE = "episode 1 cannot be read as a Minari dataset of Arrow or Parquet"
DAMAGED = {
    "cut short": (file_of(lambda x: x[: len(x) // 2]), UNREADABLE),
    "no table": (file_of(lambda x: b"text"), UNREADABLE),
    "empty": (file_of(lambda x: b""), UNREADABLE),
    "lost table": (lose("1/part-0.arrow"), "episode 1 has no file .arrow: get it again"),
    "lost metadata": (lose("1/metadata.json"), "metadata.json is missing: get the whole"),
    "half of metadata": (file_of(lambda x: x[:5], "1/metadata.json"), UNREADABLE),
    "fewer rows": (steps(12), "episode 1 has 12 actions and 10 rows, not 13"),
    "more rows": (steps(5), "episode 1 has 5 actions and 10 rows, not 6"),
    "link": (link, "part-0.arrow is a link out of its folder"),
    "link to a folder": (link_folder, "data/1 is a link out of its folder"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "data"
    write(path, make_set())
    return path


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged(tmp_path, damage, whole):
    shutil.copytree(whole, tmp_path / "data")
    change, message = DAMAGED[damage]
    change(tmp_path / "data")
    before = contents(tmp_path)
    with pytest.raises(datasets.BadEpisodeError, match=message) as caught:
        datasets.load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before
    bad = []
    assert datasets.load(tmp_path, bad.append).length.tolist() == [3, 1, 12, 6]
    assert [error.number for error in bad] == [1]


def test_spaces_of_gymnasium(tmp_path):
    """A tuple with texts that have spaces, and choices that begin at 2."""
    letters = gymnasium.spaces.Text(8, charset=" abc")
    space = gymnasium.spaces.Tuple((letters, gymnasium.spaces.Discrete(3, start=2)))
    buffer = theirs.data_collector.EpisodeBuffer(
        observations=(["a b", "c", ""], np.array([2, 3, 4])),
        actions=np.array([1, 0]),
        rewards=np.ones(2),
        terminations=np.array([False, True]),
        truncations=np.zeros(2, bool),
    )
    for data_format in ("arrow", "hdf5"):
        path = tmp_path / data_format
        path.mkdir()
        storage = theirs.dataset.minari_storage.MinariStorage.new(
            path, space, gymnasium.spaces.Discrete(2), data_format=data_format
        )
        storage.update_episodes([buffer])
        tokens, choices = datasets.load(path).observations
        assert tokens[0, 0].tolist() == [2, 1, 3, 0, 0, 0, 0, 0]
        assert choices.tolist() == [[2, 3, 4]]
