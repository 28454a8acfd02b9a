"""Environments with different spaces as tasks of one agent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.envs import MultiTaskStream, Stream, make_env, pad_spaces, time_limit
from gtrxl_jax.envs.extensions import require_renderer
from gtrxl_jax.ops.promotion import standard_dtype_promotion
from tests.online.test_legal_actions import Ferry

NAMES = ("TMazePassive-v0", "CartPole-v1", "RepeatPreviousEasy-v0")


def streams_of(*names, num_envs=3):
    return [Stream(*make_env(name), num_envs=num_envs) for name in names]


UNITED = pad_spaces(streams_of(*NAMES), NAMES)


def test_spaces_are_those_of_largest():
    stream = MultiTaskStream(UNITED)
    assert stream.observation_space.shape == (4,)
    assert stream.action_space.n == 4
    assert stream.tasks[0].reported_info == ()
    assert [time_limit(one.env, one.params) for one in UNITED[1:]] == [500, 51]


def test_entries_of_info_count_that_all_report():
    names = ("NumpadDiscrete-v0", "RockSample-5-5", "TwoColors-v0")
    numpad, rocks, colors = streams_of(*names)
    assert numpad.reported_info == ("sequences", "success")
    assert rocks.reported_info == ("discounted_return",)
    assert colors.reported_info == ("health", "right", "wrong")
    assert [one.reported_info for one in pad_spaces([numpad, rocks], names[:2])] == [(), ()]
    maze = streams_of("TMazePassive-v0")[0]
    tasks = pad_spaces([numpad, maze], ("NumpadDiscrete-v0", "TMazePassive-v0"))
    assert [one.reported_info for one in tasks] == [("success",), ("success",)]
    state, _ = MultiTaskStream(tasks).reset(jax.random.key(0))
    assert set(state.episode.scores) == {"return", "length", "success"}


def test_equal_streams_are_unchanged():
    streams = [*streams_of("TMazePassive-v0"), *streams_of("TMazePassive-v0")]
    assert all(a is b for a, b in zip(pad_spaces(streams, NAMES[:1] * 2), streams, strict=True))


@pytest.mark.parametrize("task", range(3))
def test_steps_are_those_of_environment(task):
    """With observations padded, and actions modulo their number."""
    own, united = streams_of(NAMES[task])[0], UNITED[task]
    choices = own.action_space.n
    (state, seen), (other, seen_united) = (
        jax.jit(s.reset)(jax.random.key(1)) for s in (own, united)
    )
    step, step_united = jax.jit(own.step), jax.jit(united.step)
    for number in range(9):
        expected = seen.observation
        if expected.ndim == 1:
            expected = jax.nn.one_hot(expected, 4)
        np.testing.assert_array_equal(seen_united.observation[:, : expected.shape[1]], expected)
        np.testing.assert_array_equal(seen_united.observation[:, expected.shape[1] :], 0)
        np.testing.assert_array_equal(seen_united.reward, seen.reward)
        np.testing.assert_array_equal(seen_united.last, seen.last)
        action = (jnp.arange(3) + number) % 4
        state, seen = step(state, action % choices)
        other, seen_united = step_united(other, action)


@pytest.mark.parametrize("task", range(3))
def test_observe_gives_observations_of_steps(task):
    env, params, key = UNITED[task].env, UNITED[task].params, jax.random.key(0)
    action = jnp.int32(3)
    with standard_dtype_promotion():  # one of them is gymnax's
        state = env.reset_env(key, params)[1]
        observation, state, *_ = env.step_env(key, state, action, params)
        np.testing.assert_array_equal(env.observe(key, state, action, params), observation)


def test_integers_are_scaled_or_one_hot():
    """As an encoder of the environment itself would."""
    names = ("CountRecallEasy-v0", "MemoryChain-v0")
    first, second = pad_spaces(streams_of(*names), names)
    assert first.observation_space.shape == second.observation_space.shape
    _, timestep = first.reset(jax.random.key(0))
    features = timestep.observation
    assert features.dtype == jnp.float32
    assert set(np.unique(features)) <= {0.0, 1.0}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("CartPole-v1", "MemoryMaze-9x9-v0"), "observations of CartPole-v1, .*of MemoryMaze-9x9"),
        (("TMazePassive-v0", "Pendulum-v1"), "actions of TMazePassive-v0, .*of Pendulum-v1"),
        (("TwoColors-v0", "MemoryMaze-9x9-v0"), "observations of TwoColors-v0, .* only vectors"),
    ],
)
def test_spaces_that_do_not_fit_raise(names, message):
    with pytest.raises(ValueError, match=message):
        pad_spaces(streams_of(*names), names)


def test_choice_is_legal_where_its_action_is():
    """In an environment without masks, all are."""
    own, other = Stream(Ferry(), Ferry().default_params, 3), streams_of("CountRecallEasy-v0")[0]
    masked, free = pad_spaces([own, other], ["Ferry-v0", "CountRecallEasy-v0"])
    number = masked.action_space.n
    assert number > 4
    state, timestep = masked.reset(jax.random.key(0))
    assert np.all(timestep.legal)
    _, timestep = masked.step(state, jnp.array([1, 5, 2]))
    gone = np.array([1, 1, 2])[:, None]
    np.testing.assert_array_equal(timestep.legal, np.arange(number)[None] % 4 != gone)
    _, timestep = free.reset(jax.random.key(0))
    np.testing.assert_array_equal(timestep.legal, np.ones((3, number), bool))
    plain = pad_spaces(streams_of(*NAMES), NAMES)[0]
    assert plain.reset(jax.random.key(0))[1].legal is None


def test_extensions_are_those_of_environment():
    env, stream = UNITED[0].env, streams_of(NAMES[0])[0]
    state, _ = stream.reset(jax.random.key(0))
    one = jax.tree.map(lambda x: x[0], state.env)
    assert env.oracle_action(one, stream.params) == stream.env.oracle_action(one, stream.params)
    assert not hasattr(UNITED[1].env, "oracle_action")
    assert env.cue_at_start


@pytest.mark.parametrize("task", range(len(NAMES)))
def test_picture_is_that_of_environment(task):
    own, united = streams_of(NAMES[task])[0], UNITED[task]
    state = jax.tree.map(lambda x: x[0], own.reset(jax.random.key(0))[0].env)
    expected = require_renderer(own.env).draw(state, own.params)
    np.testing.assert_array_equal(require_renderer(united.env).draw(state, own.params), expected)


def test_environment_without_picture_is_named():
    names = ("CartPole-v1", "MemoryChain-bsuite")
    with pytest.raises(ValueError, match="MemoryChain-bsuite cannot be drawn: give it a method"):
        require_renderer(pad_spaces(streams_of(*names), names)[1].env)
