"""Random batches for the tests of V-MPO."""

import jax
import jax.numpy as jnp
import numpy as np

from gtrxl_jax.ops import vmpo
from gtrxl_jax.ops.distributions import Categorical, Gaussian, Hybrid

B, T = 8, 6
PARTS = {"categorical": ["categorical"], "gaussian": ["mean", "covariance"]}
PARTS["hybrid"] = PARTS["gaussian"] + PARTS["categorical"]


def make_policy(rng, kind, dtype=float):
    def array(*shape):
        return jnp.asarray(rng.normal(size=(B, T, *shape)), dtype)

    if kind == "categorical":
        return Categorical(array(4))
    if kind == "gaussian":
        return Gaussian(array(3), jnp.exp(0.3 * array(3)))
    return Hybrid(
        make_policy(rng, "gaussian", dtype), (Categorical(array(4)), Categorical(array(2)))
    )


def make_batch(kind="categorical", seed=0, dtype=float, share_masked=0.25):
    """Make random keyword arguments of `vmpo_losses`."""
    rng = np.random.default_rng(seed)
    target_distribution = make_policy(rng, kind, dtype)
    return dict(
        distribution=make_policy(rng, kind, dtype),
        target_distribution=target_distribution,
        actions=target_distribution.sample(jax.random.key(seed)),
        values_BT=jnp.asarray(rng.normal(size=(B, T)), dtype),
        returns_BT=jnp.asarray(rng.normal(size=(B, T)), dtype),
        mask_BT=jnp.asarray(rng.random((B, T)) >= share_masked),
        multipliers=vmpo.Multipliers(
            temperature=jnp.asarray(0.7, dtype),
            alphas={part: jnp.asarray(1.5 + i, dtype) for i, part in enumerate(PARTS[kind])},
        ),
        hyperparameters=vmpo.VMPOHyperparameters(
            epsilon_eta=jnp.asarray(0.1, dtype),
            epsilon_alphas={
                p: jnp.asarray(0.01 * (i + 1), dtype) for i, p in enumerate(PARTS[kind])
            },
            value_cost=jnp.asarray(1.0, dtype),
            entropy_cost=jnp.asarray(0.0, dtype),
        ),
    )


def loss_of(trained, batch):
    losses, metrics, _ = vmpo.vmpo_losses(**(batch | trained))
    return sum(losses.values()), metrics | {f"loss/{name}": x for name, x in losses.items()}
