"""Action distributions: structs of arrays with a common interface.

Leading axes are arbitrary (none, `[B]`, `[B, T]`); the event is the last axis and is summed out.
Every leaf has the leading axes, so a slice in time is `jax.tree.map(lambda x: x[:, :-1], policy)`.
bfloat16 parameters are widened: all results are float32 or wider, except for action indices.

Axes: A actions of a categorical, C continuous dimensions, K discrete dimensions.
"""

import functools
import math
import operator
from typing import Any, Protocol, runtime_checkable

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int, PRNGKeyArray

SELECTIONS = ("mode", "sample")
"""How `choose` picks an action."""


@runtime_checkable
class ActionDistribution(Protocol):
    """The interface of a policy's output, as used by learners and actors.

    `kl_parts` splits KL(self || other) into the parts that V-MPO bounds separately; `self` is the
    old policy and `other` the new one. Each part has the shape of the leading axes.
    """

    def sample(self, key: PRNGKeyArray) -> Any:
        """Draw one action for each element of the leading axes."""

    def mode(self) -> Any:
        """Return the most likely action."""

    def log_prob(self, action: Any) -> Float[Array, "..."]:
        """Return the log probability (density) of the whole action."""

    def entropy(self) -> Float[Array, "..."]:
        """Return the entropy in nats."""

    def kl_parts(self, other: Any) -> dict[str, Float[Array, "..."]]:
        """Return the named parts of KL(self || other) in nats."""


def choose(distribution: ActionDistribution, actions: str, key: PRNGKeyArray) -> Any:
    """Return the most likely action ("mode") or a sample ("sample")."""
    return distribution.mode() if actions == "mode" else distribution.sample(key)


def _widen(x: Array | np.ndarray) -> Array:
    x = jnp.asarray(x)
    return x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < 32 else x


@struct.dataclass
class Categorical:
    """A choice among A actions; actions are int32 with the shape of the leading axes.

    Attributes:
      logits: unnormalized log probabilities. A logit of -inf or of the dtype's lowest finite value
        forbids an action; at least one action must be allowed.
    """

    logits: Float[Array, "... A"]

    def _log_probs(self) -> Float[Array, "... A"]:
        return jax.nn.log_softmax(_widen(self.logits), axis=-1)

    def sample(self, key: PRNGKeyArray) -> Int[Array, "..."]:
        return jax.random.categorical(key, _widen(self.logits), axis=-1).astype(jnp.int32)

    def mode(self) -> Int[Array, "..."]:
        """Return the most likely action, the first one in case of ties."""
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: Int[Array, "..."]) -> Float[Array, "..."]:
        """Return log p(action); -inf (or nearly) where the action is forbidden."""
        chex.assert_shape(action, self.logits.shape[:-1])
        return jnp.take_along_axis(self._log_probs(), action[..., None], axis=-1)[..., 0]

    def entropy(self) -> Float[Array, "..."]:
        """Return the entropy in nats; forbidden actions contribute 0."""
        log_p = self._log_probs()
        p = jnp.exp(log_p)
        return -jnp.sum(p * jnp.where(p > 0, log_p, 0), axis=-1)

    def kl_parts(self, other: "Categorical") -> dict[str, Float[Array, "..."]]:
        """Return KL(self || other) as "categorical"; inf if only `other` forbids an action."""
        chex.assert_equal_shape([self.logits, other.logits])
        log_p, log_q = self._log_probs(), other._log_probs()
        p = jnp.exp(log_p)
        # Masked one by one: the difference of two infinities would be NaN, in value and gradient.
        log_p, log_q = jnp.where(p > 0, log_p, 0), jnp.where(p > 0, log_q, 0)
        return {"categorical": jnp.sum(p * (log_p - log_q), axis=-1)}


@struct.dataclass
class Gaussian:
    """A Gaussian with diagonal covariance; actions are `[..., C]` floats.

    Attributes:
      mean: the mean, unbounded.
      scale: the standard deviation, > 0.
    """

    mean: Float[Array, "... C"]
    scale: Float[Array, "... C"]

    def sample(self, key: PRNGKeyArray) -> Float[Array, "... C"]:
        mean, scale = _widen(self.mean), _widen(self.scale)
        return mean + scale * jax.random.normal(key, mean.shape, mean.dtype)

    def mode(self) -> Float[Array, "... C"]:
        """Return the mean."""
        return _widen(self.mean)

    def log_prob(self, action: Float[Array, "... C"]) -> Float[Array, "..."]:
        """Return the log density, summed over the C dimensions."""
        chex.assert_equal_shape([self.mean, self.scale, action])
        mean, scale = _widen(self.mean), _widen(self.scale)
        z = (action.astype(mean.dtype) - mean) / scale
        return -jnp.sum(0.5 * jnp.square(z) + jnp.log(scale) + 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self) -> Float[Array, "..."]:
        """Return the differential entropy in nats, summed over the C dimensions."""
        return jnp.sum(jnp.log(_widen(self.scale)) + 0.5 * (1 + math.log(2 * math.pi)), axis=-1)

    def kl_parts(self, other: "Gaussian") -> dict[str, Float[Array, "..."]]:
        """Return the decoupled KL of MPO and V-MPO (Song et al. 2019).

        "mean" is KL(self || self with the other's mean), "covariance" is KL(self || self with the
        other's covariance). Their sum is not KL(self || other): the mean part uses self's
        covariance, so that a wider covariance does not loosen the bound on the mean.
        """
        chex.assert_equal_shape([self.mean, self.scale, other.mean, other.scale])
        scale = _widen(self.scale)
        shift = (_widen(other.mean) - _widen(self.mean)) / scale
        log_ratio = 2 * (jnp.log(scale) - jnp.log(_widen(other.scale)))
        # tr(S'^-1 S) - C - log det(S'^-1 S). The bounds are as low as 5e-6, where in float32
        # `ratio - 1 - log_ratio` would be mostly rounding error.
        return {
            "mean": 0.5 * jnp.sum(jnp.square(shift), axis=-1),
            "covariance": 0.5 * jnp.sum(jnp.expm1(log_ratio) - log_ratio, axis=-1),
        }


@struct.dataclass
class SquashedGaussian:
    """A Gaussian that a tanh maps into a range; actions are `[..., C]` floats.

        a = center + half tanh(u),    u ~ base

    (Haarnoja et al. 2018, "Soft actor-critic", appendix C).

    Attributes:
      base: the Gaussian of u.
      center, half: the middle and the half-width of the range.
    """

    base: Gaussian
    center: Float[Array, "... C"]
    half: Float[Array, "... C"]

    @property
    def mean(self) -> Float[Array, "... C"]:
        """The action at the mean of u."""
        return self._squash(_widen(self.base.mean))

    @property
    def scale(self) -> Float[Array, "... C"]:
        """The standard deviation of an action to first order in that of u."""
        slope = jnp.exp(self._log_slope(_widen(self.base.mean)))
        return slope * _widen(self.base.scale)

    def sample(self, key: PRNGKeyArray) -> Float[Array, "... C"]:
        return self._squash(self.base.sample(key))

    def sample_and_log_prob(
        self, key: PRNGKeyArray
    ) -> tuple[Float[Array, "... C"], Float[Array, "..."]]:
        """Return a sample and its log density, precise also where the tanh is saturated."""
        u = self.base.sample(key)
        log_prob = self.base.log_prob(u) - jnp.sum(self._log_slope(u), axis=-1)
        return self._squash(u), log_prob

    def mode(self) -> Float[Array, "... C"]:
        """Return `mean`, the median, not the maximum of the density."""
        return self.mean

    def log_prob(self, action: Float[Array, "... C"]) -> Float[Array, "..."]:
        """Return the log density; actions outside the range are moved into it."""
        center, half = _widen(self.center), _widen(self.half)
        largest = 1 - jnp.finfo(half.dtype).eps
        unit = jnp.clip((action.astype(half.dtype) - center) / half, -largest, largest)
        u = jnp.arctanh(unit)
        return self.base.log_prob(u) - jnp.sum(self._log_slope(u), axis=-1)

    def entropy(self) -> Float[Array, "..."]:
        """Return the differential entropy in nats, by Gauss-Hermite quadrature."""
        mean, scale = (_widen(x)[..., None] for x in (self.base.mean, self.base.scale))
        node_N, weight_N = np.polynomial.hermite.hermgauss(32)
        node = jnp.asarray(math.sqrt(2) * node_N, mean.dtype).reshape(*(1,) * (mean.ndim - 1), -1)
        weight = jnp.asarray(weight_N / math.sqrt(math.pi), mean.dtype)
        slopes = self._log_slope(mean + scale * node, _widen(self.half)[..., None])
        return self.base.entropy() + jnp.sum(slopes @ weight, axis=-1)

    def kl_parts(self, other: "SquashedGaussian") -> dict[str, Float[Array, "..."]]:
        """Return the parts of the KL of the Gaussians, which a common tanh does not change."""
        return self.base.kl_parts(other.base)

    def _squash(self, u: Float[Array, "... C"]) -> Float[Array, "... C"]:
        return _widen(self.center) + _widen(self.half) * jnp.tanh(u)

    def _log_slope(self, u: Array, half: Array | None = None) -> Array:
        """Return log da/du, with log(1 - tanh(u)^2) in a form without cancellation."""
        half = _widen(self.half) if half is None else half
        return jnp.log(half) + 2 * (math.log(2) - u - jax.nn.softplus(-2 * u))


@struct.dataclass
class Hybrid:
    """Independent continuous and discrete dimensions in one action; at least one of the two.

    Actions are dicts with `"continuous"`: `[..., C]` float, if there is a Gaussian, and
    `"discrete"`: `[..., K]` int32, if there are categoricals. Without a Gaussian this is a
    multi-categorical.

    Attributes:
      gaussian: the continuous dimensions, or None.
      categoricals: one categorical for each of the K discrete dimensions; their A may differ.
    """

    gaussian: Gaussian | None
    categoricals: tuple[Categorical, ...]

    def sample(self, key: PRNGKeyArray) -> dict[str, Array]:
        gaussian_key, *keys = jax.random.split(key, 1 + len(self.categoricals))
        draws = [c.sample(k) for c, k in zip(self.categoricals, keys, strict=True)]
        return self._action(
            None if self.gaussian is None else self.gaussian.sample(gaussian_key), draws
        )

    def mode(self) -> dict[str, Array]:
        """Return the most likely action of every dimension."""
        continuous = None if self.gaussian is None else self.gaussian.mode()
        return self._action(continuous, [c.mode() for c in self.categoricals])

    def log_prob(self, action: dict[str, Array]) -> Float[Array, "..."]:
        """Return the log probability of the whole action: the sum over its dimensions."""
        terms = []
        if self.gaussian is not None:
            terms.append(self.gaussian.log_prob(action["continuous"]))
        if self.categoricals:
            discrete = action["discrete"]
            chex.assert_axis_dimension(discrete, -1, len(self.categoricals))
            terms += [c.log_prob(discrete[..., i]) for i, c in enumerate(self.categoricals)]
        return functools.reduce(operator.add, terms)

    def entropy(self) -> Float[Array, "..."]:
        """Return the entropy in nats: the sum over the dimensions."""
        gaussian = () if self.gaussian is None else (self.gaussian,)
        return functools.reduce(
            operator.add, [d.entropy() for d in (*gaussian, *self.categoricals)]
        )

    def kl_parts(self, other: "Hybrid") -> dict[str, Float[Array, "..."]]:
        """Return the Gaussian's parts and "categorical", the sum over the categoricals.

        Raises:
          ValueError: if the kinds or numbers of dimensions differ.
        """
        if (self.gaussian is None) != (other.gaussian is None) or len(self.categoricals) != len(
            other.categoricals
        ):
            raise ValueError(
                f"kl_parts: other has {other._kind()} but self has {self._kind()}; "
                "compare two policies of the same action space"
            )
        parts: dict[str, Array] = {}
        if self.gaussian is not None and other.gaussian is not None:
            parts |= self.gaussian.kl_parts(other.gaussian)
        if self.categoricals:
            pairs = zip(self.categoricals, other.categoricals, strict=True)
            terms = [old.kl_parts(new)["categorical"] for old, new in pairs]
            parts["categorical"] = functools.reduce(operator.add, terms)
        return parts

    def _kind(self) -> str:
        gaussian = "no Gaussian" if self.gaussian is None else "a Gaussian"
        return f"{gaussian} and {len(self.categoricals)} categoricals"

    @staticmethod
    def _action(continuous: Array | None, discrete: list[Array]) -> dict[str, Array]:
        action = {} if continuous is None else {"continuous": continuous}
        return action | ({"discrete": jnp.stack(discrete, axis=-1)} if discrete else {})
