"""Levels of DeepMind Lab, played by an engine that has its interface."""

import dataclasses
import sys
import types

import numpy as np
import pytest

from gtrxl_jax.envs.host import dmlab30
from gtrxl_jax.envs.host.dmlab import ACTIONS
from gtrxl_jax.envs.host.simulators import make_host_env
from gtrxl_jax.envs.host.stream import HostEnv, HostStream
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.nn.encoders import TextEncoder, make_encoder
from gtrxl_jax.online.config import preset
from gtrxl_jax.online.host import make_trainer
from gtrxl_jax.online.normalized import read_returns, returns_of_tasks

FRAMES = 10


class FakeLab:
    """Has the interface of `deepmind_lab.Lab`: episodes of 10 frames, each with a reward of 1.

    The image has the number of the frame in all pixels; as in the engine, there are no observations
    when an episode has ended.
    """

    made = []

    def __init__(self, level, observations, config=None, renderer="software"):
        assert observations == ["RGB_INTERLEAVED", "INSTR"]
        assert all(isinstance(value, str) for value in config.values())
        self.level, self.config, self.renderer = level, config, renderer
        self.actions, self.seeds, self.closed, self._frame = [], [], False, None
        FakeLab.made.append(self)

    def reset(self, episode=-1, seed=None):
        self.seeds.append(seed)
        self._frame = 0

    def is_running(self):
        return self._frame is not None

    def step(self, action, num_steps=1):
        assert action.dtype == np.intc
        assert action.shape == (7,)
        self.actions.append(action.tolist())
        played = min(num_steps, FRAMES - self._frame)
        self._frame += played
        if self._frame == FRAMES:
            self._frame = None
        return float(played)

    def observations(self):
        if not self.is_running():
            raise RuntimeError("Environment in wrong status for observations")
        shape = (int(self.config["height"]), int(self.config["width"]), 3)
        return {
            "RGB_INTERLEAVED": np.full(shape, self._frame, np.uint8),
            "INSTR": "Find the red ball" if "language" in self.level else "",
        }

    def close(self):
        self.closed = True


@pytest.fixture
def engine(monkeypatch):
    fake = types.ModuleType("deepmind_lab")
    vars(fake).update(Lab=FakeLab)
    monkeypatch.setitem(sys.modules, "deepmind_lab", fake)
    monkeypatch.setattr(FakeLab, "made", [])


def make(level="rooms_watermaze", **params):
    env = make_host_env(f"dmlab:{level}", params, {})
    return env, FakeLab.made[-1]


def test_actions_are_native_vectors(engine):
    """The engine's order is look right, look down, strafe right, forward, fire, jump, crouch."""
    env, lab = make()
    assert env.action_space.n == 15
    for action in (0, 2, 6, 8, 13, 14):
        env.reset()
        env.step(np.int64(action))
    assert lab.actions == [
        [0, 0, 0, 1, 0, 0, 0],
        [0, 0, -1, 0, 0, 0, 0],
        [-60, 0, 0, 0, 0, 0, 0],
        [0, 10, 0, 0, 0, 0, 0],
        [60, 0, 0, 1, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0],
    ]
    env, lab = make("psychlab_arbitrary_visuomotor_mapping", actions="visuomotor")
    assert env.action_space.n == 5
    env.reset()
    for action in (1, 4):
        env.step(action)
    assert lab.actions == [[10, 0, 0, 0, 0, 0, 0], [0] * 7]


def test_tables_of_actions_are_mirrored():
    for name, moves in ACTIONS.items():
        vectors = set(moves.values())
        assert len(vectors) == len(moves), name
        for side in (0, 2):  # looking and strafing
            flipped = {(*v[:side], -v[side], *v[side + 1 :]) for v in vectors}
            assert flipped == vectors, name


def test_episodes_end_when_the_engine_stops(engine):
    """The last action lasts two frames; what was seen before it is the final observation."""
    env, lab = make()
    observation, info = env.reset(seed=0)
    assert info == {}
    steps = [(observation, 0.0, False)]
    while not steps[-1][2]:
        observation, reward, terminated, truncated, _ = env.step(0)
        assert not truncated
        steps.append((observation, reward, terminated))
    assert [reward for _, reward, _ in steps] == [0, 4, 4, 2]
    assert [observation["image"][0, 0, 0] for observation, *_ in steps] == [0, 4, 8, 8]
    np.testing.assert_array_equal(env.render(), steps[-1][0]["image"])
    assert env.observation_space.contains(steps[-1][0])
    assert steps[-1][0]["image"].shape == (72, 96, 3)
    env.close()
    assert lab.closed


def test_time_steps_of_a_stream(engine):
    stream = HostStream((HostEnv("dmlab:rooms_watermaze", {"repeat": 5}),), 2)
    assert all(lab.closed for lab in FakeLab.made)
    with stream.open(0) as envs:
        arrivals = [envs.reset(), *(envs.step(np.zeros(2, int)) for _ in range(4))]
    assert [arrival.first[0] for arrival in arrivals] == [True, False, False, True, False]
    assert [arrival.reward[1] for arrival in arrivals] == [0, 5, 5, 0, 5]
    assert [arrival.discount[0] for arrival in arrivals] == [1, 1, 0, 1, 1]


def test_seeds_are_of_the_environment(engine):
    seeds = []
    for seed in (3, 3, 4):
        env, lab = make()
        env.reset(seed=seed)
        env.reset()
        seeds.append(lab.seeds)
    assert seeds[0] == seeds[1] != seeds[2]
    assert len({*seeds[0], *seeds[2]}) == 4


def test_instructions_are_rows_of_words(engine):
    env, _ = make("language_select_described_object")
    row = env.reset()[0]["instruction"]
    assert len(set(row[:4])) == 4
    assert (row[:4] > 0).all()
    assert (row[4:] == 0).all()
    assert env.observation_space["instruction"].contains(row)
    other, _ = make()
    assert not other.reset()[0]["instruction"].any()
    assert other.observation_space == env.observation_space
    encoder = make_encoder(env.observation_space, encoders={"instruction": "text"})
    assert isinstance(encoder.encoders["instruction"], TextEncoder)


def test_settings_of_the_engine(engine):
    _, lab = make("contributed/psychlab/harlow", renderer="hardware", width=32, dataset="/images")
    assert (lab.level, lab.renderer) == ("contributed/psychlab/harlow", "hardware")
    assert lab.config.items() >= {"width": "32", "height": "72", "datasetPath": "/images"}.items()
    _, lab = make("rooms_watermaze")
    assert lab.level == "contributed/dmlab30/rooms_watermaze"
    assert not {"datasetPath", "mixerSeed", "allowHoldOutLevels"} & lab.config.keys()
    for level, params in (("rooms_watermaze", {"test": True}), (dmlab30.TEST_LEVELS[0], {})):
        _, lab = make(level, **params)
        assert lab.config["allowHoldOutLevels"] == "true"
        assert lab.config["mixerSeed"] == "1611489005"


@pytest.mark.parametrize(
    ("level", "params", "message"),
    [
        ("rooms_watermaz", {}, "unknown level of DMLab-30 'rooms_watermaz': did you mean 'rooms_"),
        ("rooms_watermaze", {"actions": "all"}, "unknown env.params actions 'all'"),
        ("rooms_watermaze", {"renderer": "gpu"}, "unknown env.params renderer 'gpu'"),
        ("rooms_watermaze", {"repeat": 0}, "env.params repeat must be at least 1"),
        ("rooms_watermaze", {"frames": 4}, "env.params do not fit dmlab:rooms_watermaze: .*frames"),
    ],
)
def test_wrong_settings_are_named(engine, level, params, message):
    with pytest.raises(ValueError, match=message):
        make_host_env(f"dmlab:{level}", params, {})


def test_a_missing_engine_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    with pytest.raises(ImportError, match="requires deepmind_lab, which is in no package index"):
        make_host_env("dmlab:rooms_watermaze", {}, {})
    with pytest.raises(ImportError, match="dmlab:rooms_collect_good_objects_train requires"):
        make_trainer(preset("dmlab"))


def test_levels_have_returns_of_humans_and_at_random():
    train, test = dmlab30.TRAIN_LEVELS, dmlab30.TEST_LEVELS
    assert len(set(train)) == len(set(test)) == 30
    assert sorted(set(train) - set(test)) == [
        "rooms_collect_good_objects_train",
        "rooms_exploit_deferred_effects_train",
    ]
    table = read_returns("dmlab30")
    assert table.keys() == {f"dmlab:{level}" for level in (*train, *test)}
    for one, other in zip(train, test, strict=True):
        entry = table[f"dmlab:{one}"]
        assert entry == table[f"dmlab:{other}"]
        assert entry["reference"] > entry["random"]


def test_the_preset_has_a_task_for_each_level():
    env = preset("dmlab").env
    assert [name for name, _ in env.members] == [f"dmlab:{x}" for x in dmlab30.TRAIN_LEVELS]


def test_the_preset_is_trained_with_normalized_scores(engine):
    """All levels share their spaces, and the trainer records the returns of each."""
    config = dataclasses.replace(preset("dmlab"), core=core_config("gtrxl", "debug"))
    trainer = make_trainer(config)
    assert trainer.stream.num_tasks == 30
    random_N, human_N = returns_of_tasks(trainer.config.env)
    assert (random_N[0], human_N[0]) == (0.073, 10.0)
    assert (random_N[-1], human_N[-1]) == (2.438, 106.7)
    names = trainer.score_shapes().keys()
    assert {"normalized", "normalized/uncapped", "normalized/task_29"} <= names
