"""A `Counter` of rows that are spread over all devices, of all processes."""

from typing import Any

import jax.numpy as jnp
from flax import struct

from gtrxl_jax.parallel.placement import batch_field, make_mesh
from tests.runs.counter import Counter


@struct.dataclass
class Spread:
    """The state of `Rows`."""

    params: Any
    rows_B: Any = batch_field()


class Rows(Counter):
    """Counts on each row; the metric is their mean."""

    def mesh(self, devices=None):
        return make_mesh(0, 8, devices=devices)

    def init(self, seed, given=None):
        return Spread(super().init(seed).params, jnp.arange(8.0))

    def update(self, state, data, stage):
        state = Spread({"count": state.params["count"] + 1}, state.rows_B + 1)
        return state, {"count": jnp.mean(state.rows_B)}
