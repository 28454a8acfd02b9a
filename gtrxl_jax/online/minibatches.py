"""Minibatches of whole segments, drawn without communication between devices."""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

Tree = TypeVar("Tree")


def draw_minibatches(
    key: Key[Array, ""], batch: int, minibatches: int, epochs: int
) -> Int[Array, "N G"]:
    """Divide the rows of a batch among minibatches, anew in each epoch.

    Each minibatch receives one row, at random, of each group of `minibatches` consecutive rows. A
    group is on one device if the number of rows of a device is a multiple of `minibatches`, so that
    taking a minibatch sends nothing. Tasks have equal shares of the batch, and of a minibatch on
    average.

    Args:
      key: for the order within the groups.
      batch: number of rows, a multiple of `minibatches`.
      minibatches: number of minibatches of an epoch.
      epochs: number of passes over the batch.

    Returns:
      For each of the N minibatches the place of its row in each of the G groups.
    """
    places = jnp.broadcast_to(jnp.arange(minibatches), (epochs, batch // minibatches, minibatches))
    order_EGN = jax.random.permutation(key, places, axis=-1, independent=True)
    return order_EGN.swapaxes(1, 2).reshape(epochs * minibatches, batch // minibatches)


def take_minibatch(batch: Tree, place_G: Int[Array, " G"]) -> Tree:
    """Return the rows of a minibatch, from arrays with the rows of the batch as leading axis."""

    def take(x: jax.Array) -> jax.Array:
        if len(x) == len(place_G):  # the only minibatch
            return x
        rows = x.reshape(len(place_G), -1, *x.shape[1:])
        return jax.vmap(lambda group, place: group[place])(rows, place_G)

    return jax.tree.map(take, batch)
