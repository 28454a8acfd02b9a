"""Datasets of all formats are read as they were written."""

import gymnasium
import h5py
import jax
import numpy as np
import pytest

from gtrxl_jax.data import dataset_spaces, datasets, minari
from gtrxl_jax.data.datasets import DatasetReader, Selection
from gtrxl_jax.data.format import FORMATS, Format, register_format
from gtrxl_jax.data.loader import read_segments
from gtrxl_jax.data.outcomes import Outcomes
from gtrxl_jax.data.summary import summarize
from gtrxl_jax.data.windows import take_segments
from gtrxl_jax.segments import OPTIONAL
from tests.comparison import assert_same
from tests.data.files import (
    d4rl_arrays,
    maze_arrays,
    stacked,
    write_d4rl,
    write_mazes,
    write_shard,
)
from tests.data.sets import NESTED, make_set
from tests.data.theirs import write_theirs


def episode_of(whole, e):
    """Return observations, actions and rewards of an episode without padding."""
    n = whole.length[e]
    return jax.tree.map(
        np.asarray,
        (
            jax.tree.map(lambda x: x[e, : n + 1], whole.observations),
            jax.tree.map(lambda x: x[e, :n], whole.actions),
            whole.rewards[e, :n],
        ),
    )


def assert_episode(whole, e, observations, actions, rewards):
    got = episode_of(whole, e)
    jax.tree.map(np.testing.assert_array_equal, got, (observations, actions, rewards))


def test_d4rl_is_split_by_both_ends(tmp_path):
    arrays = d4rl_arrays()
    following = np.random.default_rng(1).normal(size=(12, 3)).astype(np.float32)
    path = write_d4rl(tmp_path / "hopper.hdf5", arrays | {"next_observations": following})
    whole = datasets.load(path)
    assert whole.length.tolist() == [5, 3, 4]
    assert whole.terminated.tolist() == [True, False, True]
    for e, (a, b) in enumerate([(0, 5), (5, 8), (8, 12)]):
        seen = np.concatenate([arrays["observations"][a:b], following[b - 1 : b]])
        assert_episode(whole, e, seen, arrays["actions"][a:b], arrays["rewards"][a:b])
    assert whole.spaces == dataset_spaces(
        gymnasium.spaces.Box(-np.inf, np.inf, (3,)), gymnasium.spaces.Box(-1.0, 1.0, (2,))
    )


def test_d4rl_without_next_observations(tmp_path):
    """A terminated episode repeats its last observation, any other gives up its last action."""
    arrays = d4rl_arrays((5, 3, 4), ("terminal", "timeout", ""))
    path = write_d4rl(tmp_path / "hopper.hdf5", arrays)
    whole, seen = datasets.load(path), arrays["observations"]
    assert whole.length.tolist() == [5, 2, 3]
    rows = [[0, 1, 2, 3, 4, 4], [5, 6, 7], [8, 9, 10, 11]]
    for e, (a, b) in enumerate([(0, 5), (5, 7), (8, 11)]):
        assert_episode(whole, e, seen[rows[e]], arrays["actions"][a:b], arrays["rewards"][a:b])
    with DatasetReader(path) as reader:
        assert reader.lacks_last.all()
        cut, missing = reader.describe_missing()
    assert cut == "the last 4 steps neither terminated nor timed out: a cut episode"
    assert missing.startswith("the last observation of 3 of 3 episodes is not stored")


def test_d4rl_leaves_out_single_steps_without_an_observation_after_them(tmp_path):
    """As where a goal of maze2d is reached at once; one that terminated repeats its observation."""
    ends = ("timeout", "timeout", "terminal", "timeout", "timeout")
    arrays = d4rl_arrays((4, 1, 1, 1, 3), ends)
    path = write_d4rl(tmp_path / "maze2d.hdf5", arrays)
    whole = datasets.load(path)
    assert whole.length.tolist() == [3, 1, 2]
    with DatasetReader(path) as reader:
        assert reader.describe_missing()[0] == (
            "2 single steps have no observation after them: left out"
        )
    following = arrays["observations"] + 1
    path = write_d4rl(tmp_path / "with.hdf5", arrays | {"next_observations": following})
    assert datasets.load(path).length.tolist() == [4, 1, 1, 1, 3]


def test_time_limit_counts_actions_that_are_left_out(tmp_path):
    """One episode terminates in the last step that is allowed; no other was cut."""
    arrays = d4rl_arrays((6, 6, 3, 6), ("timeout", "timeout", "terminal", "terminal"))
    path = write_d4rl(tmp_path / "hopper.hdf5", arrays)
    whole = datasets.load(path)
    assert whole.length.tolist() == [5, 5, 3, 6]
    assert whole.lacks_action.tolist() == [True, True, False, False]
    minari.save(whole, tmp_path / "ours")
    for place in (path, tmp_path / "ours"):
        assert Outcomes.of(datasets.load(place)).is_whole_E.all()
        with DatasetReader(place) as reader:
            assert summarize(reader).cut == 0


def test_d4rl_of_choices(tmp_path):
    arrays = d4rl_arrays()
    arrays["actions"] = np.arange(12)[:, None] % 4
    arrays |= {name: arrays[name][:, None] for name in ("rewards", "terminals")}
    arrays["observations"] = arrays["observations"].astype(np.float64)
    path = write_d4rl(tmp_path / "maze.h5", arrays)
    spaces = datasets.load(path).spaces
    assert spaces.action == gymnasium.spaces.Discrete(4, dtype=np.int32)
    assert spaces.observation.dtype == np.float64
    wide = dataset_spaces(gymnasium.spaces.Box(-9.0, 9.0, (3,)), gymnasium.spaces.Discrete(7))
    with DatasetReader(path, spaces=wide) as reader:
        assert reader.spaces == wide
        assert reader.episode(0).observations.dtype == np.float32
    other = dataset_spaces(gymnasium.spaces.Box(-9.0, 9.0, (2,)), gymnasium.spaces.Discrete(7))
    with DatasetReader(path, spaces=other) as reader:
        assert reader.spaces == spaces


def test_bounds_of_actions_are_those_reached(tmp_path):
    arrays = d4rl_arrays()
    arrays["actions"][3] = 2, -3
    space = datasets.load(write_d4rl(tmp_path / "x.hdf5", arrays)).spaces.action
    np.testing.assert_array_equal(space.low, arrays["actions"].min(axis=0))
    np.testing.assert_array_equal(space.high, [2, arrays["actions"][:, 1].max()])


@pytest.mark.parametrize(("constant", "bounds"), [(0, [-1, 1]), (2, [-1, 2]), (-3, [-3, 1])])
def test_number_that_never_changes_has_a_range(tmp_path, constant, bounds):
    arrays = d4rl_arrays()
    arrays["actions"][3] = 2
    arrays["actions"][:, 1] = constant
    path = write_d4rl(tmp_path / "x.hdf5", arrays)
    space = datasets.load(path).spaces.action
    assert [space.low[1], space.high[1]] == bounds
    given = dataset_spaces(
        gymnasium.spaces.Box(-np.inf, np.inf, (3,)), gymnasium.spaces.Box(-4.0, 4.0, (2,))
    )
    with DatasetReader(path, spaces=given) as reader:
        assert reader.spaces == given


def test_booleans_are_choices(tmp_path):
    arrays = d4rl_arrays() | {"actions": np.arange(12) % 2 == 0}
    whole = datasets.load(write_d4rl(tmp_path / "x.hdf5", arrays))
    assert whole.spaces.action == gymnasium.spaces.Discrete(2, dtype=np.int32)
    assert whole.actions[0].tolist() == [1, 0, 1, 0, 1]


def test_shards_are_rebuilt(tmp_path):
    first = write_shard(tmp_path / "1" / "replay_logs", 0, (5, 2), unfinished=4)
    second = write_shard(tmp_path / "1" / "replay_logs", 10, (6, 3), begun=3)
    expected = [*first, *second[1:]]  # without the part of an episode
    whole = datasets.load(tmp_path / "1")
    assert whole.length.tolist() == [5, 2, 3, 6, 3]
    assert whole.terminated.tolist() == [True, True, False, True, True]
    assert whole.spaces.observation == gymnasium.spaces.Box(0, 255, (6, 5, 4), np.uint8)
    for e, (frames, actions, rewards) in enumerate(expected):
        n, seen = whole.length[e], stacked(frames)
        seen = seen[: n + 1] if len(seen) > n else np.concatenate([seen, seen[-1:]])
        assert_episode(whole, e, seen, actions[:n], rewards[:n])
    with DatasetReader(tmp_path / "1") as reader:
        assert reader.describe_missing()[:-1] == [
            "shard 10: its first 3 entries are part of an episode"
        ]
        for e in (3, 0, 1):  # in any order
            np.testing.assert_array_equal(reader.observations(e, 1, 2)[0], whole.observations[e, 1])


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("unfinished", [0, 4])
def test_entries_of_the_shard_before_are_not_read(tmp_path, padded, unfinished):
    """As in the last shard, which is written where training ends."""
    for name, left_over in (("whole", 0), ("last", 9)):
        write_shard(
            tmp_path / name, 3, (5, 2), unfinished=unfinished, left_over=left_over, padded=padded
        )
    whole, last = (datasets.load(tmp_path / name) for name in ("whole", "last"))
    assert last.length.tolist() == [5, 2, 3][: 2 + (unfinished > 0)]
    assert_same(last, whole)
    missing = []
    for name in ("whole", "last"):
        with DatasetReader(tmp_path / name) as reader:
            missing.append(reader.describe_missing())
    assert missing[0] == missing[1]


def test_shards_do_not_need_their_count(tmp_path):
    for counted in (True, False):
        write_shard(tmp_path / str(counted), 0, (5, 2), unfinished=4, counted=counted)
    assert_same(*(datasets.load(tmp_path / str(counted)) for counted in (True, False)))


def test_shards_without_zero_entries(tmp_path):
    episodes = write_shard(tmp_path, 0, (5, 2), padded=False)
    whole = datasets.load(tmp_path)
    assert whole.length.tolist() == [5, 2]
    np.testing.assert_array_equal(whole.observations[1, :2], stacked(episodes[1][0]))


def test_memory_mazes(tmp_path):
    write_mazes(tmp_path, (4, 6, 3))
    first = maze_arrays(5)
    first["terminal"][-1] = True
    np.savez(tmp_path / "episode-1.npz", **first)
    whole = datasets.load(tmp_path)
    # Episodes 1, 8, 9, 10.
    assert whole.length.tolist() == [5, 4, 6, 3]
    assert whole.terminated.tolist() == [True, False, False, False]
    for e, arrays in enumerate([first, *map(maze_arrays, (4, 6, 3))]):
        choices = arrays["action"][1:].argmax(axis=1)
        assert_episode(whole, e, arrays["image"], choices, arrays["reward"][1:])
    assert whole.spaces.action == gymnasium.spaces.Discrete(6, dtype=np.int32)


@pytest.mark.parametrize("kind", ["d4rl", "mazes", "minari"])
def test_streamed_windows_match_those_in_memory(tmp_path, kind):
    path = tmp_path / "data"
    if kind == "d4rl":
        write_d4rl(path, d4rl_arrays((5, 3, 4), ("terminal", "timeout", "")))
    elif kind == "mazes":
        write_mazes(path)
    else:
        minari.save(make_set((5, 4)), path)
        without_last(path, 0, 1)
    whole = datasets.load(path)
    windows = [(e, s) for e, n in enumerate(whole.length) for s in range(n)]
    episode_B, start_B = np.array(windows, np.int32).T
    with DatasetReader(path) as reader:
        read = read_segments(reader, episode_B, start_B, 2, 2, OPTIONAL)
    taken = jax.device_get(take_segments(whole, episode_B, start_B, 2, 2, OPTIONAL))
    np.testing.assert_allclose(read.returns_to_go, taken.returns_to_go, rtol=1e-5, atol=1e-6)
    jax.tree.map(
        np.testing.assert_array_equal, read.replace(returns_to_go=0), taken.replace(returns_to_go=0)
    )


def without_last(path, *episodes):
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        for number in episodes:
            array = file[f"episode_{number}/observations"][:-1]
            del file[f"episode_{number}/observations"]
            file[f"episode_{number}/observations"] = array


def test_minari_without_last_observations(tmp_path):
    """Episodes of odd length have terminated."""
    whole = make_set((5, 4, 3))
    minari.save(whole, tmp_path / "set")
    without_last(tmp_path / "set", 0, 1)
    read = datasets.load(tmp_path / "set")
    assert read.length.tolist() == [5, 3, 3]
    seen = whole.observations
    repeated = np.concatenate([seen[0, :5], seen[0, 4:5]])
    assert_episode(read, 0, repeated, whole.actions[0, :5], whole.rewards[0, :5])
    assert_episode(read, 1, seen[1, :4], whole.actions[1, :3], whole.rewards[1, :3])
    assert_episode(read, 2, seen[2, :4], whole.actions[2, :3], whole.rewards[2, :3])


def test_keys_are_selected(tmp_path):
    whole = make_set(spaces=NESTED)
    minari.save(whole, tmp_path / "set")
    for selection in (
        Selection(keys=("body", "image"), drop=("image",)),
        Selection(keys=("body",)),
    ):
        read = datasets.load(tmp_path / "set", selection=selection)
        assert read.spaces.observation == gymnasium.spaces.Dict(body=NESTED.observation["body"])
        np.testing.assert_array_equal(
            read.observations["body"]["place"], whole.observations["body"]["place"]
        )


def test_actions_are_clipped_by_a_tolerance(tmp_path):
    box = gymnasium.spaces.Box(-1.0, 1.0, (3,))
    write_theirs(tmp_path / "data", box, box, actions=lambda x: np.sign(x) * np.float32(1.01))
    read = datasets.load(tmp_path, selection=Selection(clip_actions=0.02))
    assert set(np.unique(read.actions[0])) == {-1, 1}
    with pytest.raises(ValueError, match=r"episode 0, step 0: actions\[0\] is .*, outside Box"):
        datasets.load(tmp_path, selection=Selection(clip_actions=0.005))


@pytest.mark.parametrize("axes", ["hwc", "chw"])
def test_images_in_either_order_of_axes(tmp_path, axes):
    """Minari compresses those of three channels, if these come last."""
    shape = (10, 12, 3) if axes == "hwc" else (3, 10, 12)
    space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
    storage = write_theirs(tmp_path / "data", space, gymnasium.spaces.Discrete(3))
    (episode,) = storage.get_episodes([0])
    read = datasets.load(tmp_path)
    np.testing.assert_array_equal(read.observations[0, :5], episode["observations"])


def test_formats_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.setattr("gtrxl_jax.data.datasets.FORMATS", FORMATS[:])
    monkeypatch.setattr("gtrxl_jax.data.format.FORMATS", datasets.FORMATS)

    @register_format
    class Table(Format):
        name, layout = "a table", "a table"

        @classmethod
        def find(cls, path):
            return path if path.suffix == ".csv" else None

        def __init__(self, path):
            self.path, self.num_episodes = path, 1
            self.metadata = minari.Metadata()
            self.table = np.loadtxt(path, delimiter=",", dtype=np.float32)
            box = gymnasium.spaces.Box(-9.0, 9.0, (1,))
            self.spaces = box, gymnasium.spaces.Discrete(2)

        def num_actions(self, episode):
            return len(self.table)

        num_observations = num_actions

        def rewards(self, episode):
            return self.table[:, 2]

        def terminated(self, episode):
            return True

        def read(self, episode, field, space, start, stop):
            column = self.table[start:stop]
            return column[:, :1] if field == "observations" else column[:, 1].astype(int)

        def close(self):
            pass

    (tmp_path / "x.csv").write_text("1,0,5\n2,1,6\n")
    whole = datasets.load(tmp_path / "x.csv")
    assert_episode(whole, 0, np.array([[1], [2], [2]], np.float32), [0, 1], [5, 6])
