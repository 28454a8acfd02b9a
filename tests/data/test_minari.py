"""Files in Minari's format: round trips, Minari's own files, and errors for damaged ones."""

import json
import os
import sys

import gymnasium
import h5py
import jax
import minari as theirs
import numpy as np
import pytest
from minari.data_collector import EpisodeBuffer

from gtrxl_jax import __version__
from gtrxl_jax.data import Trajectories, concatenate, dataset_spaces, minari
from tests.data.sets import FLAT, LENGTHS, NESTED, make_set, random_values


def assert_same(one, other):
    assert one.spaces == other.spaces
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("spaces", [FLAT, NESTED])
def test_round_trip(tmp_path, spaces):
    whole = make_set(spaces=spaces)
    minari.save(whole, tmp_path / "new" / "set")
    assert_same(minari.load(tmp_path / "new" / "set"), whole)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["set"]


def test_several_sets_are_saved_in_order(tmp_path):
    sets = [make_set(LENGTHS[:2], seed=1), make_set(LENGTHS[2:], seed=2)]
    minari.save(iter(sets), tmp_path / "both")
    assert_same(minari.load(tmp_path / "both"), concatenate(sets))
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
    assert minari.load("sets/mine").num_episodes == len(LENGTHS)


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
    assert_same(minari.load("ours-v3"), whole)  # by its id, too


def test_metadata_round_trip(tmp_path):
    metadata = minari.Metadata(
        env_name="TMazePassive-v0",
        env_params={"corridor_length": 88, "step_penalty": 0.5},
        policy="oracle",
        seed=7,
    )
    minari.save(make_set(), tmp_path / "a", metadata)
    assert minari.load_metadata(tmp_path / "a") == metadata
    assert metadata.version == __version__
    minari.save(make_set(), tmp_path / "b")
    assert minari.load_metadata(tmp_path / "b") == minari.Metadata()


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
    read = minari.load("cartpole/test-v0")
    assert read.actions.dtype == np.int32
    for e, episode in enumerate(dataset):
        n = len(episode.rewards)
        assert read.length[e] == n
        assert read.terminated[e] == episode.terminations[-1]
        np.testing.assert_array_equal(read.observations[e, : n + 1], episode.observations)
        np.testing.assert_array_equal(read.actions[e, :n], episode.actions)
        np.testing.assert_array_equal(read.rewards[e, :n], episode.rewards)
    metadata = minari.load_metadata("cartpole/test-v0")
    assert (metadata.env_name, metadata.policy) == ("CartPole-v1", "random")


def write_theirs(path, observation_space, action_space, lengths=(4, 2), **changes):
    """Write a dataset with Minari itself, with images as JPEG."""
    rng = np.random.default_rng(0)
    path.mkdir(parents=True)
    storage = theirs.dataset.minari_storage.MinariStorage.new(path, observation_space, action_space)
    storage.update_metadata({"dataset_id": "x-v0", "minari_version": "0.5.4"})
    buffers = []
    for n in lengths:
        parts = dict(
            observations=random_values(observation_space, rng, n + 1),
            actions=random_values(action_space, rng, n),
            rewards=np.ones(n),
            terminations=np.arange(n) == n - 1,
            truncations=np.zeros(n, bool),
        )
        parts |= {name: change(parts[name]) for name, change in changes.items()}
        buffers.append(EpisodeBuffer(**parts))
    storage.update_episodes(buffers)
    return storage


BOX = gymnasium.spaces.Box(-1.0, 1.0, (3,))
DISCRETE = gymnasium.spaces.Discrete(3)


@pytest.mark.parametrize("shape", [(40, 36, 3), (40, 36)])
def test_reads_jpeg_images(tmp_path, shape):
    space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
    storage = write_theirs(tmp_path / "x" / "data", space, DISCRETE)
    read = minari.load(tmp_path / "x")
    assert read.observations.dtype == np.uint8
    for e, episode in enumerate(storage.get_episodes(range(2))):
        images = episode["observations"]
        np.testing.assert_array_equal(read.observations[e, : len(images)], images)


@pytest.mark.parametrize(
    ("observation", "action", "error", "message"),
    [
        (gymnasium.spaces.Text(4), DISCRETE, TypeError, "observation_space is a Text"),
        (BOX, gymnasium.spaces.MultiDiscrete([2, 2]), TypeError, "action_space is a MultiDiscrete"),
        (BOX, gymnasium.spaces.MultiBinary(2), TypeError, "action_space is a MultiBinary"),
    ],
)
def test_unsupported_spaces_raise(tmp_path, observation, action, error, message):
    path = tmp_path / "data"
    path.mkdir()
    theirs.dataset.minari_storage.MinariStorage.new(path, observation, action)
    with pytest.raises(error, match=message) as caught:
        minari.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(rewards=lambda x: x * np.nan), r"rewards\[0, 0\] is nan: numbers must be finite"),
        (dict(actions=lambda x: x + 3), r"actions\[0, 0\] is \d: actions must be in Discrete"),
        (dict(actions=lambda x: x + 2**32), r"episode 0 .* actions are up to 429496729\d"),
        (
            dict(actions=lambda x: x.astype(np.float64)),
            r"actions are float64\[\], but .* int32\[\]",
        ),
        (dict(actions=lambda x: x[:-1]), "episode 0 has 4 rewards and 3 actions, not 4"),
        (dict(observations=lambda x: x[1:]), "4 rewards and 4 observations, not 5"),
        (
            dict(observations=lambda x: x[:, :2]),
            r"observations are float32\[2\], but .* float32\[3\]",
        ),
        (dict(observations=lambda x: x * np.inf), r"observations\[0, 0\] is"),
        (dict(terminations=lambda x: x[1:]), "4 rewards and 3 terminations, not 4"),
        (dict(truncations=lambda x: x[1:]), "4 rewards and 3 truncations, not 4"),
    ],
)
def test_mismatched_data_raise(tmp_path, changes, message):
    write_theirs(tmp_path / "data", BOX, DISCRETE, **changes)
    with pytest.raises(ValueError, match=message) as caught:
        minari.load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def cut_short(path):
    file = path / "data" / "main_data.hdf5"
    os.truncate(file, file.stat().st_size * 2 // 3)


def foreign(path):
    (path / "data" / "main_data.hdf5").write_bytes(b"PK\x03\x04 not HDF5")


def no_data(path):
    (path / "data" / "main_data.hdf5").unlink()


def lost_episode(path):
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        del file["episode_2"]


def lost_array(path):
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        del file["episode_2/terminations"]


def metadata(**changes):
    def change(path):
        file = path / "data" / "metadata.json"
        described = {**json.loads(file.read_text()), **changes}
        file.write_text(json.dumps({k: v for k, v in described.items() if v is not None}))

    return change


def no_json(path):
    (path / "data" / "metadata.json").write_text('{"total_episodes": ')


def a_list(path):
    (path / "data" / "metadata.json").write_text("[1, 2]")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_short, "cannot be read as a Minari dataset"),
        (foreign, "cannot be read as a Minari dataset"),
        (no_data, "cannot be read as a Minari dataset"),
        (lost_episode, "cannot be read as a Minari dataset, .*episode_2"),
        (lost_array, "episode 2 cannot be read as a Minari dataset, .*terminations"),
        (no_json, "cannot be read as a Minari dataset"),
        (a_list, "metadata.json has no observation_space"),
        (metadata(observation_space=None), "metadata.json has no observation_space"),
        (metadata(action_space=3), "metadata.json has no action_space"),
        (metadata(observation_space="{}"), "cannot be read as a Minari dataset"),
        (metadata(action_space='{"type": "Graph"}'), "cannot be read as a Minari dataset"),
        (metadata(total_episodes=None), "metadata.json has no total_episodes"),
        (metadata(total_episodes=0), "contains no episodes"),
        (metadata(total_episodes=6), "cannot be read as a Minari dataset, .*episode_5"),
        (metadata(data_format="arrow"), "data_format 'arrow': only 'hdf5' is supported"),
        (metadata(gtrxl_jax={"env_name": "x"}), "cannot be read as a Minari dataset"),
    ],
)
def test_damaged_files_raise(tmp_path, damage, message):
    path = tmp_path / "set"
    minari.save(make_set(), path)
    damage(path)
    with pytest.raises(ValueError, match=message) as caught:
        minari.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_dataset_raises(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    with pytest.raises(FileNotFoundError, match="nowhere/at-all-v0 holds no Minari dataset"):
        minari.load("nowhere/at-all-v0")
    assert not (tmp_path / "root").exists()  # reading creates no folder


def test_save_never_overwrites(tmp_path):
    minari.save(make_set(seed=0), tmp_path / "a")
    with pytest.raises(FileExistsError, match="a exists already: choose another folder"):
        minari.save(make_set(seed=1), tmp_path / "a")
    assert_same(minari.load(tmp_path / "a"), make_set(seed=0))


def test_concurrent_saves_let_one_succeed(tmp_path, monkeypatch):
    monkeypatch.setattr(minari, "require_writable", lambda path: None)
    minari.save(make_set(seed=0), tmp_path / "a")
    with pytest.raises(FileExistsError, match="a exists already"):
        minari.save(make_set(seed=1), tmp_path / "a")
    assert_same(minari.load(tmp_path / "a"), make_set(seed=0))
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


def test_missing_packages_name_extra(tmp_path, monkeypatch):
    minari.save(make_set(), tmp_path / "a")
    for package in ("minari", "h5py"):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, package, None)
            for call in (minari.load, minari.require_writable):
                with pytest.raises(ImportError, match=r"pip install gtrxl_jax\[offline\]"):
                    call(tmp_path / "a")


def test_saves_device_arrays(tmp_path):
    whole = make_set(spaces=FLAT)
    minari.save(jax.device_put(whole), tmp_path / "a")
    assert_same(minari.load(tmp_path / "a"), whole)


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
    assert_same(minari.load(tmp_path / "a"), one)
