"""A `Counter` of rows that are spread over all devices, of all processes."""

import dataclasses
from typing import Any

import jax
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
    """Counts on each row; the metric is their mean.

    Its scores improve in the first process and decline in the others, as of simulators that are not
    deterministic, and only what is the best is saved before the end.
    """

    on_host = True

    def __init__(self):
        super().__init__(save_every=10, evaluate_every=1)
        best = dataclasses.replace(self.config.checkpoint, best="evaluation/return")
        self.config = dataclasses.replace(self.config, checkpoint=best)

    def score_shapes(self):
        return {"return": jnp.zeros(3)}

    def evaluate(self, params, key):
        scores = super().evaluate(params, key)
        return {"return": scores["return"] * (1 - 2 * jax.process_index())}

    def mesh(self, devices=None):
        return make_mesh(0, 8, devices=devices)

    def init(self, seed, given=None):
        return Spread(super().init(seed).params, jnp.arange(8.0))

    def update(self, state, data, stage):
        state = Spread({"count": state.params["count"] + 1}, state.rows_B + 1)
        return state, {"count": jnp.mean(state.rows_B)}
