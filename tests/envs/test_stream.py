"""The stream's episode boundaries, keys, statistics and transformations."""

import dataclasses
from collections import OrderedDict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import environment, spaces
from jax.sharding import NamedSharding, PartitionSpec

from gtrxl_jax.envs import Stream, make_env
from gtrxl_jax.parallel.hlo import collectives
from gtrxl_jax.parallel.placement import AXES, make_mesh
from gtrxl_jax.specs import action_spec, observation_spec


@struct.dataclass
class CounterParams(environment.EnvParams):
    max_steps_in_episode: int = 4
    terminal_total: int = 6


@struct.dataclass
class CounterState(environment.EnvState):
    total: Any


class Counter(environment.Environment):
    """Adds up and rewards the choice, and ends at a total. Has nested spaces and weak types."""

    @property
    def default_params(self):
        return CounterParams()

    def reset_env(self, key, params):
        return {"total": jnp.zeros(1)}, CounterState(time=0, total=0)

    def step_env(self, key, state, action, params):
        state = CounterState(time=state.time + 1, total=state.total + action["discrete"])
        done = state.total >= params.terminal_total
        return {"total": state.total[None] * 1.0}, state, action["discrete"], done, {}

    def action_space(self, params=None):
        return spaces.Dict(
            {"continuous": spaces.Box(-1.0, 1.0, (2,)), "discrete": spaces.Discrete(4)}
        )

    def observation_space(self, params=None):
        return spaces.Dict({"total": spaces.Box(0.0, 10.0, (1,))})


class HalfCounter(Counter):
    """Reports the share of the total that is reached, scalars of each kind, and other entries."""

    def step_env(self, key, state, action, params):
        *results, _ = super().step_env(key, state, action, params)
        total = results[1].total
        scalars = {"total": total, "is_odd": total % 2 == 1, "square": total**2 * 1.0, "three": 3}
        others = {"vector": jnp.ones(2), "key": key, "nested": {"total": total}}
        others |= {"discount": 0.5, "return": 7, "length": 7, "ended": 7}
        return *results, {"success": total / params.terminal_total, **scalars, **others}


class Ordered(Counter):
    """Has observations in an order of its own."""

    def reset_env(self, key, params):
        _, state = super().reset_env(key, params)
        return self.observe(state), state

    def step_env(self, key, state, action, params):
        _, state, *rest = super().step_env(key, state, action, params)
        return self.observe(state), state, *rest

    def observe(self, state):
        total = jnp.float32(state.total)
        return OrderedDict([("total", total[None]), ("half", jnp.stack([total, total]) / 2)])

    def observation_space(self, params=None):
        half, total = (spaces.Box(0.0, 10.0, (size,)) for size in (2, 1))
        return spaces.Dict(OrderedDict([("total", total), ("half", half)]))


def buttons(*pressed):
    """Return actions for as many counters as there are buttons, in the policy's layout."""
    size = len(pressed)
    return {"continuous": jnp.full((size, 2), 3.0), "discrete": jnp.array(pressed)[:, None]}


def rollout(stream, key, steps=40):
    """Take random steps: return time steps and statistics `[T, B]`, starting with the reset's."""
    spec = action_spec(stream.action_space)
    keys_B = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(stream.num_envs))

    def step(carry, t):
        state, timestep = carry
        action = jax.vmap(lambda k: spec.sample(jax.random.fold_in(k, t)))(keys_B)
        return stream.step(state, action), (timestep, state.episode)

    return jax.lax.scan(step, stream.reset(key), jnp.arange(steps))[1]


def run(stream, key, steps=40):
    return jax.device_get(jax.jit(lambda key: rollout(stream, key, steps))(key))


def test_success_may_be_a_fraction():
    stream = Stream(HalfCounter(), CounterParams(), num_envs=2)
    state, _ = stream.reset(jax.random.key(0))
    step = jax.jit(stream.step)
    reached = []
    for press in [(3, 0), (3, 1), (1, 1), (1, 1)]:
        state, _ = step(state, buttons(*press))
        reached.append(state.episode.success)
    assert reached[0].dtype == jnp.float32
    expected = [[3 / 6, 0], [1, 1 / 6], [0, 2 / 6], [1 / 6, 3 / 6]]
    np.testing.assert_allclose(reached, expected, rtol=1e-6)


def test_scalars_of_info_are_statistics():
    stream = Stream(HalfCounter(), CounterParams(), num_envs=3)
    assert stream.reported_info == ("is_odd", "square", "success", "three", "total")
    timestep, episode = run(stream, jax.random.key(0))
    assert {x.dtype for x in episode.info.values()} == {np.dtype(np.float32)}
    assert timestep.last.any()
    total_TB = np.zeros_like(timestep.reward)
    for t in range(1, len(total_TB)):
        total_TB[t] = np.where(timestep.first[t], 0, total_TB[t - 1] + timestep.reward[t])
    expected = {
        "return": total_TB,
        "length": episode.length,
        "success": total_TB / 6,
        "total": total_TB,
        "is_odd": total_TB % 2,
        "square": total_TB**2,
        "three": np.where(timestep.first, 0, 3),
    }
    scores = jax.tree.map(jnp.asarray, episode).scores
    assert set(scores) == set(expected)
    for name, value_TB in scores.items():
        np.testing.assert_allclose(value_TB, expected[name], rtol=1e-6)


def test_hand_computed_episodes():
    stream = Stream(Counter(), CounterParams(), num_envs=3)
    assert stream.reported_info == ()
    state, timestep = jax.jit(stream.reset)(jax.random.key(0))
    step = jax.jit(stream.step)
    assert timestep.first.all()
    assert not timestep.last.any()
    np.testing.assert_array_equal(timestep.action["discrete"], 0)
    assert (state.episode.success, state.episode.info) == (None, {})
    # The first terminates after two steps; the second reaches the time limit; the third does both.
    presses = [(3, 0, 1), (3, 1, 1), (2, 0, 1), (2, 0, 3), (1, 2, 2)]
    steps = []
    for press in presses:
        state, timestep = step(state, buttons(*press))
        steps.append((timestep, state.episode))
    timestep, episode = jax.tree.map(lambda *x: np.stack(x, axis=1), *steps)
    expect = np.testing.assert_array_equal
    expect(timestep.last, [[0, 1, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 0]])
    expect(timestep.first, [[0, 0, 1, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 1]])
    expect(timestep.discount, [[1, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 0, 1]])
    expect(timestep.reward, [[3, 3, 0, 2, 1], [0, 1, 0, 0, 0], [1, 1, 1, 3, 0]])
    expect(timestep.action["discrete"][..., 0], [[3, 3, 0, 2, 1], [0, 1, 0, 0, 0], [1, 1, 1, 3, 0]])
    expect(timestep.action["continuous"][0, :, 0], [1, 1, 0, 1, 1])  # clipped
    expect(
        timestep.observation["total"][..., 0], [[3, 6, 0, 2, 3], [0, 1, 1, 1, 0], [1, 2, 3, 6, 0]]
    )
    expect(episode.done, timestep.last)
    expect(episode.episode_return, [[3, 6, 0, 2, 3], [0, 1, 1, 1, 0], [1, 2, 3, 6, 0]])
    expect(episode.length, [[1, 2, 0, 1, 2], [1, 2, 3, 4, 0], [1, 2, 3, 4, 0]])


def test_steps_keep_types_and_compile_once():
    stream = Stream(Counter(), CounterParams(), num_envs=2)
    step = jax.jit(stream.step)
    state, timestep = jax.jit(stream.reset)(jax.random.key(0))
    for _ in range(6):
        before = jax.tree.map(jax.typeof, (state, timestep))
        state, timestep = step(state, buttons(1, 3))
        assert jax.tree.map(jax.typeof, (state, timestep)) == before
    assert step._cache_size() == 1
    assert timestep.reward.dtype == timestep.discount.dtype == jnp.float32


@pytest.mark.parametrize(
    "name",
    [
        "TMazePassive-v0",
        "AssociativeRetrieval-v0",
        "MemoryChain-v0",
        "CartPole-v1",
        "Pendulum-v1",
        "Breakout-MinAtar",
    ],
)
def test_first_follows_last_and_statistics_accumulate(name):
    env, params = make_env(name)
    if name == "Pendulum-v1":
        params = params.replace(max_steps_in_episode=15)
    timestep, episode = run(Stream(env, params, 6), jax.random.key(3), 60)
    first_TB, last_TB = timestep.first, timestep.last
    assert first_TB[0].all()
    np.testing.assert_array_equal(first_TB[1:], last_TB[:-1])
    assert last_TB.any()
    np.testing.assert_array_equal(timestep.reward[first_TB], 0)
    np.testing.assert_array_equal(timestep.action[first_TB], 0)
    np.testing.assert_array_equal(timestep.discount[~last_TB], 1)
    np.testing.assert_array_equal(episode.done, last_TB)
    total, length = np.zeros(6), np.zeros(6)
    for t in range(60):
        total = np.where(first_TB[t], 0, total + timestep.reward[t])
        length = np.where(first_TB[t], 0, length + 1)
        np.testing.assert_allclose(episode.episode_return[t], total, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(episode.length[t], length)


def test_observations_are_plain_dicts():
    """So that their arrays are in the order of their description, that of the sorted keys."""
    stream = Stream(Ordered(), CounterParams(), 1)
    state, timestep = stream.reset(jax.random.key(0))
    _, following = stream.step(state, buttons(2))
    for step in (timestep, following):
        assert [x.shape for x in jax.tree.leaves(step.observation)] == [(1, 2), (1, 1)]
    assert following.observation["total"] == 2
    described = jax.tree.leaves(observation_spec(stream.observation_space))
    assert [spec.shape for spec in described] == [(2,), (1,)]


def test_staggered_environments_end_at_different_steps():
    """The first episodes are cut at random steps; all others have the whole length, here 5."""
    stream = Stream(*make_env("MemoryChain-v0", memory_length=4), 64)

    def play(key):
        first, timestep = stream.reset(key)
        spread = stream.stagger(first, jax.random.fold_in(key, 1))

        def step(carry, _):
            state, timestep = stream.step(carry, jnp.zeros(64, jnp.int32))
            return state, (timestep, state.episode)

        return spread.cut, [jax.lax.scan(step, state, length=20)[1] for state in (first, spread)]

    cut_B, (together, staggered) = jax.device_get(jax.jit(play)(jax.random.key(0)))
    assert set(cut_B) == {1, 2, 3, 4, 5}
    np.testing.assert_array_equal(together[0].last.any(axis=1), together[0].last.all(axis=1))
    timestep, episode = staggered
    for b, cut in enumerate(cut_B):
        (ends,) = np.nonzero(timestep.last[:, b])
        assert list(episode.length[ends, b]) == [cut, *[5] * (len(ends) - 1)]
        # Truncated, so that the value of the step is bootstrapped, unless it ends by itself.
        assert timestep.discount[ends[0], b] == (cut < 5)
        assert not timestep.discount[ends[1:], b].any()


def test_environment_is_independent_of_batch_size():
    env, params = make_env("TMazePassive-v0", corridor_length=3)
    few = run(Stream(env, params, 3), jax.random.key(7))
    many = run(Stream(env, params, 17), jax.random.key(7))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[:, :3]), few, many)
    hints = many[0].observation[0, :, 1]
    assert 0 < (hints > 0).sum() < 17


def test_episodes_and_environments_differ():
    timestep, _ = run(Stream(*make_env("TMazePassive-v0", corridor_length=1), 8), jax.random.key(0))
    hint_TB, noise_TB = timestep.observation[..., 1], timestep.observation[..., 3]
    for b in range(8):
        assert set(np.unique(hint_TB[timestep.first[:, b], b])) == {-1, 1}
        assert set(np.unique(noise_TB[:, b])) == {-1, 0, 1}
        assert all((noise_TB[:, b] != noise_TB[:, other]).any() for other in range(b))


@pytest.mark.parametrize("devices", [1, 4])
def test_vmap_over_seeds_matches_single_runs(devices):
    stream = Stream(*make_env("AssociativeRetrieval-v0", wait_steps=1), num_envs=4)
    keys = jax.random.split(jax.random.key(0), 3)
    with jax.set_mesh(make_mesh(devices, 4)):
        mapped = jax.device_get(jax.jit(jax.vmap(lambda key: rollout(stream, key)))(keys))
    single_run = jax.jit(lambda key: rollout(stream, key))
    for i, key in enumerate(keys):
        single = single_run(key)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a[i], b), mapped, single)


def test_legacy_keys_match_typed_keys():
    stream = Stream(*make_env("TMazeActive-v0"), num_envs=2)
    reset, step = jax.jit(stream.reset), jax.jit(stream.step)
    new, old = reset(jax.random.key(5)), reset(jax.random.PRNGKey(5))
    for _ in range(3):
        action = jnp.array([2, 0])
        new, old = step(new[0], action), step(old[0], action)
        jax.tree.map(np.testing.assert_array_equal, new[1], old[1])


def test_spaces_that_are_computed_from_parameters_fit_several_devices():
    """CartPole's are JAX arrays, which cannot be made within the program of each device."""
    stream = Stream(*make_env("CartPole-v1"), num_envs=8)
    with jax.set_mesh(make_mesh(8, 8)):
        state, _ = jax.jit(stream.reset)(jax.random.key(0))
        fresh = dataclasses.replace(stream)
        _, timestep = jax.eval_shape(fresh.step, state, jnp.zeros(8, jnp.int32))
    assert timestep.observation.shape == (8, 4)


def test_sharding_changes_no_result():
    stream = Stream(*make_env("TMazePassive-v0", corridor_length=2), num_envs=16)
    mesh = make_mesh(8, 16)
    sharding = NamedSharding(mesh, PartitionSpec(AXES))
    state, _ = jax.jit(stream.reset)(jax.random.key(0))
    placed = jax.device_put(state, sharding)
    action_TB = jax.random.randint(jax.random.key(1), (12, 16), 0, 4)
    step = jax.jit(stream.step)
    with jax.set_mesh(mesh):
        program = jax.jit(stream.step).lower(placed, jax.device_put(action_TB[0], sharding))
        split_step = program.compile()
    assert collectives(split_step.as_text()) == []
    for action in action_TB:
        state, timestep = step(state, action)
        placed, placed_timestep = split_step(placed, jax.device_put(action, sharding))
        jax.tree.map(np.testing.assert_array_equal, timestep, placed_timestep)
    assert all(
        leaf.sharding.is_equivalent_to(sharding, leaf.ndim) for leaf in jax.tree.leaves(placed)
    )


def test_resets_are_computed_only_after_ends():
    resets = []

    class Counted(Counter):
        def reset_env(self, key, params):
            jax.debug.callback(lambda: resets.append(1))
            return super().reset_env(key, params)

    stream = Stream(Counted(), CounterParams(max_steps_in_episode=9), num_envs=8)
    state, _ = jax.jit(stream.reset)(jax.random.key(0))
    step, counts = jax.jit(stream.step), []
    # The callback has no batch axis, so it counts groups of two environments.
    for press in ([0] * 8, [3] + [0] * 7, [3] + [0] * 7, [3] * 8, [0, 0, 0] + [3] * 5, [0] * 8):
        jax.effects_barrier()
        resets.clear()
        state, timestep = step(state, buttons(*press))
        jax.block_until_ready(timestep)
        jax.effects_barrier()
        counts.append((int(timestep.first.sum()), len(resets)))
    assert counts == [(0, 0), (0, 0), (0, 0), (1, 1), (0, 0), (5, 3)]


def test_x64_mode_keeps_types(x64):
    timestep, episode = run(Stream(*make_env("TMazePassive-v0"), 2), jax.random.key(0), 20)
    assert timestep.observation.dtype == timestep.reward.dtype == jnp.float32
    assert timestep.action.dtype == episode.length.dtype == jnp.int32


def test_invalid_arguments_raise():
    env, params = make_env("TMazePassive-v0")
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        Stream(env, params, 0)
    with pytest.raises(TypeError, match=r"num_envs must be a whole number, got 2\.5"):
        Stream(env, params, 2.5)
    with pytest.raises(TypeError, match="env must be a gymnax Environment, not str"):
        Stream("TMazePassive-v0", params, 2)


@pytest.mark.parametrize(
    ("action", "shapes"),
    [
        (1, r"\(\)"),
        ([0, 0, 0], r"\[\(\), \(\), \(\)\]"),
        (np.zeros(2), r"\(2,\)"),
        (np.zeros((3, 1)), r"\(3, 1\)"),
        ({"discrete": np.zeros((3, 1))}, r"\{'discrete': \(3, 1\)\}"),
        (None, "None"),
    ],
)
def test_actions_of_other_shapes_raise(action, shapes):
    stream = Stream(*make_env("TMazePassive-v0"), num_envs=3)
    state, _ = jax.eval_shape(stream.reset, jax.random.key(0))
    message = rf"action has the shapes {shapes}, but must have \(3,\): pass arrays"
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda state: stream.step(state, action), state)


@pytest.mark.parametrize("name", ["Pendulum-v1", "CartPole-v1"])
def test_spaces_can_be_read_while_tracing(name):
    """Even if the environment computes their bounds."""
    stream = Stream(*make_env(name), num_envs=2)

    @jax.jit
    def read():
        specs.append((observation_spec(stream.observation_space), action_spec(stream.action_space)))

    specs = [(observation_spec(stream.observation_space), action_spec(stream.action_space))]
    read()
    assert specs[0] == specs[1]


def test_stream_is_immutable():
    stream = Stream(*make_env("TMazePassive-v0"), num_envs=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        stream.num_envs = 2
