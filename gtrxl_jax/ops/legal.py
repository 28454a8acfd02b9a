"""Legal actions: masks `[..., A]` over the choices of discrete dimensions, one after another.

An action has K discrete dimensions of A_1, ..., A_K choices; A is their sum.
"""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped


def require_legal(legal: Shaped[Array, "..."], sizes: Sequence[int]) -> None:
    """Raise ValueError if a mask does not fit the discrete dimensions of the actions.

    Args:
      legal: the mask.
      sizes: A_1, ..., A_K.
    """
    if not sizes:
        raise ValueError(
            "legal_actions restricts choices, but the action space has no discrete dimension: "
            "remove it, or clip the action in step_env"
        )
    if legal.dtype != bool or legal.shape[-1:] != (sum(sizes),):
        raise ValueError(
            f"legal_actions has the dtype {legal.dtype} and the shape {legal.shape}, but the "
            f"action space has choices {tuple(sizes)}: return bool [{sum(sizes)}]"
        )


def mask_logits(
    logits: Float[Array, "... A"], legal: Bool[Array, "... A"]
) -> Float[Array, "... A"]:
    """Return the logits of one dimension, for legal choices only (Huang and Ontanon 2022).

    The other logits are the lowest number of their dtype, so that their probabilities, their terms
    of entropies and KLs, and the gradients with respect to them are exactly zero. Where no choice
    is legal, all logits are 0, and thus all choices equally likely.
    """
    lowest = jnp.asarray(jnp.finfo(logits.dtype).min, logits.dtype)
    # Noise of samples would vanish in the lowest number, were it the logit of every choice.
    masked = jnp.where(jnp.any(legal, axis=-1, keepdims=True), lowest, 0)
    return jnp.where(legal, logits, masked)


def has_choice(legal: Bool[Array, "... A"], sizes: Sequence[int]) -> Bool[Array, "..."]:
    """Return whether every dimension has a legal choice."""
    chosen = [jnp.any(part, axis=-1) for part in split_choices(legal, sizes)]
    return jnp.all(jnp.stack(chosen), axis=0)


def draw_choices(
    key: PRNGKeyArray, legal: Bool[Array, "... A"], sizes: Sequence[int]
) -> Int[Array, "... K"]:
    """Draw a legal choice for every dimension, uniformly; any choice where none is legal."""
    keys = jax.random.split(key, len(sizes))
    draws = [
        jax.random.categorical(key, mask_logits(jnp.zeros(part.shape), part)).astype(jnp.int32)
        for key, part in zip(keys, split_choices(legal, sizes), strict=True)
    ]
    return jnp.stack(draws, axis=-1)


def split_choices(legal: Bool[Array, "... A"], sizes: Sequence[int]) -> list[Bool[Array, "... _"]]:
    """Return the part `[..., A_k]` of each dimension."""
    return jnp.split(legal, list(itertools.accumulate(sizes))[:-1], axis=-1)
