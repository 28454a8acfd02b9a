"""Environments on the host: spaces, wrappers, and the stream of their time steps."""

import dataclasses
import functools
import itertools
import math
import os
import sys
import types
import unittest.mock

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

from gtrxl_jax import plugins
from gtrxl_jax.acting import collecting
from gtrxl_jax.acting.evaluation import make_evaluate, record_episode
from gtrxl_jax.acting.host import FunctionPlayer, FunctionPolicy, play_episodes
from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.collection import CollectionConfig, CollectionEnvConfig, collect_dataset
from gtrxl_jax.data.datasets import load
from gtrxl_jax.data.trajectories import concatenate
from gtrxl_jax.envs.faults import FaultError
from gtrxl_jax.envs.host.simulators import is_host_env, make_host_env
from gtrxl_jax.envs.host.stream import Arrival, HostEnv, HostStream, seeds
from gtrxl_jax.envs.host.wrappers import require_wrappers
from gtrxl_jax.specs import action_spec, environment_action, observation_spec
from tests import hosts


class Uniform(Policy):
    """Acts at random."""

    def __init__(self, space):
        self._spec = action_spec(space)

    def init(self, params, batch_size):
        return ()

    def act(self, params, state, timestep, key):
        return (), self._spec.sample(key, len(timestep.first)), ()


class Spaces(gymnasium.Env):
    """Returns samples of a space, each three steps long, and requires actions of its space."""

    def __init__(self, observation_space, action_space=None, reward=1.0):
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Discrete(2)
        self._reward = reward

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self._steps += 1
        ends = self._steps == 3
        return self.observation_space.sample(), self._reward, ends, False, {"score": self._steps}


def of_spaces(**arguments):
    return Spaces(**arguments)


def stream_of(name, num_envs=3, **params):
    return HostStream((HostEnv(name, params),), num_envs)


HERE = f"{__name__}:of_spaces"

MISSION = pytest.importorskip("minigrid.core.mission").MissionSpace


def test_steps_are_those_of_each_environment_alone(monkeypatch):
    """An episode of n actions has n + 1 steps, and the step after a last one is the reset."""
    monkeypatch.setattr(hosts.Counter, "made", 0)
    stream = stream_of("tests.hosts:counter", anonymous=True)
    alone = hosts.Counter(anonymous=True)
    observation, _ = alone.reset()
    expected = [(observation, 0.0, 1.0, True, False, 0.0, 0)]
    episode_return, length = 0.0, 0
    for _ in range(20):
        if expected[-1][4]:
            observation, _ = alone.reset()
            episode_return, length = 0.0, 0
            expected.append((observation, 0.0, 1.0, True, False, 0.0, 0))
            continue
        observation, reward, terminated, truncated, _ = alone.step(0)
        episode_return, length = episode_return + reward, length + 1
        ends = terminated or truncated
        expected.append(
            (observation, reward, float(not terminated), False, ends, episode_return, length)
        )
    with stream.open(0) as envs:
        arrivals = [envs.reset()] + [envs.step(np.zeros(3, int)) for _ in range(20)]
    for arrival, one in zip(arrivals, expected, strict=True):
        found = (*arrival[:5], arrival.episode.episode_return, arrival.episode.length)
        for x_B, x in zip(found, one, strict=True):
            np.testing.assert_array_equal(x_B, np.broadcast_to(x, np.shape(x_B)))
        np.testing.assert_array_equal(arrival.episode.done, arrival.last)


OBSERVATIONS = {
    "box": spaces.Box(-1, 1, (3,), np.float32),
    "doubles": spaces.Box(-1, 1, (2, 2), np.float64),
    "image": spaces.Box(0, 255, (3, 16, 16), np.uint8),
    "discrete": spaces.Discrete(4, start=-1),
    "multi-discrete": spaces.MultiDiscrete([3, 2], start=[1, 0]),
    "multi-binary": spaces.MultiBinary(4),
    "text": spaces.Text(5, min_length=1, charset="abc"),
    "dict": spaces.Dict(
        {
            "b": spaces.Text(3, charset="xy"),
            "a": spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (1,))]),
            "c": spaces.Tuple([]),
        }
    ),
    "mission": MISSION(lambda color: f"find the {color} ball", [["red", "green"]]),
}


@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_observations_of_every_space(kind):
    stream = stream_of(HERE, observation_space=OBSERVATIONS[kind])
    spec = jax.tree.leaves(observation_spec(stream.observation_space))
    with stream.open(0) as envs:
        for arrival in (envs.reset(), *(envs.step(np.zeros(3, int)) for _ in range(8))):
            for one, x in zip(spec, jax.tree.leaves(arrival.observation), strict=True):
                assert x.shape == (3, *one.shape)
                assert x.dtype.kind in "iufb"
    assert stream.env.facts.reported == ("score",)


def test_tasks_may_differ_in_the_bounds_of_observations_alone():
    def task(high, actions):
        space = spaces.Box(0, high, (2,), np.float32)
        return HostEnv(HERE, {"observation_space": space, "action_space": actions})

    first = task(1, spaces.Discrete(2))
    with HostStream((first, task(9, spaces.Discrete(2))), 4).open(0) as envs:
        observations = [envs.reset().observation]
        observations += [envs.step(np.zeros(4, int)).observation for _ in range(9)]
    assert np.max(observations, axis=(0, 2)) == pytest.approx([1, 9, 1, 9], rel=0.3)
    with pytest.raises(ValueError, match=r"action space of task 1 is Discrete\(2, start=1\), but"):
        HostStream((first, task(1, spaces.Discrete(2, start=1))), 4)


ACTIONS = {
    "discrete": spaces.Discrete(3, start=5),
    "box": spaces.Box(np.array([-1, 0], np.float32), np.array([1, 9], np.float32)),
    "doubles": spaces.Box(-0.1, 0.1, (2,), np.float64),
    "halves": spaces.Dict({"a": spaces.Box(-1, 1, (), np.float16), "b": spaces.Discrete(2)}),
    "multi-discrete": spaces.MultiDiscrete([2, 4]),
    "dict": spaces.Dict({"move": spaces.Box(-1, 1, (2,)), "jump": spaces.Discrete(2)}),
}


@pytest.mark.parametrize("kind", ACTIONS)
def test_actions_of_every_space(kind):
    space = ACTIONS[kind]
    stream = stream_of(HERE, observation_space=OBSERVATIONS["box"], action_space=space)
    spec = action_spec(space)
    with stream.open(0) as envs:
        envs.reset()
        for number in range(6):
            action = spec.sample(jax.random.key(number), 3)
            action = jax.tree.map(lambda x: 9 * x if x.dtype == np.float32 else x, action)
            envs.step(jax.device_get(environment_action(space, action)))


def test_words_of_a_mission_are_told_apart():
    env = make_host_env(HERE, {"observation_space": OBSERVATIONS["mission"]}, {})
    assert env.observation_space == spaces.MultiDiscrete([6, 6, 6, 6])
    red, green = env._convert("find the red ball"), env._convert("find the green ball")
    np.testing.assert_array_equal(red != green, [False, False, True, False])


def test_words_of_other_texts_are_hashed():
    class Sentence(gymnasium.Space):
        def __init__(self):
            super().__init__(None, str)

        def sample(self, mask=None):
            return "go to the red door"

    env = make_host_env(HERE, {"observation_space": Sentence()}, {})
    red, blue = env._convert("go to the red door"), env._convert("Go to the blue door")
    np.testing.assert_array_equal((red != blue)[:6], [False, False, False, True, False, False])
    assert env.observation_space.contains(red)
    assert env._convert("word " * 100).all()


def test_minigrid_has_arrays():
    stream = stream_of("gymnasium:MiniGrid-MemoryS7-v0", 2)
    with stream.open(0) as envs:
        first = envs.reset()
        assert first.observation["image"].shape == (2, 7, 7, 3)
        assert first.observation["mission"].shape[0] == 2
        assert not np.array_equal(*first.observation["image"])
    assert stream.env.time_limit() == 245


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ({"keys": "image"}, {"image": (7, 7, 3)}),
        ({"keys": "image, direction"}, {"image": (7, 7, 3), "direction": ()}),
        ({"keys": "image", "flatten": True}, (147,)),
    ],
)
def test_wrappers(given, shape):
    env = make_host_env("gymnasium:MiniGrid-MemoryS7-v0", {}, given)
    space = env.observation_space
    parts = getattr(space, "spaces", None)
    found = {name: part.shape for name, part in parts.items()} if parts else space.shape
    assert found == shape


def test_whole_numbers_can_be_choices():
    given = {"keys": "image", "categories": 11}
    stream = HostStream((HostEnv("gymnasium:MiniGrid-MemoryS7-v0", {}, given),), 2)
    spec = observation_spec(stream.observation_space)["image"]
    assert (spec.categories, spec.feature_shape) == (11, (7, 7, 33))
    with stream.open(0) as envs:
        assert envs.reset().observation["image"].shape == (2, 7, 7, 3)
    with pytest.raises(ValueError, match="there are no boxes of whole numbers"):
        make_host_env(HERE, {"observation_space": OBSERVATIONS["box"]}, {"categories": 3})


def test_wrappers_of_images():
    params = {"observation_space": spaces.Box(0, 255, (20, 20, 3), np.uint8)}
    env = make_host_env(HERE, params, {"grey": True, "stack": 4, "limit": 2})
    observation, _ = env.reset()
    assert observation.shape == (4, 20, 20, 1)
    assert [env.step(0)[3] for _ in range(2)] == [False, True]


def test_wrappers_of_images_in_a_dict():
    """Each image, and nothing else; OpenCV drops the axis of one channel, which remains here."""
    resized = types.SimpleNamespace(INTER_AREA=3)
    resized.resize = lambda x, shape, interpolation: np.squeeze(x[: shape[1], : shape[0]])
    image = spaces.Box(0, 255, (20, 24, 3), np.uint8)
    inside = {"image": image, "other": spaces.Dict({"again": image}), "x": OBSERVATIONS["box"]}
    params = {"observation_space": spaces.Dict(inside)}
    with unittest.mock.patch.dict(sys.modules, cv2=resized):
        env = make_host_env(HERE, params, {"grey": True, "resize": 8})
        observation, _ = env.reset()
    given = env.unwrapped.observation_space.spaces
    assert env.observation_space["x"] == given["x"]
    for found in (observation["image"], observation["other"]["again"]):
        assert (found.shape, found.dtype) == ((8, 8, 1), np.uint8)
    assert env.observation_space.contains(observation)
    for name in ("grey", "resize"):
        with pytest.raises(ValueError, match=f"env.wrappers {name}: there are no images"):
            make_host_env(HERE, {"observation_space": OBSERVATIONS["box"]}, {name: 1})


def test_repeated_actions_sum_rewards_and_end():
    env = make_host_env(HERE, {"observation_space": OBSERVATIONS["box"]}, {"repeat": 2})
    env.reset()
    assert env.step(0)[1:3] == (2.0, False)
    assert env.step(0)[1:3] == (1.0, True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gray": True}, "unknown env.wrappers 'gray'.*grey"),
        ({"stack": 0}, "env.wrappers stack must be a positive whole number"),
        ({"keys": True}, "env.wrappers keys must be names"),
        ({"grey": False}, "env.wrappers grey must be true"),
    ],
)
def test_bad_wrappers_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        require_wrappers(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"keys": "picture"}, "unknown key in env.wrappers keys 'picture'"),
        ({"categories": 11, "keys": "image", "grey": True}, "no images .H, W, C. in Dict"),
    ],
)
def test_wrappers_that_do_not_fit_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        make_host_env("gymnasium:MiniGrid-MemoryS7-v0", {}, given)


@pytest.mark.parametrize(
    ("given", "name"), [({"flatten": True}, "flatten"), ({"stack": 2}, "stack")]
)
def test_wrappers_that_texts_do_not_fit_name_the_remedy(given, name):
    with pytest.raises(ValueError, match=f"which have a text.*--env.wrappers keys image {name}"):
        make_host_env("gymnasium:MiniGrid-MemoryS7-v0", {}, given)


def test_wrappers_that_need_opencv_name_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)  # as if it were not installed
    params = {"observation_space": spaces.Box(0, 255, (20, 20, 3), np.uint8)}
    with pytest.raises(ImportError, match="resize requires OpenCV: pip install opencv-python-head"):
        make_host_env(HERE, params, {"resize": 8})


@pytest.mark.parametrize("error", [AssertionError, KeyError, ValueError, TypeError])
def test_errors_of_constructors_name_the_params(error, monkeypatch):
    def refuse(size):
        raise error(f"no size {size}")

    monkeypatch.setattr(sys.modules[__name__], "refuse", refuse, raising=False)
    with pytest.raises(ValueError, match=f"env.params do not fit .*refuse: {error.__name__}: .*no"):
        make_host_env(f"{__name__}:refuse", {"size": 3}, {})


def test_rewards_of_one_entry_are_numbers():
    env = make_host_env(
        HERE, {"observation_space": OBSERVATIONS["box"], "reward": np.array([2.0])}, {}
    )
    env.reset()
    assert env.step(0)[1] == 2.0
    env = make_host_env(HERE, {"observation_space": OBSERVATIONS["box"], "reward": np.zeros(2)}, {})
    env.reset()
    with pytest.raises(ValueError, match=r"reward has shape \(2,\)"):
        env.step(0)


def test_which_names_are_of_the_host(monkeypatch):
    class Several(gymnasium.vector.VectorEnv):
        pass

    part = functools.partial(hosts.Counter, slow=0.0)
    monkeypatch.setattr(sys.modules[__name__], "part", part, raising=False)
    monkeypatch.setattr(sys.modules[__name__], "Several", Several, raising=False)
    assert is_host_env(f"{__name__}:part")
    assert make_host_env(f"{__name__}:part", {}, {}, render=True).action_space.n == 2
    assert is_host_env(f"{__name__}:Several")
    with pytest.raises(ValueError, match="returned a Several: return a gymnasium.Env"):
        make_host_env(f"{__name__}:Several", {}, {})
    assert is_host_env("gymnasium:CartPole-v1")
    assert is_host_env("tests.hosts:counter")
    assert is_host_env("tests.hosts:Counter")
    assert not is_host_env("TMazePassive-v0")
    assert not is_host_env("tests.hosts:MAX_ROWS")


def test_no_module_is_imported_by_a_name(tmp_path, monkeypatch):
    (tmp_path / "never_imported.py").write_text("Name = None")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="would import a module"):
        make_host_env("gymnasium:never_imported:CartPole-v1", {}, {})
    with pytest.raises(ValueError, match="import it first"):
        make_host_env("never_imported:Name", {}, {})
    assert "never_imported" not in sys.modules


@pytest.mark.parametrize("last", [3, 10**9])
def test_scores_of_the_last_step_alone_are_reported(last, monkeypatch):
    """Of an episode that does not end, only the first steps are looked at."""

    class Ends(Spaces):
        def step(self, action):
            observation, reward, *_ = super().step(action)
            ends = self._steps == last
            return observation, reward, ends, False, {"is_success": True} if ends else {"score": 1}

    monkeypatch.setattr(sys.modules[__name__], "Ends", Ends, raising=False)
    stream = stream_of(f"{__name__}:Ends", 1, observation_space=OBSERVATIONS["box"])
    assert stream.env.facts.reported == (("is_success", "score") if last == 3 else ("score",))
    with stream.open(0) as envs:
        envs.reset()
        episodes = [envs.step(np.zeros(1, int)).episode for _ in range(3)]
    success = [float(one.success[0]) for one in episodes if one.success is not None]
    assert success == ([0, 0, 1] if last == 3 else [])


RETURNED = {"step": (0, 1.0, False, False, {}), "reset": (0, {})}
FAULTS = [
    ({"step": (0, 1.0, False, {})}, "line .*: step returns 4 values: return 5, observation, rew"),
    ({"reset": np.zeros(2)}, "line .*: reset returns one value: return 2, observation, info"),
    ({"step": (*RETURNED["step"][:4], None)}, "info is a NoneType: return a dict"),
    ({"step": (0, None, *RETURNED["step"][2:])}, "reward is None: return one number"),
    ({"step": RuntimeError("crashed")}, r"in step\): RuntimeError: crashed"),
    ({"reset": None}, "reset takes no seed: define reset"),
]


@pytest.mark.parametrize(("faults", "message"), FAULTS)
def test_methods_that_are_not_as_in_gymnasium_are_named(faults, message, monkeypatch):
    class Faulty(Spaces):
        def reset(self, *, seed=None, options=None):
            return (RETURNED | faults)["reset"]

        def step(self, action):
            returned = (RETURNED | faults)["step"]
            if isinstance(returned, Exception):
                raise returned
            return returned

    if faults.get("reset", 0) is None:
        monkeypatch.setattr(Faulty, "reset", lambda self: RETURNED["reset"])
    monkeypatch.setattr(sys.modules[__name__], "Faulty", Faulty, raising=False)
    with pytest.raises(ValueError, match=f"Faulty.*{message}"):
        stream_of(f"{__name__}:Faulty", observation_space=spaces.Discrete(2))


@pytest.mark.parametrize(
    ("given", "limit"), [(7, 7), (np.int64(7), 7), (math.inf, None), (-1, None), (True, None)]
)
def test_a_limit_is_a_number_of_steps(given, limit, monkeypatch):
    monkeypatch.setattr(Spaces, "max_steps", given, raising=False)
    assert HostEnv(HERE, {"observation_space": spaces.Discrete(2)}).facts.limit == limit


INFOS = {
    "numbers of other types": ([{"score": 0}, {"score": 0.75}], {"score": [0, 0.75]}),
    "success where it succeeds": ([{"success": np.bool_(True)}, {}], {"success": [1, 0]}),
    "arrays of one entry": ([{"is_success": np.array([1])}, {}], {"is_success": [1, 0]}),
    "arrays of other lengths": ([{"legal": np.arange(2)}, {"legal": np.arange(3)}], {}),
    "what is no number": ([{0: 1.0, "success": "no", "by": None}, {"success": None}], {}),
    "names of other scores": ([{"return": 1.0, "_score": 1}, {}], {}),
}


@pytest.mark.parametrize("kind", INFOS)
def test_numbers_in_info_are_scores(kind, monkeypatch):
    class Reports(Spaces):
        infos = itertools.cycle(INFOS[kind][0])

        def __init__(self):
            super().__init__(spaces.Discrete(2))
            self._info = next(self.infos)

        def step(self, action):
            return *super().step(action)[:4], self._info

    monkeypatch.setattr(sys.modules[__name__], "Reports", Reports, raising=False)
    stream, expected = stream_of(f"{__name__}:Reports", 2), dict(INFOS[kind][1])
    next(Reports.infos)  # after the one that was asked for its facts, the first again
    with stream.open(0) as envs:
        envs.reset()
        episode = envs.step(np.zeros(2, int)).episode
    success = expected.pop("success", expected.pop("is_success", None))
    np.testing.assert_array_equal(episode.success, success)
    assert {name: x.tolist() for name, x in episode.info.items()} == expected


def test_seeds_differ_by_environment_and_run():
    assert seeds(np.int64(3), 0) == seeds(3, 0)
    found = {seeds(seed, row) for seed in (0, 1, [0, 1]) for row in range(50)}
    assert len(found) == 150


def test_evaluations_count_whole_episodes(monkeypatch):
    """Each environment plays its share, so that short episodes are no more frequent."""
    monkeypatch.setattr(hosts.Counter, "made", 0)
    stream = stream_of("tests.hosts:counter", anonymous=True)
    policy = Uniform(stream.action_space)
    lengths = {}
    for episode, row, _, arrival in play_episodes(policy, (), stream, jax.random.key(0), 8, 3):
        assert row == episode % 3
        lengths[episode] = int(arrival.episode.length[row])
    # A counter's episodes have 2, 3, 4, ... actions.
    assert lengths == {e: 2 + e // 3 for e in range(8)}
    scores = make_evaluate(policy, stream, 8)((), jax.random.key(0))
    np.testing.assert_array_equal(scores.length, [[2] * 8])


@pytest.mark.parametrize(
    ("wrappers", "remedy"),
    [({}, "and no time limit is known: set env.wrappers limit N"), ({"limit": 9}, "")],
)
def test_episodes_that_do_not_end_name_the_setting(monkeypatch, wrappers, remedy):
    monkeypatch.setattr("gtrxl_jax.envs.host.stream.UNKNOWN_LIMIT", 20)
    space = spaces.Discrete(2)
    endless = type("Endless", (Spaces,), {"step": lambda self, _: (0, 0.0, False, False, {})})
    monkeypatch.setattr(sys.modules[__name__], "Endless", lambda: endless(space), raising=False)
    stream = HostStream((HostEnv(f"{__name__}:Endless", {}, wrappers),), 2)
    episodes = play_episodes(Uniform(stream.action_space), (), stream, jax.random.key(0), 2, 2)
    if not remedy:
        assert len(list(episodes)) == 18
        return
    with pytest.raises(FaultError, match=f"has not ended after 20 actions, {remedy}"):
        list(episodes)
    with pytest.raises(FaultError, match=remedy):
        record_episode(Uniform(stream.action_space), stream, (), jax.random.key(0))


def test_wrong_values_of_an_evaluation_are_named(monkeypatch):
    monkeypatch.setattr(hosts.Counter, "failed", 0)
    # The first is the one that was asked for its facts.
    stream = stream_of("tests.hosts:counter", raise_at=3, failures=2, fault="nan")
    with pytest.raises(FaultError, match="observation is not finite at step 2 of the episode"):
        make_evaluate(Uniform(stream.action_space), stream, 4)((), jax.random.key(0))


def test_a_recorded_episode_has_frames():
    stream = stream_of("gymnasium:MiniGrid-MemoryS7-v0", 1, max_steps=5)
    episode = record_episode(Uniform(stream.action_space), stream, (), jax.random.key(0))
    assert len(episode.timesteps.first) == len(episode.states) <= 6
    assert episode.states[0].dtype == np.uint8
    assert episode.timesteps.last[-1]
    np.testing.assert_array_equal(episode.timesteps.first[:2], [True, False])


def test_environments_that_draw_nothing_are_recorded():
    stream = stream_of(HERE, 1, observation_space=spaces.Discrete(3))
    with pytest.raises(NotImplementedError):
        stream.env.make().render()
    episode = record_episode(Uniform(stream.action_space), stream, (), jax.random.key(0))
    np.testing.assert_array_equal(episode.timesteps.last, [False, False, False, True])
    assert episode.states is None


@pytest.mark.parametrize(
    ("render", "screen", "found"), [(True, "", "egl"), (True, ":0", None), (False, "", None)]
)
def test_mujoco_draws_without_a_screen(render, screen, found, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", screen)
    monkeypatch.setenv("MUJOCO_GL", "restored after the test")
    del os.environ["MUJOCO_GL"]
    make_host_env("gymnasium:CartPole-v1", {}, {}, render=render).close()
    assert os.environ.get("MUJOCO_GL") == found


@pytest.mark.slow  # tests/online/test_host.py has a quick one in threads
def test_a_process_that_hangs_names_the_setting(monkeypatch):
    monkeypatch.setattr(plugins, "_imported", {})  # of other tests
    stream = stream_of("tests.hosts:counter", 1, raise_at=2, failures=1, fault="sleep")
    stream.env.facts  # noqa: B018  before it hangs, here
    with stream.open(0, processes=True, timeout=1.0) as envs:
        envs.reset()
        with pytest.raises(TimeoutError, match="for 1 s: raise actors.timeout"):
            envs.step(np.zeros(1, int))


POLE = """
import os

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class Pole(CartPoleEnv):
    def __init__(self, trainer, **options):
        super().__init__(**options)
        self.is_worker = os.getpid() != trainer
        assert not self.is_worker or os.environ["JAX_PLATFORMS"] == "cpu"

    def step(self, action):
        if action == 0 and self.is_worker:
            raise SystemExit
        return super().step(action)


gymnasium.register("RegisteredPole-v0", Pole, max_episode_steps=500)
"""
"""A module that `--modules` names, whose environments end their process at the action 0."""


def test_processes_give_the_same_steps(tmp_path, monkeypatch, capfd):
    """They have the modules that were imported here, and use no accelerator."""
    (tmp_path / "registers_pole.py").write_text(POLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "_imported", {})
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")  # JAX has read it already
    plugins.import_plugins(["registers_pole:"])
    stream = stream_of("gymnasium:RegisteredPole-v0", 2, trainer=os.getpid())
    arrivals = []
    for processes in (False, True):
        with stream.open(3, processes=processes, timeout=60.0) as envs:
            arrivals.append([envs.reset()] + [envs.step(np.ones(2, int)) for _ in range(12)])
            if processes:
                with pytest.raises(ChildProcessError, match="RegisteredPole-v0: the process of .*"):
                    envs.step(np.array([0, 1]))
    for one, other in zip(*arrivals, strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, other)
    assert os.environ["JAX_PLATFORMS"] == "tpu"
    assert "SIGTERM" not in capfd.readouterr().err


@pytest.mark.parametrize("part_bytes", [1, 1 << 20])
def test_collected_episodes_are_whole(part_bytes, monkeypatch):
    monkeypatch.setattr(collecting, "PART_BYTES", part_bytes)
    monkeypatch.setattr(hosts.Counter, "made", 0)
    env = HostEnv("tests.hosts:counter", {"anonymous": True})
    seen = []
    sets = list(
        collecting.collect_rounds(
            env,
            None,
            Uniform(env.facts.action_space),
            6,
            jax.random.key(0),
            num_envs=2,
            progress=seen.append,
        )
    )
    assert len(sets) == (1 if part_bytes > 1 else 6)
    whole = concatenate(sets)
    # Each environment has episodes of 2, 3 and 4 actions; the second is truncated.
    assert sorted(zip(whole.length, whole.terminated, strict=True)) == [
        (2, True), (2, True), (3, False), (3, False), (4, True), (4, True),
    ]  # fmt: skip
    for e, length in enumerate(whole.length):
        counts = whole.observations[e, : length + 1, 3]
        np.testing.assert_array_equal(np.diff(counts), 1)
        np.testing.assert_array_equal(whole.rewards[e, :length], counts[1:])
    assert sum(len(one.length) for one in seen) == 6


def test_functions_collect(tmp_path):
    env = CollectionEnvConfig("tests.hosts:counter", {"anonymous": True}, num_envs=2)
    config = CollectionConfig(env, policy="tests.hosts:alternate", episodes=4)
    assert collect_dataset(config, tmp_path / "data").episodes == 4
    read = load(tmp_path / "data")
    for e, length in enumerate(read.length):
        counts = read.observations[e, :length, 3]
        np.testing.assert_array_equal(read.actions[e, :length], counts % 2)
    jitted = dataclasses.replace(config, env=CollectionEnvConfig("TMazePassive-v0"))
    with pytest.raises(ValueError, match="acts in NumPy, but TMazePassive-v0 is jitted"):
        collect_dataset(jitted, tmp_path / "other")
    wrong = dataclasses.replace(config, policy="tests.hosts:MAX_ROWS")
    with pytest.raises(ValueError, match="is no function of its module"):
        collect_dataset(wrong, tmp_path / "other")


def test_oracles_collect(tmp_path):
    env = CollectionEnvConfig("tests.hosts:Guided", {"anonymous": True}, num_envs=2)
    config = CollectionConfig(env, policy="oracle", episodes=4)
    assert collect_dataset(config, tmp_path / "data").episodes == 4
    read = load(tmp_path / "data")
    for e, length in enumerate(read.length):
        steps = read.observations[e, :length, 2]
        np.testing.assert_array_equal(read.actions[e, :length], steps % 2)

    def refused(match, **changes):
        with pytest.raises(ValueError, match=match):
            collect_dataset(dataclasses.replace(config, **changes), tmp_path / "other")

    refused(
        "oracle of tests.hosts:Guided: action is 7",
        env=dataclasses.replace(env, params={"told": 7}),
    )
    refused("counter has no oracle_action: use", env=CollectionEnvConfig("tests.hosts:counter"))
    refused("policy explorer is none of tests.hosts:Guided", policy="explorer")
    assert not (tmp_path / "other").exists()


TORQUES = spaces.Box(-2, 2, (1,), np.float32)
PARTS = spaces.Dict({"turn": spaces.Discrete(3, start=1), "speed": TORQUES})


@pytest.mark.parametrize(
    ("space", "given", "taken"),
    [
        (TORQUES, np.array([0.1]), np.array([0.1], np.float32)),
        (TORQUES, [1], np.ones(1, np.float32)),
        (TORQUES, np.array([2 + 1e-7]), np.full(1, 2, np.float32)),
        (spaces.Discrete(2), np.True_, np.int64(1)),
        (spaces.Discrete(2), np.int8(1), np.int64(1)),
        (spaces.MultiBinary(2), [True, False], np.array([1, 0], np.int8)),
        (
            PARTS,
            {"speed": [0.5], "turn": 3},
            {"turn": np.int64(3), "speed": np.full(1, 0.5, np.float32)},
        ),
        (TORQUES, [np.nan], r"action\[0\] is nan, not finite"),
        (TORQUES, [9.0], r"action\[0\] is 9\.0, outside Box.*: clip it"),
        (TORQUES, 0.1, r"action has shape \(\), but Box.* has \(1,\): return one action"),
        (TORQUES, None, r"action is object, but its space is Box.*: convert it to float32"),
        (spaces.Discrete(2), 1.0, "action is float64, but its space is .*: convert it to int64"),
        (spaces.Discrete(2), [1], r"action has shape \(1,\), but Discrete\(2\) has \(\)"),
        (spaces.Discrete(2), 7, r"action is 7, outside Discrete\(2\)"),
        (PARTS, {"speed": [0.5]}, r"action must have the entries \['speed', 'turn'\]"),
        (PARTS, {"speed": [0.5], "turn": 0}, r"action\['turn'\] is 0, outside Discrete"),
        (TORQUES, KeyError("x"), r"\(tests/hosts\.py, line \d+, in act\): KeyError: 'x'"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_functions_return_actions_of_the_space(space, given, taken):
    env = types.SimpleNamespace(facts=types.SimpleNamespace(action_space=space))
    player = FunctionPlayer(FunctionPolicy(hosts.as_given(given)), env, types.SimpleNamespace())
    arrival = Arrival(np.zeros((2, 3)), *[np.zeros(2)] * 5)
    if isinstance(taken, str):
        with pytest.raises(ValueError, match=f"^policy act .*{taken}"):
            player.step((), (), arrival, jax.random.key(0), 0)
        return
    _, step = player.step((), (), arrival, jax.random.key(0), 0)
    expected = jax.tree.map(lambda x: np.stack([x, x]), taken)
    jax.tree.map(np.testing.assert_array_equal, step.action, expected)
    assert jax.tree.map(lambda x: x.dtype, step.action) == jax.tree.map(lambda x: x.dtype, expected)


class FakePool:
    """Has the interface of envpool's environments: episodes of three steps in a box of rows."""

    observation_space = spaces.Box(0, 10, (2,), np.float32)
    action_space = spaces.Discrete(3)
    spec = types.SimpleNamespace(config=types.SimpleNamespace(max_episode_steps=3))

    def __init__(self, name, num_envs, seed, size=1):
        self._number, self._steps, self.closed = num_envs, np.zeros(num_envs, np.int32), False

    def reset(self):
        self._steps[:] = 0
        return self._observe(), {"env_id": np.arange(self._number)}

    def step(self, action):
        assert action.dtype == np.int32
        ended = self._steps == 3
        self._steps = np.where(ended, 0, self._steps + 1)
        last = self._steps == 3
        info = {"lives": self._steps * 2, "env_id": np.arange(self._number), "players": {}}
        no = np.zeros_like(last)
        return self._observe(), np.where(ended, 0, 1.0), no, last, info

    def close(self):
        self.closed = True

    def _observe(self):
        return np.stack([self._steps, np.arange(self._number)], 1).astype(np.float32)


@pytest.fixture
def envpool(monkeypatch):
    fake = types.ModuleType("envpool")
    vars(fake).update(list_all_envs=lambda: ["Fake-v1"], make_gymnasium=FakePool)
    monkeypatch.setitem(sys.modules, "envpool", fake)


def test_pools_have_the_same_time_steps(envpool):
    stream = stream_of("envpool:Fake-v1", 2)
    assert stream.env.facts[2:] == (("lives",), 3, False, False)
    with stream.open(0) as envs:
        arrivals = [envs.reset(), *(envs.step(np.zeros(2, int)) for _ in range(5))]
    first = [arrival.first[0] for arrival in arrivals]
    last = [arrival.last[1] for arrival in arrivals]
    returns = [arrival.episode.episode_return[1] for arrival in arrivals]
    assert first == [True, False, False, False, True, False]
    assert last == [False, False, False, True, False, False]
    assert returns == [0, 1, 2, 3, 0, 1]
    assert [arrival.discount[0] for arrival in arrivals] == [1] * 6
    assert [arrival.episode.info["lives"][0] for arrival in arrivals] == [0, 2, 4, 6, 0, 2]


def test_settings_that_do_not_fit_a_pool_are_named(envpool):
    with pytest.raises(ValueError, match="unknown environment of envpool 'Pong-v9'"):
        stream_of("envpool:Pong-v9")
    with pytest.raises(ValueError, match="env.params do not fit envpool:Fake-v1"):
        stream_of("envpool:Fake-v1", wind=3)
    with pytest.raises(ValueError, match="whose options are env.params"):
        HostStream((HostEnv("envpool:Fake-v1", wrappers={"stack": 4}),), 2)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ImportError, match="envpool:Pong-v5 requires envpool: pip install"):
        stream_of("envpool:Pong-v5")
