"""Environments of one's own whose parts do not fit together, or that are at fault in episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import environment, spaces

from gtrxl_jax import loading
from gtrxl_jax.acting.collecting import collect
from gtrxl_jax.acting.evaluation import make_evaluate, record_episode, summarize
from gtrxl_jax.acting.scripted import RandomPolicy
from gtrxl_jax.custom import CustomPartError, is_custom, wrap_errors
from gtrxl_jax.envs.check_env import require_consistent_env
from gtrxl_jax.envs.faults import NONE, UNFINISHED, FaultError, require_no_faults
from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.offline.config import preset
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs import loop
from gtrxl_jax.runs.directory import available_steps
from tests.jobs import changed, small_job


@struct.dataclass
class State(environment.EnvState):
    inner: dict


class Sound(environment.Environment):
    """An environment of which each variant breaks one thing."""

    @property
    def default_params(self):
        return environment.EnvParams()

    def reset_env(self, key, params):
        state = State(time=jnp.zeros((), jnp.int32), inner={"map": jnp.zeros((3, 2))})
        return self.first(), state

    def step_env(self, key, state, action, params):
        state = self.following(state)
        return self.later(), state, jnp.float32(0), jnp.bool_(False), {}

    def first(self):
        return {"eye": jnp.zeros(3), "ear": jnp.zeros((), jnp.int32)}

    def later(self):
        return self.first()

    def following(self, state):
        return state.replace(time=state.time + 1)

    def action_space(self, params=None):
        return spaces.Discrete(2)

    def observation_space(self, params=None):
        return spaces.Dict({"eye": spaces.Box(0.0, 1.0, (3,)), "ear": spaces.Discrete(4)})


def variant(**methods):
    return type("Broken", (Sound,), methods)()


ENVIRONMENTS = {
    "shape": (
        variant(later=lambda self: self.first() | {"eye": jnp.zeros(4)}),
        r"observation\['eye'\] is float32\[3\] after reset_env and float32\[4\] after step_env",
    ),
    "dtype": (
        variant(later=lambda self: self.first() | {"ear": jnp.zeros(())}),
        r"observation\['ear'\] is int32\[\] after reset_env and float32\[\] after step_env",
    ),
    "lost part": (
        variant(later=lambda self: {"eye": jnp.zeros(3)}),
        r"observation\['ear'\] is int32\[\] after reset_env and absent after step_env",
    ),
    "new part": (
        variant(later=lambda self: self.first() | {"nose": jnp.zeros(1)}),
        r"observation\['nose'\] is absent after reset_env and float32\[1\] after step_env",
    ),
    "state": (
        variant(following=lambda self, state: state.replace(inner={"map": jnp.zeros((3, 3))})),
        r"state.inner\['map'\] is float32\[3, 2\] after reset_env and float32\[3, 3\]",
    ),
    "dtype of state": (
        variant(following=lambda self, state: state.replace(time=state.time + 0.5)),
        r"state.time is int32\[\] after reset_env and float32\[\] after step_env",
    ),
    "space": (
        variant(first=lambda self: Sound.first(self) | {"eye": jnp.zeros(5)}),
        r"observation\['eye'\] is float32\[5\], but float32\[3\] in observation_space: declare",
    ),
    "part beside the space": (
        variant(first=lambda self: Sound.first(self) | {"nose": jnp.zeros(5)}),
        r"observation\['nose'\] is float32\[5\], but absent in observation_space: declare",
    ),
}


def test_sound_environment_is_consistent():
    stream = Stream(Sound(), environment.EnvParams(), 2)
    assert require_consistent_env(stream) is stream


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environments(name):
    env, message = ENVIRONMENTS[name]
    stream = Stream(env, env.default_params, 2)
    place = r"\(tests/bad_inputs/test_environments.py, line \d+\)"
    with pytest.raises(ValueError, match=f"^environment Broken {place}: {message}") as caught:
        require_consistent_env(stream)
    assert "\n" not in str(caught.value)


def outcome(reward=0.0, done=False, info=None):
    """Return a step with another reward, end or info."""

    def step_env(self, key, state, action, params):
        return self.later(), self.following(state), reward, done, info or {}

    return step_env


OUTCOMES = {
    "reward": (outcome(reward=jnp.zeros(1)), r"reward is float32\[1\]: return a scalar, for exam"),
    "done": (outcome(done=jnp.zeros((1,), bool)), r"done is bool\[1\]: return a scalar"),
    "success": (
        outcome(info={"success": jnp.zeros((2,), bool)}),
        r"info\['success'\] is bool\[2\]: return a scalar",
    ),
    "no reward": (outcome(reward=None), "reward is absent: return a scalar"),
    "no info": (outcome(info=[1]), "info is a list: return a dict"),
    "four values": (
        lambda self, key, state, action, params: (self.later(), state, 0.0, False),
        "step_env returns 4 values: return 5, observation, state, reward, done, info",
    ),
    "one value": (lambda self, *_: None, "step_env returns one value: return 5, observation"),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_outcomes_of_steps(name):
    step_env, message = OUTCOMES[name]
    env = variant(step_env=step_env)
    line = step_env.__code__.co_firstlineno
    place = rf"\(tests/bad_inputs/test_environments.py, line {line}\)"
    with pytest.raises(ValueError, match=f"^environment Broken {place}: {message}"):
        require_consistent_env(Stream(env, env.default_params, 2))


def condition(self, key, state, action, params):
    if action == state.time:
        return self.later(), state, 1.0, False, {}
    return self.later(), state, 0.0, False, {}


def helper(x):
    return np.sin(x)


def numpy_function(self, key, state, action, params):
    return self.later(), state, helper(state.inner["map"])[0, 0], False, {}


def python_number(self, key, state, action, params):
    return self.later(), state, float(state.time), False, {}


def table(self, key, state, action, params):
    return self.later(), state, [0.0, 1.0][action], False, {}


def mask(self, key, state, action, params):
    return self.later(), state, state.inner["map"][state.inner["map"] > 0].sum(), False, {}


def keep(self, key, state, action, params):
    self.kept = jnp.zeros(()) + action
    return self.later(), state, 0.0, False, {}


def attribute(self, key, state, action, params):
    return self.later(), state.replace(tme=1), 0.0, False, {}


def shapes(self, key, state, action, params):
    return self.later(), state, jnp.dot(jnp.zeros(3), jnp.zeros(4)), False, {}


def undefined(self, key, state, action, params):
    return environment.Environment.step_env(self, key, state, action, params)


CODE = {
    undefined: (1, "undefined", "NotImplementedError: in step_env of .*, line [0-9]+: define it$"),
    condition: (1, "condition", "a Python condition .*: use jnp.where or jax.lax.cond$"),
    numpy_function: (1, "helper", "a function of NumPy is applied .*: use jax.numpy's$"),
    python_number: (1, "python_number", "a Python number .*: use JAX's operations instead of int"),
    table: (1, "table", "a Python index .*: index a JAX array, as in"),
    mask: (1, "mask", "a shape depends on .*: use jnp.where instead of a mask"),
    attribute: (1, "attribute", "TypeError: .* unexpected keyword argument 'tme'"),
    shapes: (1, "shapes", "TypeError: .*the same shape, got"),
}


@pytest.mark.parametrize("method", CODE, ids=lambda method: method.__name__)
def test_errors_in_code_of_environments(method):
    """One line with the class, and the file and line of the code that raised."""
    offset, function, message = CODE[method]
    env = variant(step_env=method)
    line = globals()[function].__code__.co_firstlineno + offset
    place = rf"\(tests/bad_inputs/test_environments.py, line {line}, in {function}\)"
    with pytest.raises(CustomPartError, match=f"^environment Broken {place}: {message}") as caught:
        require_consistent_env(Stream(env, env.default_params, 2))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_errors_in_libraries_name_the_class():
    """gymnax's default `is_truncated` reads a field of the state."""
    env = variant(reset_env=lambda self, *_: (self.first(), {"no": jnp.zeros(())}))
    env = type("Timeless", (type(env),), {"following": lambda self, state: state})()
    with pytest.raises(
        CustomPartError, match=r"^environment Timeless \(.*\): AttributeError: .*time"
    ):
        require_consistent_env(Stream(env, env.default_params, 2))


class Unmade(Sound):
    def __init__(self):
        raise KeyError("map")


class Spaceless(Sound):
    def observation_space(self, params=None):
        return spaces.Box(0.0, 1.0, self.shape)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Unmade, r"^environment Unmade \(.*, in __init__\): KeyError: 'map'$"),
        (
            Spaceless,
            r"^environment Spaceless \(.*, in observation_space\): AttributeError: .*'shape'",
        ),
    ],
)
def test_errors_in_constructors_and_spaces(kind, message):
    with pytest.raises(CustomPartError, match=message):
        require_consistent_env(Stream(*make_env(f"{__name__}:{kind.__name__}"), 2))


def test_errors_of_the_packages_own_parts_are_left_as_they_are():
    with pytest.raises(KeyError), wrap_errors("environment", make_env("TMazePassive-v0")[0]):
        raise KeyError("x")
    assert not is_custom(make_env("CartPole-v1")[0])


LONG = {"max_steps_in_episode": 3, "length": 6}
"""An environment whose episodes are longer than its time limit."""
FAULTS = {
    "time limit": (LONG, "an episode has not ended after 3 actions, but its time limit is 3: set"),
    "observation": (
        {"bad_speed": 2},
        r"observation\['speed'\] is not finite at step 2 of the episode of environment \d+ of",
    ),
    "category": (
        {"bad_time": 2},
        r"observation\['time'\] is 9, outside its space, at step 2 of the episode of environment",
    ),
    "reward": ({"bad_reward": 1}, "reward is not finite at step 1 of the episode of environment"),
}
JOB = small_job("lstm", env__name="Faulty-v0", env__params={}, total_steps=112)


@pytest.mark.integration
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.slow
def test_faults_in_evaluations(name, tmp_path, monkeypatch):
    """At the end of training, which is saved and can be finished, and in `gtrxl evaluate`."""
    params, message = FAULTS[name]
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        # As if the faults began after training.
        patch.setattr(OnlineTrainer, "evaluate", evaluate_with(params))
        with pytest.raises(ValueError, match=f"^Faulty-v0: {message}"):
            loop.train(OnlineTrainer(JOB), folder=folder)
        assert available_steps(folder) == [112]
        with pytest.raises(ValueError, match=f"^Faulty-v0: {message}"):
            loading.evaluate(folder, 16)
    assert loop.train(OnlineTrainer(JOB), folder=folder).result.per_seed["length"] == [3]


def evaluate_with(params):
    original = OnlineTrainer.evaluate

    def evaluate(self, *arguments):
        return original(OnlineTrainer(changed(self.config, env__params=params)), *arguments)

    return evaluate


@pytest.mark.integration
@pytest.mark.slow  # those online are quick
def test_faults_in_offline_evaluations():
    stream = faulty({})
    acting = RandomPolicy(stream.action_space)
    data = collect(stream.env, stream.params, acting, 32, jax.random.key(0), num_envs=16)
    config = changed(
        preset("debug"),
        env__name="Faulty-v0",
        env__params=LONG,
        evaluation__lengths=(),
        model__name="bc-mlp",
        total_updates=10,
    )
    with pytest.raises(ValueError, match=FAULTS["time limit"][1]):
        loop.train(OfflineTrainer(config, data))


def faulty(params):
    return Stream(*make_env("Faulty-v0", **params), num_envs=8)


@pytest.mark.integration
@pytest.mark.parametrize(
    "play",
    [
        lambda acting, stream, key: record_episode(acting, stream, (), key),
        lambda acting, stream, key: collect(stream.env, stream.params, acting, 4, key),
        lambda acting, stream, key: require_no_faults(
            jax.device_get(summarize(make_evaluate(acting, stream, 4)((), key))), "Faulty"
        ),
    ],
    ids=["record", "collect", "evaluate"],
)
def test_episodes_longer_than_the_time_limit(play):
    stream = faulty(LONG)
    message = "^Faulty: an episode has not ended after 3 actions, but its time limit is 3: set"
    with pytest.raises(ValueError, match=message):
        play(RandomPolicy(stream.action_space), stream, jax.random.key(0))


def test_fault_names_its_task():
    ended = np.full(4, NONE)
    faults = {f"{UNFINISHED}/task_0": ended, f"{UNFINISHED}/task_1": np.full(4, 3)}
    with pytest.raises(FaultError, match="^Faulty/task_1: an episode has not ended after 3"):
        require_no_faults(faults, "Faulty")


@pytest.mark.integration
@pytest.mark.slow
def test_largest_time_limit():
    """It does not overflow, neither in evaluations nor where episodes are staggered."""
    config = changed(JOB, env__params={"max_steps_in_episode": 2**31 - 1})
    trainer = OnlineTrainer(config)
    params = jax.jit(trainer.init)(0).params
    scores = jax.jit(trainer.evaluate)(params, jax.random.key(0))
    assert scores["length"].tolist() == [3] * 16
    stream = faulty({"max_steps_in_episode": 2**31 - 1})
    state, _ = stream.reset(jax.random.key(0))
    assert stream.stagger(state, jax.random.key(1)).cut.min() > 100
