"""A custom offline algorithm: imitation weighted by returns.

    cd examples
    gtrxl train-offline --algorithm.name custom_offline_algorithm:Config --algorithm.temperature 0.5

A custom offline algorithm subclasses `OfflineAlgorithm`, and implements `init` and `update`; or, as
here, `Imitation`, which scans a sequence model over segments. Its config defines its settings,
which become the command-line options --algorithm.SETTING, and names the fields of `Segments` that
it needs besides observations, actions and returns-to-go.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from gtrxl_jax.offline.algorithm import Setup
from gtrxl_jax.offline.imitation import Imitation, ImitationConfig
from gtrxl_jax.segments import Segments
from gtrxl_jax.validation import number


@dataclasses.dataclass(frozen=True)
class Config(ImitationConfig):
    """Settings of `ReturnWeighted`."""

    name: str = "custom_offline_algorithm:Config"
    discount: float = number(0.99, at_most=1)
    """Discount factor of the returns."""
    temperature: float = 1.0
    """Difference of returns for which weights differ by a factor of e."""

    needs: ClassVar[tuple[str, ...]] = ("rewards",)

    def make(self, setup: Setup) -> "ReturnWeighted":
        """Create the algorithm."""
        return ReturnWeighted(self, setup)


class ReturnWeighted(Imitation):
    """Imitates good actions more (reward-weighted regression, Peters and Schaal 2007).

    L = - mean_t w_t log pi(a_t | ...),    w_t ~ exp(G_t / temperature) with a mean of 1,

    where G_t is the discounted return from step t to the end of the window.
    """

    def weights(self, batch: Segments) -> jax.Array:
        """Return the weights of the steps of a batch `[B, K, T]`; 0 for padding."""
        assert batch.rewards is not None  # as the config needs them
        size = len(batch.mask)

        def step(later_B: jax.Array, reward_B: jax.Array) -> tuple[jax.Array, jax.Array]:
            return_B = reward_B + self.config.discount * later_B
            return return_B, return_B

        reward_SB = batch.rewards.reshape(size, -1).T
        _, return_SB = jax.lax.scan(step, jnp.zeros(size), reward_SB, reverse=True)
        logits = return_SB.T.reshape(batch.mask.shape) / self.config.temperature
        steps = jnp.sum(batch.mask, dtype=logits.dtype)
        return steps * jax.nn.softmax(logits, where=batch.mask, axis=(0, 1, 2))

    def update(self, learner: Any, batch: Segments, key: jax.Array) -> tuple[Any, dict[str, Any]]:
        """Learn from a batch; report the largest weight."""
        learner, metrics = super().update(learner, batch, key)
        return learner, metrics | {"weight/max": jnp.max(self.weights(batch))}
