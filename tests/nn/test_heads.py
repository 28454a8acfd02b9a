"""Heads: their distributions, initialization and rescaling by PopArt."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.nn.heads import (
    DuelingHead,
    PolicyHead,
    ValueHead,
    rescale_value_gradient,
    rescale_value_head,
)
from gtrxl_jax.ops import popart
from gtrxl_jax.ops.distributions import Categorical, Gaussian, Hybrid
from gtrxl_jax.specs import ActionSpec

INF = float("inf")
BOUNDS = ((-1.0, 1.0), (0.0, 10.0), (-INF, INF))
SPECS = {
    "discrete": (ActionSpec(discrete=(3,)), Categorical),
    "continuous": (ActionSpec(BOUNDS), Gaussian),
    "multi-discrete": (ActionSpec(discrete=(2, 3)), Hybrid),
    "hybrid": (ActionSpec(BOUNDS, (2,)), Hybrid),
}


def features(*lead, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.standard_normal((*lead, 8)), dtype)


@pytest.mark.parametrize("lead", [(3,), (2, 3)])
@pytest.mark.parametrize(("spec", "kind"), SPECS.values(), ids=SPECS)
def test_policy_of_each_action_space(spec, kind, lead):
    head = PolicyHead(spec, hidden=16)
    policy, params = jax.jit(head.init_with_output)(jax.random.key(0), features(*lead))
    assert isinstance(policy, kind)
    action = policy.sample(jax.random.key(1))
    zeros = spec.zeros(*lead)
    chex.assert_trees_all_equal_shapes_and_dtypes(action, zeros)
    assert policy.log_prob(action).shape == lead
    outputs = params["params"]["output"]["kernel"].shape[1]
    assert outputs == 2 * spec.num_continuous + sum(spec.discrete)


def test_each_dimension_has_its_mask():
    """Where a dimension has no legal choice, its choices are equally likely."""
    head = PolicyHead(ActionSpec(BOUNDS, (2, 3)), hidden=4)
    legal = jnp.array([[0, 1, 0, 0, 0], [1, 1, 1, 0, 1]], bool)
    params = head.init(jax.random.key(0), features(2))
    policy, free = head.apply(params, features(2), legal), head.apply(params, features(2))
    np.testing.assert_array_equal(policy.gaussian.mean, free.gaussian.mean)
    first, second = (jnp.exp(jax.nn.log_softmax(part.logits)) for part in policy.categoricals)
    np.testing.assert_array_equal(first[0], [0, 1])
    np.testing.assert_allclose(second[0], 1 / 3, rtol=1e-6)
    np.testing.assert_array_equal(second[1] > 0, [True, False, True])


@pytest.mark.usefixtures("x64")
def test_policy_against_numpy():
    rng = np.random.default_rng(1)
    spec = ActionSpec(BOUNDS, (2, 3))
    scales = {"min_scale": 0.01, "initial_scale": 0.4, "max_scale": 2.0}
    head = PolicyHead(spec, hidden=5, **scales, param_dtype=jnp.float64)
    x = features(6, dtype=jnp.float64)
    params = jax.tree.map(
        lambda p: p + rng.standard_normal(p.shape), head.init(jax.random.key(0), x)
    )
    policy = head.apply(params, x)
    hidden, output = (
        jax.tree.map(np.asarray, params["params"][name]) for name in ("hidden", "output")
    )
    raw = np.maximum(np.asarray(x) @ hidden["kernel"] + hidden["bias"], 0) @ output["kernel"]
    mean, spread, first, second = np.split(raw + output["bias"], [3, 6, 8], axis=-1)
    center, half = np.array([0.0, 5.0, 0.0]), np.array([1.0, 5.0, 1.0])
    scale = 0.01 + 1.99 / (1 + np.exp(-spread) * (2.0 - 0.4) / (0.4 - 0.01))
    np.testing.assert_allclose(policy.gaussian.mean, center + half * mean, atol=1e-12)
    np.testing.assert_allclose(policy.gaussian.scale, half * scale, atol=1e-12)
    np.testing.assert_allclose(policy.categoricals[0].logits, first, atol=1e-12)
    np.testing.assert_allclose(policy.categoricals[1].logits, second, atol=1e-12)


def test_initial_policy_is_near_uniform_and_centered():
    x = features(100)
    head = PolicyHead(ActionSpec(BOUNDS, (4,)), initial_scale=0.3)
    policy = head.apply(head.init(jax.random.key(0), x), x)
    assert float(jnp.min(policy.categoricals[0].entropy())) > 0.999 * np.log(4)
    half = np.array([[1.0, 5.0, 1.0]])
    np.testing.assert_allclose(policy.gaussian.mean / half, [[0.0, 1.0, 0.0]] * 100, atol=0.05)
    np.testing.assert_allclose(policy.gaussian.scale / half, 0.3, atol=0.02)


def test_no_policy_is_wider_than_the_maximum():
    """Actions are clipped to their range, so that more entropy would be no more exploration."""
    head = PolicyHead(ActionSpec(BOUNDS))
    x = features(100)
    params = head.init(jax.random.key(0), x)
    params["params"]["output"]["bias"] = jnp.full(6, 1e3)
    half = np.array([[1.0, 5.0, 1.0]])
    np.testing.assert_allclose(head.apply(params, x).scale / half, 1.0, rtol=1e-6)


@pytest.mark.parametrize("scales", [(0.5, 0.5, 1.0), (0.2, 0.1, 1.0), (0.0, 0.5, 1.0), (0.1, 1, 1)])
def test_invalid_scales_are_rejected(scales):
    names = ("min_scale", "initial_scale", "max_scale")
    head = PolicyHead(ActionSpec(BOUNDS), **dict(zip(names, scales, strict=True)))
    message = "min_scale {}, initial_scale {} and max_scale {}".format(*scales)
    with pytest.raises(ValueError, match=message):
        head.init(jax.random.key(0), features(1))


def test_dueling_values_start_near_zero_and_differ():
    head = DuelingHead(4, hidden=64)
    x = features(100)
    q = head.apply(head.init(jax.random.key(0), x), x)
    assert q.shape == (100, 4)
    assert np.ptp(q, axis=-1).min() > 0
    assert np.abs(q).max() < 0.1


@pytest.mark.usefixtures("x64")
def test_dueling_values_have_the_advantages_mean_removed():
    head = DuelingHead(3, hidden=8, param_dtype=jnp.float64)
    x = features(5, dtype=jnp.float64)
    variables = head.init(jax.random.key(1), x)

    def mlp(p):
        hidden = np.maximum(np.asarray(x) @ p["hidden"]["kernel"] + p["hidden"]["bias"], 0)
        return hidden @ p["output"]["kernel"] + p["output"]["bias"]

    params = jax.tree.map(np.asarray, variables["params"])
    advantage, value = mlp(params["advantage"]), mlp(params["value"])
    expected = value + advantage - advantage.mean(-1, keepdims=True)
    np.testing.assert_allclose(head.apply(variables, x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("num_tasks", [None, 1, 3])
def test_value_shapes(num_tasks):
    head = ValueHead(num_tasks=num_tasks, hidden=16)
    params = head.init(jax.random.key(0), features(2, 3))
    values = head.apply(params, features(2, 3))
    assert values.shape == (2, 3) if num_tasks is None else (2, 3, num_tasks)
    # A head without a task axis equals a head with one task.
    if num_tasks == 1:
        alone = ValueHead(hidden=16).apply(params, features(2, 3))
        np.testing.assert_array_equal(alone, values[..., 0])


@pytest.mark.parametrize(("spec", "kind"), SPECS.values(), ids=SPECS)
def test_bfloat16_heads_return_float32(spec, kind):
    x = features(2, 3, dtype=jnp.bfloat16)
    for head in (PolicyHead(spec, dtype=jnp.bfloat16), ValueHead(dtype=jnp.bfloat16)):
        output, params = head.init_with_output(jax.random.key(0), x)
        for leaf in jax.tree.leaves((output, params)):
            assert leaf.dtype == jnp.float32
        exact = head.clone(dtype=None).apply(params, x.astype(jnp.float32))
        jax.tree.map(
            lambda low, high: np.testing.assert_allclose(low, high, rtol=0.02, atol=0.05),
            output,
            exact,
        )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("num_tasks", [None, 3])
def test_rescaled_value_head_keeps_unnormalized_values(num_tasks):
    tasks = num_tasks or 1
    rng = np.random.default_rng(2)
    head = ValueHead(num_tasks=num_tasks, hidden=16, param_dtype=jnp.float64)
    x = features(5, dtype=jnp.float64)
    head_params = jax.tree.map(
        lambda p: p + rng.standard_normal(p.shape), head.init(jax.random.key(0), x)["params"]
    )
    other = {"kernel": jnp.ones((2, 2))}
    params = {"value_head": head_params, "core": other}
    old, new = (
        popart.PopArtStatistics(
            mean_N=jnp.asarray(rng.normal(0, 5, tasks)),
            variance_N=jnp.asarray(rng.uniform(0.1, 9, tasks)),
            weight_N=jnp.ones(tasks),
            range_N2=jnp.zeros((tasks, 2)),
        )
        for _ in range(2)
    )
    rescaled = jax.jit(rescale_value_head)(params, old, new)

    def unnormalized(params, statistics):
        values = head.apply({"params": params["value_head"]}, x).reshape(5, tasks)
        return np.asarray(values) * np.asarray(statistics.scale_N) + np.asarray(statistics.mean_N)

    np.testing.assert_allclose(unnormalized(rescaled, new), unnormalized(params, old), atol=1e-9)
    assert np.max(np.abs(unnormalized(params, new) - unnormalized(params, old))) > 0.1
    np.testing.assert_array_equal(rescaled["core"]["kernel"], other["kernel"])
    assert jax.tree.structure(rescaled) == jax.tree.structure(params)


def test_rescaled_gradient_equals_rescaled_heads_gradient(x64):
    """Compare a loss in new units of the head made for old units and of the rescaled head."""
    rng = np.random.default_rng(4)
    head = ValueHead(num_tasks=3, hidden=4, param_dtype=jnp.float64)
    x = jnp.asarray(rng.standard_normal((5, 3)))
    params = {"value_head": head.init(jax.random.key(0), x)["params"]}
    old, new = (
        popart.PopArtStatistics(
            mean_N=jnp.asarray(rng.normal(size=3)),
            variance_N=jnp.asarray(rng.uniform(0.1, 9, 3)),
            weight_N=jnp.ones(3),
            range_N2=jnp.zeros((3, 2)),
        )
        for _ in range(2)
    )

    def loss(params, made_for):
        output = head.apply({"params": params["value_head"]}, x)
        value = made_for.scale_N[None] * output + made_for.mean_N[None]
        return jnp.sum(jnp.square((value - new.mean_N[None]) / new.scale_N[None] - 1))

    gradient = rescale_value_gradient(jax.grad(loss)(params, old), old, new)
    expected = jax.grad(loss)(rescale_value_head(params, old, new), new)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), gradient, expected)
