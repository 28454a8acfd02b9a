"""R2D2's targets, losses and priorities, against naive loops in float64 and rlax."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.ops import r2d2

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from a dependency of rlax
    import rlax

B, T, A = 4, 9, 3
GAMMA = 0.9


def segment(seed=0, ends=True):
    """Return the fields of random segments, with terminated and truncated episodes."""
    rng = np.random.default_rng(seed)
    last = rng.random((B, T + 1)) < 0.3 * ends
    last[:, 1:] &= ~last[:, :-1]
    terminated = last & (rng.random((B, T + 1)) < 0.5)
    return {
        "q_BSA": rng.normal(size=(B, T + 1, A)),
        "target_q_BSA": 3 * rng.normal(size=(B, T + 1, A)),
        "actions_BT": rng.integers(0, A, (B, T)),
        "reward_BS": 2 * rng.normal(size=(B, T + 1)),
        "discount_BS": np.where(terminated, 0.0, 1.0),
        "last_BS": last,
    }


def h(x, epsilon=1e-3):
    return np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + epsilon * x


def inverse(y):
    """Invert `h` by bisection."""
    low, high = -1e6, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if h(middle) < y else (low, middle)
    return (low + high) / 2


def naive_errors(x, n):
    """Return the error of each transition (b, t)."""
    errors = {}
    for b, t in np.argwhere(~x["last_BS"][:, :-1]):
        total, factor, s = 0.0, 1.0, t
        while True:
            s += 1
            total += factor * x["reward_BS"][b, s]
            factor *= GAMMA * x["discount_BS"][b, s]
            if x["last_BS"][b, s] or s - t == n or s == T:
                break
        best = np.argmax(x["q_BSA"][b, s])
        total += factor * inverse(x["target_q_BSA"][b, s, best])
        errors[b, t] = h(total) - x["q_BSA"][b, t, x["actions_BT"][b, t]]
    return errors


@pytest.mark.parametrize("n", [1, 2, 5, 20])
def test_errors_equal_naive_loops(n, x64):
    x = segment()
    found = jax.jit(lambda x: r2d2.td_errors(**x, gamma=GAMMA, num_steps=n))(x)
    expected = np.zeros((B, T))
    for place, error in naive_errors(x, n).items():
        expected[place] = error
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert (found == 0).sum() == x["last_BS"][:, :-1].sum() > 0


def test_errors_equal_rlax_within_an_episode(x64):
    x = segment(1, ends=False)
    found = jax.jit(lambda x: r2d2.td_errors(**x, gamma=GAMMA, num_steps=3))(x)
    pair = rlax.TxPair(rlax.signed_hyperbolic, rlax.signed_parabolic)
    expected = jax.vmap(
        lambda q, target, action, reward: rlax.transformed_n_step_q_learning(
            q[:-1],
            action,
            target[1:],
            jnp.argmax(q[1:], axis=-1),
            reward[1:],
            jnp.full(T, GAMMA),
            3,
            tx_pair=pair,
        )
    )(x["q_BSA"], x["target_q_BSA"], x["actions_BT"], x["reward_BS"])
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_no_gradient_flows_into_targets(x64):
    x = segment(2)

    def loss(q_BSA, target_q_BSA):
        y = x | {"q_BSA": q_BSA, "target_q_BSA": target_q_BSA}
        return jnp.sum(jnp.square(r2d2.td_errors(**y, gamma=GAMMA, num_steps=3)))

    x = jax.tree.map(jnp.asarray, x)
    online, target = jax.jit(jax.grad(loss, argnums=(0, 1)))(x["q_BSA"], x["target_q_BSA"])
    np.testing.assert_array_equal(target, 0)
    chosen = np.zeros((B, T + 1, A), bool)
    for b, t in np.argwhere(~x["last_BS"][:, :-1]):
        chosen[b, t, x["actions_BT"][b, t]] = True
    np.testing.assert_array_equal(online != 0, chosen)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rescaling_is_inverted(dtype, x64):
    x = np.concatenate([-np.logspace(-6, 5, 50), [0.0], np.logspace(-6, 5, 50)]).astype(dtype)
    tolerance = 20 * np.finfo(dtype).eps
    rescaled = r2d2.rescale(jnp.asarray(x))
    np.testing.assert_allclose(rescaled, h(x.astype(float)), rtol=1e-3, atol=tolerance)
    again = r2d2.unrescale(rescaled)
    assert again.dtype == dtype
    np.testing.assert_allclose(again, x, rtol=100 * tolerance, atol=tolerance)


def test_forbidden_actions_are_never_the_best():
    q_BSA = jnp.array([[[1.0, jnp.finfo(jnp.float32).min, 0.0]]])
    target = jnp.array([[[5.0, jnp.finfo(jnp.float32).min, 9.0]]])
    assert r2d2.double_q_values(q_BSA, target) == 5.0


def test_terminal_states_need_no_legal_action():
    x = jax.tree.map(jnp.asarray, segment())
    ended = (x["last_BS"] & (x["discount_BS"] == 0))[..., None]
    assert ended.any()
    expected = r2d2.td_errors(**x, gamma=GAMMA, num_steps=3)
    for name in ("q_BSA", "target_q_BSA"):
        x[name] = jnp.where(ended, jnp.finfo(x[name].dtype).min, x[name])
    found = r2d2.td_errors(**x, gamma=GAMMA, num_steps=3)
    np.testing.assert_array_equal(found, expected)


def test_priorities_and_weights():
    error = jnp.array([[1.0, -3.0, 7.0], [0.5, 0.5, 0.5]])
    mask = jnp.array([[True, True, False], [True, True, True]])
    np.testing.assert_allclose(r2d2.sequence_priorities(error, mask), [2.9, 0.5], rtol=1e-6)
    weight = jnp.array([0.5, 1.0])
    expected = (0.5 * (0.5 * 1 + 0.5 * 9) + 0.5 * 3 * 0.25) / 5
    np.testing.assert_allclose(r2d2.sequence_loss(error, mask, weight), expected, rtol=1e-6)
    probability = jnp.array([0.5, 0.125])
    weights = r2d2.importance_weights(probability, jnp.int32(4), 0.6)
    np.testing.assert_allclose(weights, [(2 / 0.5) ** -0.6, 1.0], rtol=1e-6)


def test_epsilons_of_ape_x():
    np.testing.assert_allclose(r2d2.actor_epsilons(3), [0.4, 0.4**4.5, 0.4**8])
    assert r2d2.actor_epsilons(1, 0.1) == (0.1,)
