"""Damaged data sets, read as a whole and as they are streamed, and those that do not fit a run."""

import json
import os

import gymnasium
import h5py
import jax
import minari as theirs
import numpy as np
import pytest

from gtrxl_jax.data import dataset_spaces, datasets, minari
from gtrxl_jax.data.datasets import DatasetReader
from gtrxl_jax.data.loader import read_segments
from gtrxl_jax.data.spaces import same_spaces
from gtrxl_jax.offline.config import preset
from gtrxl_jax.offline.data import Streamed
from gtrxl_jax.offline.environments import sampling_of, trajectories_of
from gtrxl_jax.offline.trainer import OfflineTrainer
from tests.bad_inputs.refusal import contents, refused
from tests.data.sets import make_set
from tests.data.theirs import write_theirs
from tests.jobs import changed

BOX = gymnasium.spaces.Box(-1.0, 1.0, (3,))
DISCRETE = gymnasium.spaces.Discrete(3)


def stream(path):
    """Read the first step of each episode, as a run that streams its data does."""
    with DatasetReader(path) as reader:
        episodes = np.arange(reader.num_episodes, dtype=np.int32)
        return read_segments(reader, episodes, np.zeros_like(episodes), 1, 1)


HOW = {"held": datasets.load, "streamed": stream}


def rejected(read, path, message, error=ValueError):
    """Assert that reading raises, in one line that names the file, and changes nothing."""
    before = contents(path)
    with pytest.raises(error, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(path) == before


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (BOX, gymnasium.spaces.Text(4), "action_space is a Text, which no policy supports"),
        (
            BOX,
            gymnasium.spaces.Dict(a=DISCRETE, b=gymnasium.spaces.Text(4)),
            r"action_space\['b'\] is a Text",
        ),
    ],
)
def test_unsupported_spaces(tmp_path, observation, action, message):
    path = tmp_path / "data"
    path.mkdir()
    theirs.dataset.minari_storage.MinariStorage.new(path, observation, action)
    h5py.File(path / "main_data.hdf5", "w").close()
    rejected(datasets.load, tmp_path, message, TypeError)


VALUES = {
    "NaN reward": (
        dict(rewards=lambda x: x * np.nan),
        "episode 0, step 0: rewards is nan: numbers must be finite",
    ),
    "action outside": (
        dict(actions=lambda x: x + 3),
        r"episode 0, step 0: actions is \d, outside Discrete\(3\)",
    ),
    "action beyond int32": (
        dict(actions=lambda x: x + 2**32),
        r"episode 0 .* actions are up to 429496729\d",
    ),
    "type of actions": (
        dict(actions=lambda x: x.astype(np.float64)),
        r"episode 0 .* actions are float64\[\], but .* int32\[\]",
    ),
    "infinite observation": (
        dict(observations=lambda x: x * np.inf),
        r"episode 0, step 0: observations\[0\] is -?inf, not finite",
    ),
    "shape of observations": (
        dict(observations=lambda x: x[:, :2]),
        r"episode 0 .* observations are float32\[2\], but .* float32\[3\]",
    ),
    "lost action": (
        dict(actions=lambda x: x[:-1]),
        "episode 0 has 4 rewards and 3 actions, not 4",
    ),
    "lost observations": (
        dict(observations=lambda x: x[2:]),
        "episode 0 has 4 rewards and 3 observations, not 5",
    ),
    "lost termination": (
        dict(terminations=lambda x: x[1:]),
        "episode 0 has 4 rewards and 3 terminations, not 4",
    ),
    "end inside": (
        dict(terminations=lambda x: np.arange(len(x)) == 1),
        r"episode 0: terminations\[1\] is set before the end: store each episode by itself",
    ),
    "column of rewards": (
        dict(rewards=lambda x: x[:, None]),
        r"episode 0: each of its rewards has shape \[1\]: store one .*, such as rewards\[:, 0\]",
    ),
    "column of terminations": (
        dict(terminations=lambda x: x[:, None]),
        r"episode 0: each of its terminations has shape \[1\]: store one",
    ),
    "lost truncation": (
        dict(truncations=lambda x: x[1:]),
        "episode 0 has 4 rewards and 3 truncations, not 4",
    ),
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("values", VALUES)
def test_values_do_not_fit(tmp_path, values, how):
    changes, message = VALUES[values]
    write_theirs(tmp_path / "data", BOX, DISCRETE, **changes)
    rejected(HOW[how], tmp_path, message)


ACTIONS = gymnasium.spaces.Box(np.array([-1.0, 0.0], np.float32), np.float32(1.0), (2,))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("beyond", [np.float32(1e-6), 1e-3])
def test_actions_beyond_bounds_by_rounding_are_clipped(tmp_path, how, beyond):
    def widen(x):
        return (np.where(x > 0.5, 1, [-1, 0]) * (1 + beyond)).astype(np.float32)

    write_theirs(tmp_path / "data", BOX, ACTIONS, actions=widen)
    if beyond == 1e-3:
        return rejected(HOW[how], tmp_path, r"episode 0, step 0: actions\[0\] is -.*, outside Box")
    actions = np.asarray(HOW[how](tmp_path).actions).reshape(-1, 2)
    assert (actions >= ACTIONS.low).all()
    assert (actions <= ACTIONS.high).all()
    assert (abs(actions) == 1).any()


def test_bad_episodes_are_left_out(tmp_path):
    path, whole = tmp_path / "set", make_set((6, 9, 2, 3))
    minari.save(whole, path)
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        file["episode_1/observations"][5, 0] = np.nan
        del file["episode_2/rewards"]
    bad = []
    np.testing.assert_array_equal(datasets.load(path, bad.append).length, [6, 3])
    assert [error.number for error in bad] == [1, 2]
    assert "episode 1, step 5: observations[0] is" in str(bad[0])
    assert "episode 2 cannot be read as a Minari dataset" in str(bad[1])
    with DatasetReader(path, leave_out=(1, 2)) as reader:
        assert reader.numbers == (0, 3)
        np.testing.assert_array_equal(reader.length, [6, 3])
        np.testing.assert_array_equal(reader.episode(1).rewards, whole.rewards[3:, :3])


def test_step_of_window_is_named(tmp_path):
    """A window is checked where it is read; rewards everywhere, as returns-to-go need them all."""
    path = tmp_path / "set"
    minari.save(make_set((6, 9)), path)
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        file["episode_1/observations"][5, 0] = np.nan
    one = np.array([1], np.int32)
    with DatasetReader(path) as reader:
        read_segments(reader, one, np.array([2], np.int32), 1, 3)
        with pytest.raises(ValueError, match=r"episode 1, step 5: observations\[0\] is"):
            read_segments(reader, one, np.array([4], np.int32), 1, 3)
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        file["episode_1/rewards"][8] = np.inf
    with (
        DatasetReader(path) as reader,
        pytest.raises(ValueError, match="episode 1, step 8: rewards is inf"),
    ):
        read_segments(reader, one, np.array([2], np.int32), 1, 3)


def in_file(change):
    def damage(path):
        with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
            change(file)

    return damage


def cut_short(path):
    file = path / "data" / "main_data.hdf5"
    os.truncate(file, file.stat().st_size * 2 // 3)


def foreign(path):
    (path / "data" / "main_data.hdf5").write_bytes(b"PK\x03\x04 not HDF5")


def no_data(path):
    (path / "data" / "main_data.hdf5").unlink()


def lose(name):
    return in_file(lambda file: file.__delitem__(name))


def link(name, target):
    def change(file):
        del file[name]
        file[name] = target

    return in_file(change)


def move_elsewhere(file):
    """Put the actions into a file of their own."""
    del file["episode_2/actions"]
    file["episode_2"].create_dataset(
        "actions", (1,), np.int64, external=[("/etc/hostname", 0, h5py.h5f.UNLIMITED)]
    )


def make_virtual(file):
    layout = h5py.VirtualLayout((1,), np.float64)
    layout[:] = h5py.VirtualSource("other.hdf5", "secrets", (1,))
    del file["episode_2/rewards"]
    file["episode_2"].create_virtual_dataset("rewards", layout)


def metadata(**changes):
    def change(path):
        file = path / "data" / "metadata.json"
        described = {**json.loads(file.read_text()), **changes}
        file.write_text(json.dumps({k: v for k, v in described.items() if v is not None}))

    return change


def text(content):
    return lambda path: (path / "data" / "metadata.json").write_bytes(content)


UNREADABLE = "cannot be read as a Minari dataset, it is damaged or of another format"
DAMAGE = {
    "cut short": (cut_short, UNREADABLE),
    "foreign": (foreign, UNREADABLE),
    "no data": (no_data, "main_data.hdf5 is missing: get the whole dataset again"),
    "lost episode": (lose("episode_2"), f"{UNREADABLE}.*episode_2"),
    "lost array": (lose("episode_2/terminations"), f"episode 2 {UNREADABLE}.*terminations"),
    "half of metadata": (text(b'{"total_episodes": '), UNREADABLE),
    "metadata not a text": (text(b"\xff"), UNREADABLE),
    "nested metadata": (text(b"[" * 100_000), UNREADABLE),
    "list as metadata": (text(b"[1, 2]"), "metadata.json has no observation_space"),
    "no space": (metadata(observation_space=None), "metadata.json has no observation_space"),
    "number as space": (metadata(action_space=3), "metadata.json: action_space must be a text"),
    "object as space": (
        metadata(observation_space={"type": "Box"}),
        "metadata.json: observation_space must be a text, as Minari writes it: {'ty",
    ),
    "empty space": (metadata(observation_space="{}"), UNREADABLE),
    "unknown space": (metadata(action_space='{"type": "Graph"}'), UNREADABLE),
    "no count": (metadata(total_episodes=None), "metadata.json has no total_episodes"),
    "no episodes": (metadata(total_episodes=0), "contains no episodes"),
    "too many episodes": (metadata(total_episodes=6), f"{UNREADABLE}.*episode_5"),
    "far too many episodes": (
        metadata(total_episodes=10**12),
        "is damaged: it has 5 episodes, and 1,000,000,000,000 in its metadata.json",
    ),
    "other format": (metadata(data_format="csv"), "data_format 'csv', which is unknown"),
    "half of ours": (metadata(gtrxl_jax={"env_name": "x"}), UNREADABLE),
    "link to a file": (
        link("episode_2", h5py.ExternalLink("/etc/passwd", "/")),
        "episode_2 is a link, and only data in the file itself are read",
    ),
    "link to an array": (
        link("episode_2/rewards", h5py.ExternalLink("other.hdf5", "/rewards")),
        "rewards is a link, and only data in the file itself are read",
    ),
    "link inside": (
        link("episode_2/observations", h5py.SoftLink("/episode_0/observations")),
        "observations is a link",
    ),
    "array elsewhere": (in_file(move_elsewhere), "actions is in another file, and only data"),
    "virtual array": (in_file(make_virtual), "rewards is in another file"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "set"
    minari.save(make_set(), path)
    return {path.relative_to(path.parents[1]): path.read_bytes() for path in path.rglob("*.*")}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("damage", DAMAGE)
def test_files_are_damaged(tmp_path, damage, how, whole):
    (tmp_path / "data").mkdir()
    for name, content in whole.items():
        (tmp_path / name).write_bytes(content)
    change, message = DAMAGE[damage]
    change(tmp_path)
    rejected(HOW[how], tmp_path, message)


CART_POLE = changed(
    preset("debug"),
    env__name="CartPole-v1",
    env__params={},
    evaluation__lengths=(),
    curriculum=False,
    unroll=2,
    segments=1,
)
BOUNDS = np.array([4.8, np.inf, 0.41887903, np.inf], np.float32)


def cart_pole(path, bounds=BOUNDS, env_name="CartPole-v1"):
    """Write episodes with gymnasium's CartPole space, whose velocities are unbounded."""
    spaces = dataset_spaces(gymnasium.spaces.Box(-bounds, bounds), gymnasium.spaces.Discrete(2))
    minari.save(make_set((3, 4), spaces), path, minari.Metadata(env_name=env_name))
    return changed(CART_POLE, data__path=str(path))


def test_bounds_agree_up_to_rounding(tmp_path, capsys):
    config = cart_pole(tmp_path / "set")
    assert trajectories_of(config).num_episodes == 2
    assert len(Streamed(config, sampling_of(config)).outcomes().returns_E) == 2
    assert capsys.readouterr().err == ""


def test_evaluation_with_bounds_that_depend_on_parameters(tmp_path):
    """The parameters of CartPole are the bounds of its observations."""
    config = cart_pole(tmp_path / "set")
    trainer = OfflineTrainer(config, trajectories_of(config))
    params = jax.eval_shape(trainer.init, 0).params
    scores = jax.eval_shape(trainer.evaluate, params, jax.random.key(0))
    assert scores["return"].shape == (config.evaluation.episodes,)


def test_other_bounds_are_another_space(tmp_path):
    config = cart_pole(tmp_path / "set", np.array([4.7, np.inf, 0.41887903, np.inf], np.float32))
    with pytest.raises(ValueError, match="choose a matching pair, or train without an environment"):
        trajectories_of(config)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (BOX, gymnasium.spaces.Box(-1.0, 1.0 + 1e-6, (3,)), True),
        (BOX, gymnasium.spaces.Box(-1.0, 1.001, (3,)), False),
        (BOX, gymnasium.spaces.Box(-1.0, 1.0, (2,)), False),
        (BOX, gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float64), False),
        (DISCRETE, gymnasium.spaces.Discrete(4), False),
        (BOX, DISCRETE, False),
        (gymnasium.spaces.Dict(a=BOX), gymnasium.spaces.Dict(a=BOX), True),
        (gymnasium.spaces.Dict(a=BOX), gymnasium.spaces.Dict(b=BOX), False),
    ],
)
def test_comparison_of_spaces(one, other, same):
    spaces = (dataset_spaces(space, DISCRETE) for space in (one, other))
    assert same_spaces(*spaces) == same


def test_name_of_other_environment_is_warned_of(tmp_path, capsys):
    config = cart_pole(tmp_path / "set", env_name="Acrobot-v1")
    expected = (
        f"data.path {tmp_path / 'set'} was recorded in Acrobot-v1, and env.name is CartPole-v1: "
        "the spaces agree, the tasks may not\n"
    )
    trajectories_of(config)
    assert capsys.readouterr().err == expected


COMMANDS = {
    "--env.name TMazePassive-v0": "choose a matching pair, or train without an environment",
    "--env.name CartPole-v1 --evaluation.lengths 9": "evaluation.lengths is not supported by Cart",
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("stream", [[], ["--data.stream"]])
@pytest.mark.parametrize("arguments", COMMANDS)
def test_data_do_not_fit_run(arguments, stream, tmp_path):
    cart_pole(tmp_path / "set")
    options = ["--preset", "debug", "--devices", "1", "--folder", tmp_path / "run", *stream]
    data = ["--data.path", tmp_path / "set", *arguments.split()]
    line = refused(tmp_path, "train-offline", *options, *data)
    assert COMMANDS[arguments] in line
