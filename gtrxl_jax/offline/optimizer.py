"""The optimizer of offline runs."""

import dataclasses
from typing import Any

import jax
import optax

from gtrxl_jax.ops.schedule import warmup_and_decay
from gtrxl_jax.validation import number


@dataclasses.dataclass(frozen=True)
class AdamWConfig:
    """AdamW (Loshchilov and Hutter 2019); it decays only matrices, not biases, norms or tokens."""

    learning_rate: float = 1e-3
    """Peak learning rate."""
    beta_1: float = number(0.9, at_least=0, at_most=1)
    """Decay rate of the mean of gradients."""
    beta_2: float = number(0.95, at_least=0, at_most=1)
    """Decay rate of the mean of squared gradients."""
    weight_decay: float = number(0.1, at_least=0)
    """Weight decay, which is multiplied by the learning rate."""
    clip_norm: float | None = 1.0
    """Maximum global norm of the gradient."""
    warmup: float = number(0.05, at_least=0, at_most=1)
    """Fraction of the updates over which the learning rate increases linearly to its peak."""
    final: float = number(0.1, at_least=0, at_most=1)
    """Fraction of the peak learning rate that remains after a linear decay."""
    accumulate: int = 1
    """Number of gradients averaged for one optimizer step."""

    def make(self, updates: int) -> tuple[optax.GradientTransformation, optax.Schedule]:
        """Return AdamW without its learning rate, and the schedule of RATE's authors for it."""

        def matrices(params: Any) -> Any:
            return jax.tree.map_with_path(lambda path, _: path[-1].key == "kernel", params)

        optimizer = optax.chain(
            optax.clip_by_global_norm(self.clip_norm) if self.clip_norm else optax.identity(),
            optax.scale_by_adam(self.beta_1, self.beta_2),
            optax.add_decayed_weights(self.weight_decay, mask=matrices),
        )
        if self.accumulate > 1:
            steps = optax.MultiSteps(optimizer, self.accumulate)
            optimizer = optax.GradientTransformation(steps.init, steps.update)
        schedule = warmup_and_decay(self.learning_rate, self.warmup, self.final, updates)
        return optimizer, schedule
