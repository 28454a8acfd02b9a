"""Adam with a learning rate schedule and clipped gradients."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Real

from gtrxl_jax.nn.normalizer import without_statistics
from gtrxl_jax.ops.promotion import standard_dtype_promotion
from gtrxl_jax.ops.schedule import warmup_and_decay
from gtrxl_jax.validation import MOST_STEPS, number


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Adam (Kingma and Ba 2015)."""

    learning_rate: float | None = None
    """Peak learning rate; by default the algorithm's: 5e-4 for PPO, 2e-3 for V-MPO and 1e-3 for
    R2D2."""
    beta_2: float = number(0.999, at_least=0, below=1)
    """Decay of Adam's mean of squared gradients, which is over about 1 / (1 - beta_2) steps. When
    the gradients of a policy that had settled grow again, the mean lags behind, so that the first
    steps are too large; with 0.99, there are fewer of them."""
    warmup: float = number(0.0, at_least=0, at_most=1)
    """Fraction of the horizon over which the learning rate increases linearly to its peak."""
    final: float = number(0.1, at_least=0, at_most=1)
    """Fraction of the peak learning rate that remains after a linear decay; 1: no decay, as in the
    paper. Without decay, an agent that has solved its task may forget it, since it no longer gets a
    learning signal."""
    horizon: int = number(0, at_least=0, at_most=MOST_STEPS)
    """Number of environment steps over which the learning rate warms up and decays; afterwards it
    stays at its final value. 0: all steps of the run."""
    clip_norm: float | None = 1.0
    """Maximum global norm of the network's gradient."""


class Optimizer:
    """Adam on a dict of trees, of which "params" is the agent's parameters.

    Args:
      config: its settings.
      num_steps: number of optimizer steps over which the learning rate changes.
    """

    def __init__(self, config: OptimizerConfig, num_steps: int):
        self._adam = optax.scale_by_adam(b2=config.beta_2)
        # Relative to the peak learning rate, which is one of the hyperparameters.
        self._schedule = warmup_and_decay(1.0, config.warmup, config.final, num_steps)
        self._clip_norm = config.clip_norm

    def init(self, trainable: dict[str, Any]) -> optax.OptState:
        """Return the state before the first step."""
        return self._adam.init(trainable)

    def step(
        self,
        trainable: dict[str, Any],
        state: optax.OptState,
        gradients: dict[str, Any],
        learning_rate: Float[Array, ""],
        count: Int[Array, ""],
    ) -> tuple[dict[str, Any], optax.OptState, dict[str, Real[Array, ""]]]:
        """Take a step.

        Args:
          trainable: what is trained.
          state: the state of the optimizer.
          gradients: the gradients of the loss; only "params" is clipped.
          learning_rate: the peak learning rate.
          count: the number of steps before this one.

        Returns:
          The new trainable and state; the metrics "gradient_norm" before clipping,
          "gradient_clipped", "parameter_norm" and "learning_rate".
        """
        norm = optax.tree.norm(gradients["params"])
        metrics = {"gradient_norm": norm}
        if self._clip_norm:
            # XLA fuses this factor into Adam, unlike optax's selection between two gradients.
            factor = jnp.minimum(1.0, self._clip_norm / norm)
            clipped = jax.tree.map(lambda g: factor * g, gradients["params"])
            gradients = gradients | {"params": clipped}
            metrics["gradient_clipped"] = (norm > self._clip_norm).astype(norm.dtype)
        with standard_dtype_promotion():
            changes, state = self._adam.update(gradients, state)
            decay = self._schedule(count.astype(float))
        rate = learning_rate * decay
        steps = jax.tree.map(lambda change: -rate * change, changes)
        trainable = optax.apply_updates(trainable, steps)
        metrics |= {
            "parameter_norm": optax.tree.norm(without_statistics(trainable["params"])),
            "learning_rate": rate,
        }
        return trainable, state, metrics
