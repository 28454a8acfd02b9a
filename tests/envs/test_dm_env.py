"""Tasks of dm_env, and the loading of Memory Maze's package, of which a stand-in is imported."""

import sys
import types

import numpy as np
import pytest
from dm_env import specs
from gymnasium.spaces import Discrete, Tuple

from gtrxl_jax.envs.host.dm_env import to_space
from gtrxl_jax.envs.host.simulators import make_host_env
from gtrxl_jax.envs.host.stream import HostEnv, HostStream

TASKS = '''
import dm_env
import numpy as np
from dm_env import specs

made = []


class Maze(dm_env.Environment):
    """Episodes of three steps, at the last of which the discount is that of the task."""

    def __init__(
        self, seed, image_only_obs, global_observables=False, discount=1.0, control_freq=4.0
    ):
        self.seed, self._is_image, self._discount = seed, image_only_obs, discount
        self.closed = False
        made.append(self)

    def observation_spec(self):
        image = specs.BoundedArray((8, 8, 3), np.uint8, 0, 255)
        return image if self._is_image else {"image": image, "agent_pos": specs.Array((2,), float)}

    def action_spec(self):
        return specs.DiscreteArray(6)

    def _observe(self):
        image = np.full((8, 8, 3), 50 * self._step, np.uint8)
        return image if self._is_image else {"image": image, "agent_pos": np.ones(2)}

    def reset(self):
        self._step = 0
        return dm_env.restart(self._observe())

    def step(self, action):
        self._step += 1
        kind = dm_env.StepType.LAST if self._step == 3 else dm_env.StepType.MID
        discount = self._discount if self._step == 3 else 1.0
        return dm_env.TimeStep(kind, float(action), discount, self._observe())

    def close(self):
        self.closed = True


memory_maze_9x9 = Maze
'''


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """The stand-in's module; its package fails to import, as the real one without gym."""
    folder = tmp_path / "memory_maze"
    folder.mkdir()
    (folder / "__init__.py").write_text("import gym_which_is_gone")
    (folder / "tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MUJOCO_GL", "egl")
    names = ("memory_maze", "memory_maze.tasks")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    make_host_env("memory-maze:9x9", {}, {})
    yield sys.modules["memory_maze.tasks"]
    for name in names:
        sys.modules.pop(name, None)


def test_episodes_of_a_task(tasks):
    stream = HostStream((HostEnv("memory-maze:9x9"),), 2)
    assert stream.env.facts[2:] == ((), 1000, True, False)
    assert stream.observation_space.shape == (8, 8, 3)
    assert stream.action_space.n == 6
    with stream.open(0) as envs:
        arrivals = [envs.reset(), *(envs.step(np.array([1, 5])) for _ in range(4))]
    assert [arrival.last[0] for arrival in arrivals] == [False, False, False, True, False]
    assert [arrival.first[0] for arrival in arrivals] == [True, False, False, False, True]
    assert [arrival.discount[1] for arrival in arrivals] == [1] * 5
    assert [arrival.reward[1] for arrival in arrivals] == [0, 5, 5, 5, 0]
    assert all(maze.closed for maze in tasks.made[1:])


def test_booleans_without_bounds_are_false_or_true():
    space = to_space(types.SimpleNamespace(shape=(2,), dtype=bool))
    assert space.contains(np.array([False, True]))


def test_a_discount_of_zero_terminates(tasks):
    env = make_host_env("memory-maze:9x9", {"discount": 0.0}, {})
    env.reset()
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (True, False)]


def test_a_seed_makes_the_task_anew(tasks):
    env = make_host_env("memory-maze:9x9", {}, {})
    env.reset(seed=7)
    env.reset()
    *_, before, after = tasks.made
    assert (before.seed, before.closed, after.seed, after.closed) == (None, True, 7, False)


def test_further_observations_are_asked_for(tasks):
    env = make_host_env("memory-maze:9x9", {"global_observables": True, "control_freq": 8.0}, {})
    observation, _ = env.reset()
    assert observation.keys() == env.observation_space.keys() == {"image", "agent_pos"}
    np.testing.assert_array_equal(env.render(), observation["image"])
    assert env.unwrapped.max_steps == 2000


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("memory-maze:10x10", {}, "unknown size of memory-maze '10x10'"),
        ("memory-maze:9x9", {"wind": 3}, "env.params do not fit memory-maze:9x9: .*wind"),
        ("memory-maze:9x9", {"seed": 3}, "env.params do not fit memory-maze:9x9: .*seed"),
    ],
)
def test_wrong_settings_are_named(tasks, name, params, message):
    with pytest.raises(ValueError, match=message):
        make_host_env(name, params, {})


def test_a_missing_package_or_renderer_is_named(tasks, tmp_path):
    for code, message in {
        "import dm_control_which_is_gone": "requires dm_control_which_is_gone: pip install",
        "None.glGetError": "cannot draw with MUJOCO_GL=egl: 'NoneType'.*: install EGL",
    }.items():
        sys.modules.pop("memory_maze.tasks", None)
        (tmp_path / "memory_maze" / "tasks.py").write_text(code + "\n" * len(message))
        with pytest.raises(ImportError, match=f"environment memory-maze:9x9 {message}"):
            make_host_env("memory-maze:9x9", {}, {})


def test_spaces_of_specs():
    space = to_space(
        {
            "counts": specs.Array((2,), np.int32),
            "angle": specs.BoundedArray((2,), np.float32, [-1, 0], 3),
            "hands": (specs.DiscreteArray(2), [specs.DiscreteArray(3)]),
        }
    )
    assert space["hands"] == Tuple([Discrete(2), Tuple([Discrete(3)])])
    with pytest.raises(ValueError, match="StringArray.*is of object, which no space has"):
        to_space({"task": specs.StringArray((), name="task")})
    assert space["counts"].low[0] == np.iinfo(np.int32).min
    np.testing.assert_array_equal(space["angle"].low, np.array([-1, 0], np.float32))
    np.testing.assert_array_equal(space["angle"].high, np.array([3, 3], np.float32))
