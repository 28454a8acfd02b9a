"""The error of a reconstruction: of quantities, of choices and of flags.

This is the simple form of the predictor of MERLIN (Wayne et al. 2018, arXiv 1803.10760, section
"memory-based predictor"), without its latent state variables.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.specs.observation import FLAG, QUANTITY


def reconstruction_error(
    output: Float[Array, "... F"],
    target: Float[Array, "... F"],
    groups: Int[np.ndarray, " F"],
) -> Float[Array, "..."]:
    """Return the mean error over the entries of a vector; no gradient flows to the targets.

        quantity    (output - target)^2
        choice      -sum_i target_i log softmax(output)_i      over the features of its group
        flag        -target log sigmoid(output) - (1 - target) log sigmoid(-output)

    Args:
      output: numbers, and the logits of choices and flags.
      target: the features, see `specs.ArraySpec.features`; choices are one-hot.
      groups: `QUANTITY`, `FLAG`, or the number 0, 1, ... of its choice, for each feature; see
        `specs.ArraySpec.feature_groups`.
    """
    chex.assert_equal_shape([output, target])
    target = jax.lax.stop_gradient(target)
    lead = (1,) * (output.ndim - 1)
    errors = jnp.zeros_like(output)
    if np.any(groups == QUANTITY):
        is_quantity_F = (groups == QUANTITY).reshape(*lead, -1)
        errors = jnp.where(is_quantity_F, jnp.square(output - target), errors)
    if np.any(groups == FLAG):
        is_flag_F = (groups == FLAG).reshape(*lead, -1)
        entropy = -target * jax.nn.log_sigmoid(output)
        entropy -= (1 - target) * jax.nn.log_sigmoid(-output)
        errors = jnp.where(is_flag_F, entropy, errors)
    if np.any(groups >= 0):
        log_p = _log_softmax(output, np.maximum(groups, 0), groups >= 0)
        errors = jnp.where((groups >= 0).reshape(*lead, -1), -target * log_p, errors)
    entries = np.sum(groups < 0) + len(np.unique(groups[groups >= 0]))
    return jnp.sum(errors, axis=-1) / float(entries)


def _log_softmax(
    logits: Float[Array, "... F"], groups: Int[np.ndarray, " F"], where: Bool[np.ndarray, " F"]
) -> Float[Array, "... F"]:
    """Return the logarithm of the softmax over the features of each group."""
    number = int(groups.max()) + 1
    z = jnp.moveaxis(logits, -1, 0)
    is_choice = where.reshape(-1, *(1,) * (z.ndim - 1))
    masked = jnp.where(is_choice, z, -jnp.inf)
    largest = jax.lax.stop_gradient(jax.ops.segment_max(masked, groups, number))
    shifted = jnp.where(is_choice, z - largest[groups], 0)
    total = jax.ops.segment_sum(jnp.where(is_choice, jnp.exp(shifted), 0), groups, number)
    return jnp.moveaxis(shifted - jnp.log(total)[groups], 0, -1)
