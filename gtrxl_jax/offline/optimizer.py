"""The optimizer of offline runs."""

from typing import Any

import jax
import optax

from gtrxl_jax.offline.config import AdamWConfig
from gtrxl_jax.ops.schedule import warmup_and_decay


def make_optimizer(
    config: AdamWConfig, updates: int
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Return AdamW without its learning rate, and the schedule of RATE's authors for it."""

    def matrices(params: Any) -> Any:
        return jax.tree.map_with_path(lambda path, _: path[-1].key == "kernel", params)

    optimizer = optax.chain(
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        optax.scale_by_adam(config.beta_1, config.beta_2),
        optax.add_decayed_weights(config.weight_decay, mask=matrices),
    )
    if config.accumulate > 1:
        steps = optax.MultiSteps(optimizer, config.accumulate)
        optimizer = optax.GradientTransformation(steps.init, steps.update)
    schedule = warmup_and_decay(config.learning_rate, config.warmup, config.final, updates)
    return optimizer, schedule
