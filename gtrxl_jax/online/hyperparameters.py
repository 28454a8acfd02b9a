"""Hyperparameters as arrays, which may differ between the seeds of one program."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Key

from gtrxl_jax.online.config import OnlineConfig
from gtrxl_jax.ops.vmpo import Multipliers, VMPOHyperparameters
from gtrxl_jax.specs import ActionSpec


@struct.dataclass
class Hyperparameters:
    """The hyperparameters that a run can be vmapped over, besides the seed.

    Attributes:
      learning_rate: peak learning rate of Adam.
      gamma: discount factor.
      gae_lambda: lambda of the lambda-returns.
      bounds: V-MPO's epsilons, and the weights of its loss terms.
      multipliers: the initial temperature and alphas.
    """

    learning_rate: Float[Array, ""]
    gamma: Float[Array, ""]
    gae_lambda: Float[Array, ""]
    bounds: VMPOHyperparameters
    multipliers: Multipliers


_EPSILONS = {
    "categorical": "epsilon_alpha",
    "mean": "epsilon_mean",
    "covariance": "epsilon_covariance",
}
"""The name of the bound on each part of the KL."""


def draw_hyperparameters(
    config: OnlineConfig, action: ActionSpec, key: Key[Array, ""]
) -> Hyperparameters:
    """Return the config's hyperparameters; those with bounds in `sweep` are sampled log-uniformly.

    Args:
      config: config of the run.
      action: spec of the actions, which determines the parts of the KL.
      key: a PRNG key. Hyperparameters are sampled independently, and the value of each does not
        depend on which others are sampled.
    """
    names = ("learning_rate", "epsilon_eta", "epsilon_alpha", "epsilon_mean", "epsilon_covariance")
    keys = dict(zip(names, jax.random.split(key, len(names)), strict=True))

    def number(name: str, fixed: float) -> Float[Array, ""]:
        bounds = getattr(config.sweep, name)
        if bounds is None:
            return jnp.asarray(fixed, float)
        low, high = (jnp.log(jnp.asarray(z, float)) for z in bounds)
        return jnp.exp(jax.random.uniform(keys[name], minval=low, maxval=high))

    vmpo = config.vmpo
    parts = {}
    if action.discrete:
        parts["categorical"] = vmpo.initial_alpha
    if action.num_continuous:
        parts["mean"] = vmpo.initial_alpha_mean
        parts["covariance"] = vmpo.initial_alpha_covariance
    return Hyperparameters(
        learning_rate=number("learning_rate", config.optimiser.learning_rate),
        gamma=jnp.asarray(vmpo.gamma, float),
        gae_lambda=jnp.asarray(vmpo.gae_lambda, float),
        bounds=VMPOHyperparameters(
            number("epsilon_eta", vmpo.epsilon_eta),
            {part: number(_EPSILONS[part], getattr(vmpo, _EPSILONS[part])) for part in parts},
            jnp.asarray(vmpo.value_cost, float),
            jnp.asarray(vmpo.entropy_cost, float),
        ),
        multipliers=Multipliers(
            jnp.asarray(vmpo.initial_eta, float),
            {part: jnp.asarray(initial, float) for part, initial in parts.items()},
        ),
    )


def drawn_hyperparameters(
    config: OnlineConfig, hyperparameters: Hyperparameters
) -> dict[str, Float[Array, "*S"]]:
    """Return the hyperparameters sampled by `draw_hyperparameters`, by their names in `sweep`."""
    bounds = hyperparameters.bounds
    numbers = {
        "learning_rate": hyperparameters.learning_rate,
        "epsilon_eta": bounds.epsilon_eta,
        **{_EPSILONS[part]: epsilon for part, epsilon in bounds.epsilon_alphas.items()},
    }
    return {name: x for name, x in numbers.items() if getattr(config.sweep, name) is not None}
