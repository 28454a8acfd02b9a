"""Returns against an explicit forward sum, and the handling of time limits."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.ops.returns import lambda_returns, transition_mask

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from a dependency of rlax
    import rlax


def random_unroll(seed, batch=6, steps=13, fractional=False):
    """Make steps with random episode ends, about half of them terminations."""
    rng = np.random.default_rng(seed)
    last = rng.random((batch, steps)) < 0.3
    discount = np.where(last & (rng.random((batch, steps)) < 0.5), 0.0, 1.0)
    if fractional:
        discount *= rng.random((batch, steps))
    reward = rng.normal(size=(batch, steps))
    reward[:, 1:][last[:, :-1]] = 0  # a reset brings no reward
    value = rng.normal(size=(batch, steps))
    return {"reward_BS": reward, "discount_BS": discount, "last_BS": last, "value_BS": value}


def forward_sum(reward_BS, discount_BS, last_BS, value_BS, gamma, b, t):
    total, weight = 0.0, 1.0
    for k in range(t + 1, reward_BS.shape[1]):
        total += weight * reward_BS[b, k]
        weight *= gamma * discount_BS[b, k]
        if last_BS[b, k]:
            break
    return total + weight * value_BS[b, k]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fractional", [False, True])
def test_equals_forward_sum(x64, seed, fractional):
    unroll = random_unroll(seed, fractional=fractional)
    arrays = {name: jnp.asarray(x) for name, x in unroll.items()}
    returns = jax.jit(lambda_returns)(**arrays, gamma=0.9)
    mask = transition_mask(arrays["last_BS"])
    assert returns.shape == mask.shape == (6, 12)
    for b, t in np.ndindex(6, 12):
        if unroll["last_BS"][b, t]:
            assert not mask[b, t]
            assert returns[b, t] == unroll["value_BS"][b, t]
        else:
            assert mask[b, t]
            expected = forward_sum(**unroll, gamma=0.9, b=b, t=t)
            np.testing.assert_allclose(returns[b, t], expected, rtol=1e-12)


def test_worked_example():
    # Step:           0     1     2     3     4     5
    # Row 0 ends truncated at 2, row 1 terminated at 2; step 3 is the first of the next episode.
    reward = jnp.array([[9.0, 1.0, 2.0, 0.0, 4.0, 8.0]] * 2)
    last = jnp.array([[False, False, True, False, False, False]] * 2)
    discount = jnp.ones((2, 6)).at[1, 2].set(0)
    value = jnp.array([[0.0, 0.0, 16.0, 100.0, 100.0, 32.0]] * 2)
    returns = lambda_returns(
        reward_BS=reward, discount_BS=discount, last_BS=last, value_BS=value, gamma=0.5
    )
    # Truncated: 2 + 16 / 2 = 10, 1 + 10 / 2 = 6. Terminated: 2, 1 + 2 / 2 = 2.
    # Afterwards: 8 + 32 / 2 = 24, 4 + 24 / 2 = 16; the reset itself is masked.
    expected = [[6, 10, 16, 16, 24], [2, 2, 16, 16, 24]]
    np.testing.assert_array_equal(returns, expected)


def test_no_return_crosses_reset():
    last = jnp.zeros((6, 13), bool).at[:, 5].set(True)
    arrays = {
        "reward_BS": jnp.ones((6, 13)),
        "discount_BS": jnp.ones((6, 13)),
        "value_BS": jnp.asarray(random_unroll(0)["value_BS"], jnp.float32),
    }

    def before(arrays):
        return jnp.sum(lambda_returns(**arrays, last_BS=last, gamma=0.9)[:, :5])

    for name, gradient in jax.grad(before)(arrays).items():
        if name != "value_BS":
            assert np.all(gradient[:, 1:6] != 0), name
        assert np.all(gradient[:, 6:] == 0), name
    # The truncated episode bootstraps from its own final observation only.
    in_value = jax.grad(before)(arrays)["value_BS"]
    np.testing.assert_allclose(in_value[:, 5], sum(0.9**k for k in range(1, 6)), rtol=1e-6)
    assert np.all(in_value[:, :5] == 0)


def mixed_returns(reward_BS, discount_BS, last_BS, value_BS, gamma, lambda_, b, t):
    """Compute the mean of the n-step returns, weighted by (1 - lambda) lambda^(n - 1)."""
    ends = np.flatnonzero(last_BS[b, t + 1 :])
    steps = ends[0] + 1 if len(ends) else reward_BS.shape[1] - 1 - t
    total, weight, mixed = 0.0, 1.0, 0.0
    for n in range(1, steps + 1):
        total += weight * reward_BS[b, t + n]
        weight *= gamma * discount_BS[b, t + n]
        share = lambda_ ** (n - 1) * (1 - lambda_ if n < steps else 1)
        mixed += share * (total + weight * value_BS[b, t + n])
    return mixed


@pytest.mark.parametrize("lambda_", [0.0, 0.8, 1.0])
def test_lambda_mixes_n_step_returns(x64, lambda_):
    unroll = random_unroll(7, fractional=True)
    arrays = {name: jnp.asarray(x) for name, x in unroll.items()}
    returns = lambda_returns(**arrays, gamma=0.9, lambda_=lambda_)
    for b, t in np.argwhere(~unroll["last_BS"][:, :-1]):
        expected = mixed_returns(**unroll, gamma=0.9, lambda_=lambda_, b=b, t=t)
        np.testing.assert_allclose(returns[b, t], expected, rtol=1e-12)


def test_lambda_returns_equal_rlax(x64):
    """Without truncated episodes, which rlax does not support."""
    unroll = random_unroll(8)
    unroll["last_BS"] = np.zeros_like(unroll["last_BS"])
    arrays = {name: jnp.asarray(x) for name, x in unroll.items()}
    returns = lambda_returns(**arrays, gamma=0.9, lambda_=0.7)
    expected = jax.vmap(lambda r, d, v: rlax.lambda_returns(r, d, v, 0.7))(
        arrays["reward_BS"][:, 1:], 0.9 * arrays["discount_BS"][:, 1:], arrays["value_BS"][:, 1:]
    )
    np.testing.assert_allclose(returns, expected, rtol=1e-12)


def test_gamma_can_be_vmapped():
    unroll = random_unroll(3)
    arrays = {n: jnp.asarray(x, None if n == "last_BS" else "f4") for n, x in unroll.items()}
    gammas = jnp.array([0.0, 0.5, 0.99])
    together = jax.vmap(lambda gamma: lambda_returns(**arrays, gamma=gamma))(gammas)
    for gamma, returns in zip(gammas, together, strict=True):
        np.testing.assert_allclose(returns, lambda_returns(**arrays, gamma=gamma), rtol=1e-6)


def test_single_step_is_rejected():
    one = jnp.ones((2, 1))
    with pytest.raises(ValueError, match="at least 2"):
        lambda_returns(
            reward_BS=one, discount_BS=one, last_BS=one.astype(bool), value_BS=one, gamma=0.9
        )
