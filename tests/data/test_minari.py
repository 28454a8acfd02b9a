"""Files in Minari's format: round trips, Minari's own files, and errors for damaged ones."""

import re
import sys

import gymnasium
import h5py
import jax
import minari as theirs
import numpy as np
import pytest

from gtrxl_jax import __version__
from gtrxl_jax.data import Trajectories, concatenate, dataset_spaces, datasets, minari
from gtrxl_jax.extras import install_command
from gtrxl_jax.specs.spaces import kind_of, map_leaves
from tests.comparison import assert_same
from tests.data.sets import FLAT, LENGTHS, NESTED, make_set
from tests.data.theirs import write_theirs
from tests.spaces import ACTIONS, OBSERVATIONS

EVERY = {f"observed {k}": dataset_spaces(v, ACTIONS["discrete"]) for k, v in OBSERVATIONS.items()}
EVERY |= {f"acted {k}": dataset_spaces(OBSERVATIONS["box"], v) for k, v in ACTIONS.items()}


def valid_text(whole):
    """Return a set whose texts are padded at the end only."""

    def of_leaf(leaf, x, _):
        return np.sort(x, axis=-1)[..., ::-1] if kind_of(leaf) == "text" else x

    return whole.replace(
        observations=map_leaves(of_leaf, whole.spaces.observation, whole.observations)
    )


@pytest.mark.parametrize("spaces", [FLAT, NESTED, *EVERY.values()], ids=["flat", "both", *EVERY])
def test_round_trip(tmp_path, spaces):
    whole = valid_text(make_set(spaces=spaces))
    minari.save(whole, tmp_path / "new" / "set")
    assert_same(datasets.load(tmp_path / "new" / "set"), whole)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["set"]


def test_several_sets_are_saved_in_order(tmp_path):
    sets = [make_set(LENGTHS[:2], seed=1), make_set(LENGTHS[2:], seed=2)]
    minari.save(iter(sets), tmp_path / "both")
    assert_same(datasets.load(tmp_path / "both"), concatenate(sets))
    with pytest.raises(ValueError, match="no trajectories to save"):
        minari.save([], tmp_path / "none")
    with pytest.raises(ValueError, match="same spaces"):
        minari.save([*sets, make_set(spaces=NESTED)], tmp_path / "mixed")
    with pytest.raises(ValueError, match="rewards"):
        minari.save([sets[0], sets[1].replace(rewards=sets[1].rewards * np.nan)], tmp_path / "bad")
    assert [path.name for path in tmp_path.iterdir()] == ["both"]


def test_relative_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    minari.save(make_set(), "sets/mine")
    assert datasets.load("sets/mine").num_episodes == len(LENGTHS)


def test_minari_reads_saved_datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    whole = make_set(spaces=NESTED)
    minari.save(whole, tmp_path / "ours-v3", minari.Metadata(policy="oracle"))
    dataset = theirs.load_dataset("ours-v3")
    assert (dataset.total_episodes, dataset.total_steps) == (len(LENGTHS), sum(LENGTHS))
    assert dataset.spec.dataset_id == "ours-v3"
    assert dataset.storage.metadata["algorithm_name"] == "oracle"
    for e, episode in enumerate(dataset):
        n = LENGTHS[e]
        for got, expected in [
            (episode.observations, jax.tree.map(lambda x, e=e: x[e], whole.observations)),
            (episode.actions, whole.actions[e]),
            (episode.rewards, whole.rewards[e]),
        ]:
            jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y[: len(x)]), got, expected)
        assert len(episode.rewards) == n
        assert episode.terminations.tolist() == [False] * (n - 1) + [n % 2 == 1]
        assert episode.truncations.tolist() == [False] * (n - 1) + [n % 2 == 0]
    assert_same(datasets.load("ours-v3"), whole)  # by its id, too


@pytest.mark.parametrize("name", ["observed nested", "observed text", "acted nested"])
def test_minari_reads_members_of_the_spaces(tmp_path, monkeypatch, name):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    whole = valid_text(make_set(spaces=EVERY[name]))
    minari.save(whole, tmp_path / "ours-v0")
    dataset = theirs.load_dataset("ours-v0")
    assert dataset_spaces(dataset.observation_space, dataset.action_space) == whole.spaces
    for episode in dataset:
        parts = (
            (episode.observations, whole.spaces.observation),
            (episode.actions, EVERY[name].action),
        )
        for values, space in parts:
            first = map_leaves(lambda leaf, x, _: x[0], space, values)
            assert space.contains(first)


def test_metadata_round_trip(tmp_path):
    metadata = minari.Metadata(
        env_name="TMazePassive-v0",
        env_params={"corridor_length": 88, "step_penalty": 0.5},
        policy="oracle",
        seed=7,
    )
    minari.save(make_set(), tmp_path / "a", metadata)
    assert datasets.load_metadata(tmp_path / "a") == metadata
    assert metadata.version == __version__
    minari.save(make_set(), tmp_path / "b")
    assert datasets.load_metadata(tmp_path / "b") == minari.Metadata()


@pytest.mark.filterwarnings("ignore")  # Minari warns about missing authors and links
def test_reads_datasets_collected_by_minari(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = theirs.DataCollector(gymnasium.make("CartPole-v1", max_episode_steps=15))
    for seed in range(4):
        env.reset(seed=seed)
        done = False
        while not done:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            done = terminated or truncated
    dataset = env.create_dataset("cartpole/test-v0", algorithm_name="random")
    env.close()
    read = datasets.load("cartpole/test-v0")
    assert read.actions.dtype == np.int32
    for e, episode in enumerate(dataset):
        n = len(episode.rewards)
        assert read.length[e] == n
        assert read.terminated[e] == episode.terminations[-1]
        np.testing.assert_array_equal(read.observations[e, : n + 1], episode.observations)
        np.testing.assert_array_equal(read.actions[e, :n], episode.actions)
        np.testing.assert_array_equal(read.rewards[e, :n], episode.rewards)
    metadata = datasets.load_metadata("cartpole/test-v0")
    assert (metadata.env_name, metadata.policy) == ("CartPole-v1", "random")


BOX = gymnasium.spaces.Box(-1.0, 1.0, (3,))
DISCRETE = gymnasium.spaces.Discrete(3)


@pytest.mark.parametrize("shape", [(40, 36, 3), (40, 36)])
def test_reads_jpeg_images(tmp_path, shape):
    space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
    storage = write_theirs(tmp_path / "x" / "data", space, DISCRETE)
    read = datasets.load(tmp_path / "x")
    assert read.observations.dtype == np.uint8
    for e, episode in enumerate(storage.get_episodes(range(2))):
        images = episode["observations"]
        np.testing.assert_array_equal(read.observations[e, : len(images)], images)


def test_missing_dataset_raises(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    with pytest.raises(FileNotFoundError, match="at-all-v0 holds no dataset: give Minari's"):
        datasets.load("nowhere/at-all-v0")
    assert not (tmp_path / "root").exists()  # reading creates no folder


def test_save_never_overwrites(tmp_path):
    minari.save(make_set(seed=0), tmp_path / "a")
    with pytest.raises(FileExistsError, match="a exists already: choose another folder"):
        minari.save(make_set(seed=1), tmp_path / "a")
    assert_same(datasets.load(tmp_path / "a"), make_set(seed=0))


def test_concurrent_saves_let_one_succeed(tmp_path, monkeypatch):
    monkeypatch.setattr(minari, "require_writable", lambda path: None)
    minari.save(make_set(seed=0), tmp_path / "a")
    with pytest.raises(FileExistsError, match="a exists already"):
        minari.save(make_set(seed=1), tmp_path / "a")
    assert_same(datasets.load(tmp_path / "a"), make_set(seed=0))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_failed_save_leaves_no_files(tmp_path, monkeypatch):
    def fail(trajectories, e):
        if e == 3:
            raise OSError("no space left on device")
        return buffer(trajectories, e)

    buffer = minari._buffer
    monkeypatch.setattr(minari, "_buffer", fail)
    with pytest.raises(OSError, match="no space left"):
        minari.save(make_set(), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_invalid_data_are_not_saved(tmp_path):
    whole = make_set()
    with pytest.raises(ValueError, match="rewards"):
        minari.save(whole.replace(rewards=whole.rewards * np.nan), tmp_path / "a")
    with pytest.raises(TypeError, match="metadata must be JSON"):
        minari.save(whole, tmp_path / "a", minari.Metadata(env_params={"x": object()}))
    with pytest.raises(ValueError, match="metadata must be JSON"):
        minari.save(whole, tmp_path / "a", minari.Metadata(env_params={"x": float("nan")}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["", ".", "a//b", "/a", 0])
def test_keys_that_are_no_names_are_not_saved(tmp_path, key):
    box = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    spaces = dataset_spaces(gymnasium.spaces.Dict({key: box}), DISCRETE)
    line = re.escape(f"observation has the key {key!r}, which is no name in a file: rename it")
    with pytest.raises(ValueError, match=line):
        minari.save(make_set(spaces=spaces), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_keys_with_a_slash_are_followed_through_no_link(tmp_path):
    box = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    spaces = dataset_spaces(gymnasium.spaces.Dict({"arm/hand": box, "arm/joint": box}), DISCRETE)
    whole = make_set(spaces=spaces)
    minari.save(whole, tmp_path / "a")
    assert_same(datasets.load(tmp_path / "a"), whole)
    with h5py.File(tmp_path / "a" / "data" / "main_data.hdf5", "a") as file:
        file.copy("episode_1/observations/arm", "other")
        del file["episode_1/observations/arm"]
        file["episode_1/observations/arm"] = h5py.SoftLink("/other")
    with pytest.raises(ValueError, match="arm/hand is a link, and only data in the file itself"):
        datasets.load(tmp_path / "a")


def test_missing_packages_name_command(tmp_path, monkeypatch):
    minari.save(make_set(), tmp_path / "a")
    for package in ("minari", "h5py"):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, package, None)
            for call in (datasets.load, minari.require_writable):
                with pytest.raises(ImportError, match=re.escape(install_command("offline"))):
                    call(tmp_path / "a")


def test_saves_device_arrays(tmp_path):
    whole = make_set(spaces=FLAT)
    minari.save(jax.device_put(whole), tmp_path / "a")
    assert_same(datasets.load(tmp_path / "a"), whole)


def test_unbounded_spaces_round_trip(tmp_path):
    spaces = dataset_spaces(
        gymnasium.spaces.Box(-np.inf, np.inf, (1,)), gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    )
    one = Trajectories(
        observations=np.zeros((1, 2, 1), np.float32),
        actions=np.full((1, 1, 1), 1e30, np.float32),
        rewards=np.zeros((1, 1), np.float32),
        length=np.array([1], np.int32),
        terminated=np.array([True]),
        spaces=spaces,
    )
    minari.save(one, tmp_path / "a")
    assert_same(datasets.load(tmp_path / "a"), one)
