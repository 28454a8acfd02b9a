"""Hyperparameters as arrays, which may differ between the seeds of one program."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from gtrxl_jax.online.config import OnlineConfig


def draw_hyperparameters(config: OnlineConfig, key: Key[Array, ""]) -> dict[str, Float[Array, ""]]:
    """Return the hyperparameters by name; those in `config.sweep` are sampled log-uniformly.

    They are sampled independently, and the value of each does not depend on which others are.
    """
    names = config.hyperparameters
    keys = dict(zip(names, jax.random.split(key, len(names)), strict=True))

    def value(name: str) -> Float[Array, ""]:
        if name not in config.sweep:
            owner = config if name == "learning_rate" else config.algorithm
            return jnp.asarray(getattr(owner, name), float)
        low, high = (jnp.log(jnp.asarray(z, float)) for z in config.sweep[name])
        return jnp.exp(jax.random.uniform(keys[name], minval=low, maxval=high))

    return {name: value(name) for name in names}
