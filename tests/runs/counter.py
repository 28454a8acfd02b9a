"""A trainer that counts, compiled in a fraction of a second: for tests of the host's loop."""

import dataclasses
import json
from typing import Any

import jax.numpy as jnp
from flax import struct

from gtrxl_jax.parallel.placement import make_mesh
from gtrxl_jax.runs.config import CheckpointConfig, EvaluationConfig, RunConfig
from gtrxl_jax.runs.divergence import reduce_checks
from gtrxl_jax.runs.programs import Programs


@dataclasses.dataclass(frozen=True)
class CounterConfig(RunConfig):
    """The config of a `Counter`."""

    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    total_steps: int = 40


@struct.dataclass
class Count:
    """The number of updates, which is also the only parameter."""

    params: Any


class Counter:
    """A run of `iterations` iterations of 2 updates of 5 steps, whose metric is the count."""

    title = "a counter"
    notes = ("it counts from 1",)
    environment = ("", {})
    observation_space = action_space = policy = None
    tasks: tuple[Any, ...] = ()
    steps_per_iteration = 10
    progress_metrics = ("count",)
    on_host = False

    def __init__(self, iterations: int = 4, save_every: int = 1, evaluate_every: int = 0):
        self.num_iterations = iterations
        self.config = CounterConfig(
            checkpoint=CheckpointConfig(interval=10 * save_every, keep=100),
            evaluation=EvaluationConfig(interval=10 * evaluate_every),
            updates_per_iteration=2,
            total_steps=10 * iterations,
        )

    @property
    def config_json(self):
        return json.dumps({"kind": "counter", **dataclasses.asdict(self.config)})

    def mesh(self, devices=None):
        return make_mesh(1, 1)

    def feed(self, first, mesh):
        for _ in range(first, self.num_iterations + 1):
            yield None, None

    def init(self, seed, given=None):
        return Count({"count": jnp.zeros((), jnp.int32)})

    def measure_statistics(self):
        return {}

    def score_shapes(self):
        return {}

    def programs(self, *arguments, **options):
        return Programs(self, *arguments, **options)

    def sampled_hyperparameters(self, state):
        return {}

    def value_statistics(self, state):
        return None

    def to_checkpoint(self, state):
        return state

    def from_checkpoint(self, saved, fresh):
        return saved

    def update(self, state, data, stage):
        count = state.params["count"] + 1
        return Count({"count": count}), {"count": count}

    def summarize(self, metrics, state, data):
        return {"count": metrics["count"][-1], **reduce_checks({"loss": metrics["count"] > 0})}

    def evaluate(self, params, key):
        return {"return": jnp.full((3,), params["count"], jnp.float32)}
