"""Returns against a forward sum written step by step, and the faults seen at time limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.ops.returns import n_step_returns, transition_mask


def random_unroll(seed, batch=6, steps=13, fractional=False):
    """Steps with random ends, of which about half are terminations; first follows last."""
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
def test_equals_the_forward_sum(x64, seed, fractional):
    unroll = random_unroll(seed, fractional=fractional)
    arrays = {name: jnp.asarray(x) for name, x in unroll.items()}
    returns = jax.jit(n_step_returns)(**arrays, gamma=0.9)
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
    returns = n_step_returns(
        reward_BS=reward, discount_BS=discount, last_BS=last, value_BS=value, gamma=0.5
    )
    # Truncated: 2 + 16 / 2 = 10, 1 + 10 / 2 = 6. Terminated: 2, 1 + 2 / 2 = 2.
    # Afterwards: 8 + 32 / 2 = 24, 4 + 24 / 2 = 16; the reset itself is masked.
    expected = [[6, 10, 16, 16, 24], [2, 2, 16, 16, 24]]
    np.testing.assert_array_equal(returns, expected)


def test_nothing_crosses_a_reset():
    last = jnp.zeros((6, 13), bool).at[:, 5].set(True)
    arrays = {
        "reward_BS": jnp.ones((6, 13)),
        "discount_BS": jnp.ones((6, 13)),
        "value_BS": jnp.asarray(random_unroll(0)["value_BS"], jnp.float32),
    }

    def before(arrays):
        return jnp.sum(n_step_returns(**arrays, last_BS=last, gamma=0.9)[:, :5])

    for name, gradient in jax.grad(before)(arrays).items():
        if name != "value_BS":
            assert np.all(gradient[:, 1:6] != 0), name
        assert np.all(gradient[:, 6:] == 0), name
    # The truncated episode is bootstrapped from its own final observation and from nothing else.
    in_value = jax.grad(before)(arrays)["value_BS"]
    np.testing.assert_allclose(in_value[:, 5], sum(0.9**k for k in range(1, 6)), rtol=1e-6)
    assert np.all(in_value[:, :5] == 0)


def test_gamma_can_be_vmapped():
    unroll = random_unroll(3)
    arrays = {n: jnp.asarray(x, None if n == "last_BS" else "f4") for n, x in unroll.items()}
    gammas = jnp.array([0.0, 0.5, 0.99])
    together = jax.vmap(lambda gamma: n_step_returns(**arrays, gamma=gamma))(gammas)
    for gamma, returns in zip(gammas, together, strict=True):
        np.testing.assert_allclose(returns, n_step_returns(**arrays, gamma=gamma), rtol=1e-6)


def test_a_lone_step_is_refused():
    one = jnp.ones((2, 1))
    with pytest.raises(ValueError, match="at least 2"):
        n_step_returns(
            reward_BS=one, discount_BS=one, last_BS=one.astype(bool), value_BS=one, gamma=0.9
        )
