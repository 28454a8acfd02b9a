"""The whole agent: acting equals learning, episodes are isolated, vmap and sharding work."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from gymnax.environments import spaces
from jax.sharding import NamedSharding, PartitionSpec

from gtrxl_jax.nn.agent import make_agent
from gtrxl_jax.nn.normalizer import without_statistics
from gtrxl_jax.specs import action_spec
from gtrxl_jax.timestep import TimeStep, zero_timestep
from tests.comparison import assert_close
from tests.nn.cores import small_core
from tests.tiers import slow_except

OBSERVATIONS = spaces.Dict({"state": spaces.Box(-1.0, 1.0, (3,)), "room": spaces.Discrete(3)})
BOX = spaces.Box(-2.0, 2.0, (2,))
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "continuous": BOX,
    "hybrid": spaces.Dict({"continuous": BOX, "discrete": spaces.Discrete(2)}),
}
BATCH = 3
every_core = pytest.mark.parametrize("core", slow_except(["lstm", "gtrxl/gru"], ["gtrxl/gru"]))

pytestmark = pytest.mark.integration


def small_agent(core, actions="discrete", param_dtype=jnp.float64, dtype="float32", **settings):
    core = small_core(core, param_dtype=param_dtype, dtype=dtype, layers=1)
    settings = dict(encoder_width=32, head_width=32) | settings
    return make_agent(core, OBSERVATIONS, ACTIONS[actions], **settings)


def random_params(agent, actions="discrete"):
    """Return random parameters, so that every part affects the outputs."""
    timestep = zero_timestep(OBSERVATIONS, ACTIONS[actions], 1, 1)
    shapes = jax.eval_shape(agent.init, jax.random.key(0), agent.initial_memory(1), timestep)
    rng = np.random.default_rng(0)
    return {
        "params": jax.tree.map(
            lambda p: jnp.asarray(0.3 * rng.standard_normal(p.shape), p.dtype), shapes["params"]
        )
    }


def random_timesteps(actions="discrete", batch=BATCH, steps=12, seed=0):
    """Return time steps `[B, T]`, with rewards and actions also on first steps of episodes."""
    rng = np.random.default_rng(seed)
    lead = (batch, steps)
    spec = action_spec(ACTIONS[actions])
    continuous = jnp.asarray(rng.uniform(-2, 2, (*lead, spec.num_continuous)))
    choices = [rng.integers(0, size, lead) for size in spec.discrete or (1,)]
    discrete = jnp.asarray(np.stack(choices, axis=-1), jnp.int32)
    first = jnp.asarray(rng.random(lead) < 1 / 6)
    return TimeStep(
        observation={
            "state": jnp.asarray(rng.standard_normal((*lead, 3)), jnp.float32),
            "room": jnp.asarray(rng.integers(0, 3, lead), jnp.int32),
        },
        action={
            "discrete": discrete[..., 0],
            "continuous": continuous,
            "hybrid": {"continuous": continuous, "discrete": discrete},
        }[actions],
        reward=jnp.asarray(rng.uniform(1, 2, lead), jnp.float32),
        discount=jnp.ones(lead),
        first=first,
        last=jnp.roll(first, -1, axis=1),
    )


def at(tree, index):
    return jax.tree.map(lambda x: x[:, index], tree)


@functools.partial(jax.jit, static_argnums=(0, 4))
def act(agent, params, memory, timesteps, num_steps=None):
    """Return the memory and the outputs of stepping through a segment."""
    by_step = jax.tree.map(lambda x: x.swapaxes(0, 1), timesteps)
    cache, outputs = jax.lax.scan(
        lambda cache, now: agent.apply(params, cache, now, method="step"),
        agent.apply(params, memory, num_steps, method="start"),
        by_step,
    )
    memory = agent.apply(params, cache, method="finish")
    return memory, jax.tree.map(lambda x: x.swapaxes(0, 1), outputs)


@functools.partial(jax.jit, static_argnums=0)
def learn(agent, params, memory, timesteps):
    """Return the memory and the outputs of a segment run at once."""
    return agent.apply(params, memory, timesteps)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("core", "actions"),
    [
        ("lstm", "discrete"),
        pytest.param("gtrxl/gru", "continuous", marks=pytest.mark.slow),
        ("gtrxl/gru", "hybrid"),
    ],
)
def test_acting_equals_learning(core, actions):
    agent = small_agent(core, actions, num_tasks=2)
    params = random_params(agent, actions)
    timesteps = random_timesteps(actions)
    assert np.any(timesteps.first[:, 1:])
    _, whole = learn(agent, params, agent.initial_memory(BATCH), timesteps)
    assert whole.value.shape == (BATCH, 12, 2)
    assert np.all(np.std(whole.value, axis=1) > 1e-3)

    acting = learning = agent.initial_memory(BATCH)
    for begin in range(0, 12, 4):
        cut = slice(begin, begin + 4)
        acting, output = act(agent, params, acting, at(timesteps, cut), 4)
        assert_close(output, at(whole, cut))
        learning, output = learn(agent, params, learning, at(timesteps, cut))
        assert_close(output, at(whole, cut))


@pytest.mark.usefixtures("x64")
@every_core
def test_no_information_crosses_episode_boundary(core):
    """Not even through the previous action and reward stored in the first step."""
    start = 4
    agent = small_agent(core, "hybrid")
    params = random_params(agent, "hybrid")
    timesteps = random_timesteps("hybrid")
    timesteps = timesteps.replace(first=jnp.zeros((BATCH, 12), bool).at[:, start].set(True))
    other = random_timesteps("hybrid", seed=1)
    memory, _ = learn(agent, params, agent.initial_memory(BATCH), other)
    own = at(timesteps, slice(start, None))
    _, expected = learn(agent, params, agent.initial_memory(BATCH), own)

    def with_past(x, y, steps):
        return jax.tree.map(lambda a, b: jnp.concatenate([b[:, :steps], a[:, steps:]], 1), x, y)

    another_past = timesteps.replace(
        observation=with_past(timesteps.observation, other.observation, start),
        action=with_past(timesteps.action, other.action, start + 1),
        reward=with_past(timesteps.reward, other.reward, start + 1),
    )
    for history in (timesteps, another_past):
        _, output = learn(agent, params, memory, history)
        assert_close(at(output, slice(start, None)), expected)

    @jax.jit
    @jax.grad
    def later(inputs):
        history = timesteps.replace(
            observation=timesteps.observation | {"state": inputs["state"]},
            action=timesteps.action | {"continuous": inputs["action"]},
            reward=inputs["reward"],
        )
        _, output = agent.apply(params, memory, history)
        return sum(jnp.sum(leaf[:, start:] ** 2) for leaf in jax.tree.leaves(output))

    inputs = {
        "state": timesteps.observation["state"],
        "action": timesteps.action["continuous"],
        "reward": timesteps.reward,
    }
    influences = later(inputs)
    for name, begin in {"state": start, "action": start + 1, "reward": start + 1}.items():
        influence_BT = np.abs(influences[name]).reshape(BATCH, 12, -1).sum(axis=-1)
        np.testing.assert_array_equal(influence_BT != 0, [np.arange(12) >= begin] * BATCH)


@pytest.mark.usefixtures("x64")
@every_core
def test_previous_action_and_reward_are_inputs(core):
    agent = small_agent(core)
    params = random_params(agent)
    timesteps = random_timesteps(steps=6).replace(first=jnp.zeros((BATCH, 6), bool))
    memory = agent.initial_memory(BATCH)
    _, output = learn(agent, params, memory, timesteps)
    for other in (
        timesteps.replace(action=timesteps.action.at[:, 3].set((timesteps.action[:, 3] + 1) % 3)),
        timesteps.replace(reward=timesteps.reward.at[:, 3].add(1)),
    ):
        _, changed = learn(agent, params, memory, other)
        np.testing.assert_array_equal(changed.value[:, :3], output.value[:, :3])
        assert np.all(changed.value[:, 3:] != output.value[:, 3:])


@pytest.mark.usefixtures("x64")
@every_core
def test_memoryless_agent_sees_only_current_step(core):
    """The ablation of memory: the same parameters without carried state."""
    agent = small_agent(core, memoryless=True)
    params = random_params(agent)
    timesteps = random_timesteps(steps=6)
    _, output = learn(agent, params, agent.initial_memory(BATCH), timesteps)
    memory, acted = act(agent, params, agent.initial_memory(BATCH), timesteps)
    assert_close(acted, output)
    # A memory of another history changes nothing, and steps are independent.
    _, again = learn(agent, params, memory, timesteps)
    assert_close(again, output)
    for t in range(6):
        _, alone = learn(agent, params, agent.initial_memory(BATCH), at(timesteps, slice(t, t + 1)))
        assert_close(alone, at(output, slice(t, t + 1)))
    # With memory the same parameters return other values; both agents see the previous action.
    _, remembering = learn(agent.clone(memoryless=False), params, memory, timesteps)
    assert np.max(np.abs(remembering.value - output.value)) > 1e-3
    moved = timesteps.replace(
        first=jnp.zeros_like(timesteps.first), action=(timesteps.action + 1) % 3
    )
    _, changed = learn(agent, params, memory, moved)
    assert np.all(changed.value[~timesteps.first] != output.value[~timesteps.first])


@pytest.mark.slow  # tests/online/test_trainer.py has a quick one
def test_vmap_over_seeds():
    agent = small_agent("gtrxl/gru", param_dtype=jnp.float32)
    timesteps, memory = random_timesteps(steps=5), agent.initial_memory(BATCH)
    example = zero_timestep(OBSERVATIONS, ACTIONS["discrete"], BATCH, 1)

    @jax.jit
    @jax.vmap
    def values(key):
        params = {"params": agent.init(key, memory, example)["params"]}
        _, learned = learn(agent, params, memory, timesteps)
        _, acted = act(agent, params, memory, timesteps)
        return params, learned.value, acted.value

    params, learned, acted = values(jax.random.split(jax.random.key(0), 2))
    assert not np.allclose(learned[0], learned[1], atol=1e-2)
    assert_close(acted, learned, atol=1e-5)
    for seed in range(2):
        one = jax.tree.map(lambda p, i=seed: p[i], params)
        _, output = learn(agent, one, memory, timesteps)
        assert_close(output.value, learned[seed], atol=1e-5)


@pytest.mark.usefixtures("x64")
@every_core
def test_sharded_batch_equals_one_device(core):
    agent = small_agent(core)
    params = random_params(agent)
    timesteps, memory = random_timesteps(batch=8, steps=6), agent.initial_memory(8)
    _, expected = learn(agent, params, memory, timesteps)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    by_row = NamedSharding(mesh, PartitionSpec("data"))
    _, output = learn(agent, params, *jax.device_put((memory, timesteps), by_row))
    assert output.value.sharding.is_equivalent_to(by_row, 2)
    assert_close(output, expected)


@every_core
def test_bfloat16_agent_returns_float32(core):
    agent = small_agent(core, "hybrid", param_dtype=jnp.float32, dtype="bfloat16")
    params = random_params(agent, "hybrid")
    timesteps = random_timesteps("hybrid", steps=4)
    memory, learned = learn(agent, params, agent.initial_memory(BATCH), timesteps)
    assert any(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(memory))
    _, acted = act(agent, params, agent.initial_memory(BATCH), timesteps)
    exact_agent = small_agent(core, "hybrid", param_dtype=jnp.float32)
    _, exact = learn(exact_agent, params, exact_agent.initial_memory(BATCH), timesteps)
    for output in (learned, acted):
        assert {x.dtype for x in jax.tree.leaves((output, params))} == {jnp.dtype(jnp.float32)}
        assert_close(output, exact, atol=0.1)


def test_every_parameter_has_gradient():
    agent = small_agent("gtrxl/gru", param_dtype=jnp.float32)
    params = random_params(agent)
    timesteps = random_timesteps(batch=8)

    @jax.jit
    @jax.grad
    def gradient(params):
        _, output = agent.apply(params, agent.initial_memory(8), timesteps)
        return jnp.mean(output.policy.log_prob(timesteps.action)) + jnp.mean(output.value**2)

    gradients = gradient(params)["params"]
    for path, leaf in jax.tree.leaves_with_path(without_statistics(gradients)):
        assert np.any(leaf != 0), jax.tree_util.keystr(path)


class StateOnly(nn.Module):
    """A custom encoder: any module from observations to features."""

    def __call__(self, observation):
        return observation["state"]


def test_custom_encoder():
    core = small_core("lstm", param_dtype=jnp.float32)
    agent = make_agent(core, None, ACTIONS["discrete"], encoder=StateOnly())
    params = random_params(agent)
    _, output = learn(agent, params, agent.initial_memory(BATCH), random_timesteps(steps=2))
    assert output.value.shape == (BATCH, 2)
    # 3 for the state, 3 for the previous action, 1 for the reward.
    assert params["params"]["encoder"]["Dense_0"]["kernel"].shape == (7, core.width)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder": "transformer"}, "unknown encoder 'transformer'"),
        ({"encoder": "resnet"}, "fits no key"),
        ({"encoder_width": 0}, "encoder_width must be at least 1, got 0"),
        ({"num_tasks": 0}, "num_tasks must be at least 1, got 0"),
        ({"head_width": 8.5}, "head_width must be a whole number, got 8.5"),
        ({"max_scale": 0.0}, "max_scale must be above 0 and finite, not 0.0"),
        ({"rnd": -1}, "rnd must be at least 0 and finite, not -1.0"),
        ({"reconstruction": float("nan")}, "reconstruction must be at least 0 and finite, not nan"),
        ({"pixel_control": "1"}, "pixel_control must be a number, not '1'"),
        ({"encoder": StateOnly(), "encoders": {"room": "mlp"}}, "encoders .* have no effect"),
        ({"encoder": StateOnly(), "image_axes": "cwh"}, "unknown image_axes 'cwh'"),
    ],
)
def test_invalid_settings_are_rejected(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        small_agent("lstm", **settings)


def test_agents_with_equal_settings_are_equal():
    """So that a jitted function with the agent as a static argument is not compiled twice."""
    assert small_agent("gtrxl") == small_agent("gtrxl")
    assert hash(small_agent("gtrxl")) == hash(small_agent("gtrxl"))
    assert hash(small_agent("gtrxl")) != hash(small_agent("gtrxl", num_tasks=2))
