"""Relative attention whose keys and values are the inputs themselves.

The attention score of the input x_i for the input x_j (Dai et al. 2019, "Transformer-XL", section
3.3) is

    (W_Q x_i + u) . W_K x_j + (W_Q x_i + v) . W_R Phi_{i-j}  =  q_i . x_j + p_i . Phi_{i-j}

with q_i = W_K^T (W_Q x_i + u) and p_i = W_R^T (W_Q x_i + v), which depend on x_i only. Phi consists
of sines and cosines of the distance, so the angle difference identities give p_i . Phi_{i-j} =
`rotate_by_position`(p_i, Phi_i) . Phi_j. No key, value or position is projected, and acting caches
only the inputs. Distances may be of either sign.

The products are over the stream width D instead of the head width K, so this form suits heads that
are about as wide as the stream, as in RATE's published models. Dimension letters are as in
`gtrxl_jax.ops.attention`; F is D, or D + 1 if D is odd.
"""

from collections.abc import Callable

import chex
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gtrxl_jax.ops.attention import masked_softmax
from gtrxl_jax.ops.promotion import at_least_float32


def rotate_by_position(
    p_BTHF: Float[Array, "B T H F"], phi_BTF: Float[Array, "#B T F"]
) -> Float[Array, "B T H F"]:
    """Return the coefficients c_i with c_i . Phi_j = p_i . Phi_{i-j} for every j.

    Args:
      p_BTHF: the coefficients p_i.
      phi_BTF: Phi_i, sines then cosines of the positions of the queries (see `sinusoids`).
    """
    of_sine, of_cosine = jnp.split(p_BTHF, 2, axis=-1)
    sine, cosine = jnp.split(phi_BTF[:, :, None], 2, axis=-1)
    return jnp.concatenate(
        [of_cosine * sine - of_sine * cosine, of_sine * sine + of_cosine * cosine], axis=-1
    )


def absorbed_attention(
    query_BTHD: Float[Array, "B T H D"],
    position_BTHF: Float[Array, "B T H F"],
    input_BSD: Float[Array, "B S D"],
    phi_FS: Float[Array, "F S"],
    mask_BTS: Bool[Array, "B T S"],
    drop: Callable[[Array], Array] = lambda weights: weights,
) -> tuple[Float[Array, "B T H D"], Float[Array, "B T H S"]]:
    """Attend from queries to inputs.

    Args:
      query_BTHD: q, scaled by 1 / sqrt(K).
      position_BTHF: p, scaled likewise and rotated to the position of each query.
      input_BSD: the inputs x.
      phi_FS: Phi of the positions of the inputs, transposed.
      mask_BTS: which inputs each query may attend to, at least one.
      drop: dropout applied to the weights.

    Returns:
      The weighted inputs, and the weights in float32 or wider.
    """
    chex.assert_rank([query_BTHD, position_BTHF, input_BSD, phi_FS, mask_BTS], [4, 4, 3, 2, 3])
    batch, num_queries, heads, _ = query_BTHD.shape
    wide = at_least_float32(query_BTHD.dtype)
    # Merge queries and heads into one axis, Q: with more axes XLA copies the operands, above all in
    # the gradients.
    query_BQD, position_BQF = (
        z.reshape(batch, num_queries * heads, -1) for z in (query_BTHD, position_BTHF)
    )
    mask_BQS = jnp.repeat(mask_BTS, heads, axis=1)
    content_BQS = jnp.einsum("bqd,bsd->bqs", query_BQD, input_BSD, preferred_element_type=wide)
    place_BQS = jnp.einsum("bqf,fs->bqs", position_BQF, phi_FS, preferred_element_type=wide)
    weights_BQS = masked_softmax(content_BQS + place_BQS, mask_BQS)
    dropped_BQS = drop(weights_BQS.astype(input_BSD.dtype))
    out_BQD = jnp.einsum("bqs,bsd->bqd", dropped_BQS, input_BSD)
    by_head = (batch, num_queries, heads, -1)
    return out_BQD.reshape(by_head), weights_BQS.reshape(by_head)
