"""Policy and value heads on the core's output, each an MLP with one hidden layer.

GTrXL uses 256 hidden units for each (Parisotto et al. 2019, appendix). The parameters of a head are
`hidden/{kernel,bias}` and `output/{kernel,bias}`. The last layer computes in `param_dtype`, float32
or wider, so policies and values are float32 even with a bfloat16 core.
"""

import math
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from gtrxl_jax.nn.layers import Dense
from gtrxl_jax.ops import popart
from gtrxl_jax.ops.distributions import ActionDistribution, Categorical, Gaussian, Hybrid
from gtrxl_jax.ops.legal import mask_logits, require_legal, split_choices
from gtrxl_jax.specs import ActionSpec

# Last layers of the usual size, a hundred times smaller, and three times larger.
USUAL = nn.initializers.lecun_normal()
SMALL = nn.initializers.variance_scaling(1e-4, "fan_in", "truncated_normal")
LARGE = nn.initializers.variance_scaling(9.0, "fan_in", "truncated_normal")


class PolicyHead(nn.Module):
    """A policy over the actions of a spec.

    The policy is a `Categorical` for discrete actions, a `Gaussian` with diagonal covariance for
    continuous actions, and a `Hybrid` for actions with several parts. A Gaussian is in the units of
    the environment's actions. It is initialized to the middle of the action's range with a standard
    deviation of `initial_scale` half-widths of the range (0 and `initial_scale` if the range is
    unbounded). It is not truncated to the range. Its standard deviation is at most `max_scale`:
    environments clip actions, so that a wider policy only chooses between the bounds at random, yet
    has a higher entropy.

    The last layer is initialized a hundred times smaller than usual, so every policy starts near
    uniform (Andrychowicz et al. 2021, "What matters in on-policy reinforcement learning?").

    Attributes:
      action: the layout of the actions.
      initial_scale: standard deviation at initialization, in half-widths of the action's range.
      min_scale, max_scale: bounds of the standard deviation, in the same unit.
      hidden: units of the hidden layer.
      dtype: computation dtype of the hidden layer; None follows the inputs.
      param_dtype: dtype of the parameters and the outputs.
    """

    action: ActionSpec
    initial_scale: float = 0.5
    min_scale: float = 1e-3
    max_scale: float = 1.0
    hidden: int = 256
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "... D"], legal: Bool[Array, "... A"] | None = None
    ) -> ActionDistribution:
        """Return the policy; `legal` is the choices it may make, see `TimeStep`. None: all."""
        sizes, num_continuous = self.action.discrete, self.action.num_continuous
        outputs = _mlp(self, x, 2 * num_continuous + sum(sizes), SMALL)
        starts = [2 * num_continuous + sum(sizes[:k]) for k in range(len(sizes))]
        raw, *logits = jnp.split(outputs, starts, axis=-1)
        if legal is not None:
            require_legal(legal, sizes)
            logits = [*map(mask_logits, logits, split_choices(legal, sizes))]
        gaussian = self._gaussian(*jnp.split(raw, 2, axis=-1)) if num_continuous else None
        categoricals = tuple(Categorical(z) for z in logits)
        if self.action.is_hybrid:
            return Hybrid(gaussian, categoricals)
        return gaussian if gaussian is not None else categoricals[0]

    def _gaussian(self, mean: Float[Array, "... C"], spread: Float[Array, "... C"]) -> Gaussian:
        low, initial, high = self.min_scale, self.initial_scale, self.max_scale
        if not 0 < low < initial < high:
            raise ValueError(
                f"policy min_scale {low}, initial_scale {initial} and max_scale {high} "
                "must satisfy 0 < min_scale < initial_scale < max_scale"
            )
        center, half = self.action.range_of(mean)
        # The inverse of the sigmoid, so that an output of 0 yields the initial scale.
        offset = math.log((initial - low) / (high - initial))
        scale = low + (high - low) * nn.sigmoid(spread + offset)
        return Gaussian(mean=center + half * mean, scale=half * scale)


class ValueHead(nn.Module):
    """V(s) in the units of the value loss, which are normalized with PopArt.

    The last layer is initialized three times larger than usual, so that much of the value's
    gradient reaches the core: in a T-Maze of length 100, agents learn to read the cue sooner than
    with the usual size, and hardly at all with a hundredth of it.

    Attributes:
      num_tasks: N, one output per task; None for a single output without a task axis.
      hidden: units of the hidden layer.
      kernel_init: initializer of the last layer.
      dtype: computation dtype of the hidden layer; None follows the inputs.
      param_dtype: dtype of the parameters and the outputs.
    """

    num_tasks: int | None = None
    hidden: int = 256
    kernel_init: nn.initializers.Initializer = LARGE
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "..."]:
        values = _mlp(self, x, self.num_tasks or 1, self.kernel_init)
        return values[..., 0] if self.num_tasks is None else values


class DuelingHead(nn.Module):
    """Q(s, a) = V(s) + A(s, a) - mean_a A(s, a), for one discrete action (Wang et al. 2016).

    All values start near 0. They are in the units of the rewards: larger ones would have to be
    unlearned, one copy of the target network after the other, before small rewards could be seen.

    Attributes:
      num_actions: A.
      hidden: units of the hidden layer of each of V and A.
      dtype: computation dtype of the hidden layer; None follows the inputs.
      param_dtype: dtype of the parameters and the outputs.
    """

    num_actions: int
    hidden: int = 256
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "... D"], legal: Bool[Array, "... A"] | None = None
    ) -> Float[Array, "... A"]:
        """Return the values; actions that are not `legal` have the lowest number."""
        precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        advantage = ValueHead(self.num_actions, self.hidden, SMALL, **precision, name="advantage")
        value = ValueHead(1, self.hidden, SMALL, **precision, name="value")
        advantages = advantage(x)
        q = value(x) + advantages - jnp.mean(advantages, axis=-1, keepdims=True)
        if legal is None:
            return q
        require_legal(legal, (self.num_actions,))
        return mask_logits(q, legal)


def _mlp(
    head: PolicyHead | ValueHead, x: Float[Array, "... D"], outputs: int, init: Any
) -> Float[Array, "... N"]:
    """Apply Linear(D, hidden), ReLU and Linear(hidden, outputs) as submodules of the head."""
    dtype, param_dtype = head.dtype, head.param_dtype
    x = nn.relu(Dense(head.hidden, dtype=dtype, param_dtype=param_dtype, name="hidden")(x))
    output = Dense(outputs, param_dtype=param_dtype, kernel_init=init, name="output")
    return output(x.astype(param_dtype))


def rescale_value_gradient(
    gradient: dict[str, Any], old: popart.PopArtStatistics, new: popart.PopArtStatistics
) -> dict[str, Any]:
    """Return the gradient with respect to the rescaled value head, given it for the old one.

    Args:
      gradient: gradient with respect to an agent's parameters, of a loss that used the head made
        for `old` and renormalized its values to `new`.
      old: statistics that the head was made for.
      new: statistics that the loss used, and that `rescale_value_head` rescales to.
    """
    head, (factor_N, _) = gradient["value_head"], popart.conversion(old, new)
    output = {
        "kernel": head["output"]["kernel"] / factor_N[None],
        "bias": head["output"]["bias"] / factor_N,
    }
    return {**gradient, "value_head": {**head, "output": output}}


def rescale_value_head(
    params: dict[str, Any], old: popart.PopArtStatistics, new: popart.PopArtStatistics
) -> dict[str, Any]:
    """Rescale an agent's value head to preserve its un-normalized values under new statistics.

    Args:
      params: an agent's parameters (its variables' "params"); only `value_head/output/kernel`
        `[hidden, N]` and `value_head/output/bias` `[N]` change.
      old: statistics of the N tasks that the head was made for.
      new: statistics that the head will be used with.
    """
    head = params["value_head"]
    kernel, bias = popart.rescale_head(head["output"]["kernel"], head["output"]["bias"], old, new)
    return {**params, "value_head": {**head, "output": {"kernel": kernel, "bias": bias}}}
