"""The error of a reconstruction, against a naive one in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces

from gtrxl_jax.ops.reconstruction import reconstruction_error
from gtrxl_jax.specs import action_spec, observation_spec
from gtrxl_jax.specs.observation import FLAG, QUANTITY


def naive(output, target, groups):
    """Return the error of one vector."""
    errors = []
    for f, group in enumerate(groups):
        if group == QUANTITY:
            errors.append((output[f] - target[f]) ** 2)
        elif group == FLAG:
            p = 1 / (1 + np.exp(-output[f]))
            errors.append(-np.log(p if target[f] else 1 - p))
    for group in set(groups[groups >= 0]):
        (members,) = np.nonzero(groups == group)
        p = np.exp(output[members]) / np.exp(output[members]).sum()
        errors.append(-np.log(p[target[members] == 1].item()))
    return np.mean(errors)


GROUPS = {
    "quantities": np.array([QUANTITY] * 3),
    "flags": np.array([FLAG] * 3),
    "choices": np.array([0, 0, 1, 1, 1, 2]),
    "all": np.array([QUANTITY, 0, 0, 0, QUANTITY, FLAG, 1, 1]),
    # Groups need not be in order.
    "apart": np.array([1, 0, 1, 0]),
}


@pytest.mark.parametrize("name", GROUPS)
def test_error_is_naive_one(name):
    groups, rng = GROUPS[name], np.random.default_rng(0)
    output = 3 * rng.normal(size=(2, 5, len(groups)))
    target = rng.normal(size=output.shape)
    target[..., groups == FLAG] = target[..., groups == FLAG] > 0
    for group in set(groups[groups >= 0]):
        (members,) = np.nonzero(groups == group)
        target[..., members] = np.eye(len(members))[rng.integers(len(members), size=(2, 5))]
    found = jax.jit(lambda a, b: reconstruction_error(a, b, groups))(
        jnp.asarray(output, jnp.float32), jnp.asarray(target, jnp.float32)
    )
    expected = [
        [naive(output[b, s], target[b, s], groups) for s in range(5)] for b in range(len(output))
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_targets_have_no_gradient_and_large_logits_are_finite():
    groups, target = GROUPS["all"], jnp.array([0.3, 1, 0, 0, 2, 1, 0, 1.0])
    output = jnp.array([0, 1e4, -1e4, 0, 0, -1e4, 1e4, 0.0])
    gradients = jax.grad(reconstruction_error, argnums=(0, 1))(output, target, groups)
    assert jnp.isfinite(gradients[0]).all()
    assert jnp.any(gradients[0] != 0)
    np.testing.assert_array_equal(gradients[1], 0)


@pytest.mark.parametrize(
    ("space", "groups"),
    [
        (spaces.Box(-1.0, 1.0, (2,)), [QUANTITY] * 2),
        (spaces.Box(0, 1, (2,), jnp.int32), [FLAG] * 2),
        (spaces.Discrete(3), [0, 0, 0]),
        (spaces.Box(0, 2, (2, 2), jnp.int32), [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3),
        (
            spaces.Box(np.array([0, 0, 0]), np.array([1, 99, 2]), (3,), jnp.int32),
            [0, 0, -1, 2, 2, 2],
        ),
    ],
)
def test_groups_are_of_features(space, groups):
    spec = observation_spec(space)
    np.testing.assert_array_equal(spec.feature_groups, groups)
    assert len(groups) == np.prod(spec.feature_shape)


def test_groups_of_hybrid_actions():
    parts = {"a": spaces.Box(-1.0, 1.0, (2,)), "b": spaces.Discrete(3), "c": spaces.Discrete(2)}
    spec = action_spec(spaces.Dict(parts))
    np.testing.assert_array_equal(spec.feature_groups, [QUANTITY] * 2 + [0] * 3 + [1] * 2)
