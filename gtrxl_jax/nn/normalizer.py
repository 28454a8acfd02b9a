"""Normalization of a network's inputs by what it has been fed so far.

A `Normalizer` keeps a running mean and variance beside the network's parameters, where PyTorch
keeps its buffers: they are saved, exported, restored and copied to target networks with them, and
have no gradient. Weight decay would shrink them: decay only kernels, by the `mask` of
`optax.adamw`. `update_normalizers` updates them:

    params = update_normalizers(agent, params, timesteps)       # once for each rollout

The parameters that act, and that learn from what was acted, therefore scale inputs alike, and so do
all evaluations.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from gtrxl_jax.ops.moments import Moments, merge, moments_of

# Inputs are clipped to this many standard deviations.
LARGEST = 10.0

_COLLECTION, _NAME = "moments", "batch"
_STATISTICS = {field.name for field in dataclasses.fields(Moments)}


class Normalizer(nn.Module):
    """Shifts and scales x by the mean and the deviation of all inputs so far, in the dtype of x.

    x should be float32 or wider, and be cast to the computation's dtype afterwards.

    With a tolerance t of 1, it returns (x - mean) / deviation. Above 1, x is scaled only as far as
    its deviation is outside [1 / t, t], and then shifted only as far as its mean is outside
    [1 - t, t - 1]: ordinary inputs stay as they are, whatever the agent happens to see first, and
    the others are brought to a comparable scale. From the first update on, the result is clipped to
    +-10 t.

    Without centering, x is not shifted, and is divided by its root mean square.

    The deviation of inputs that were constant so far is taken as 1. Before the first update, `mean`
    and `deviation` are used.

    Attributes:
      shape: the shape of the statistics: the last axes of x. All axes before them are samples.
      mean: what to assume before the first update: a number, or an array of `shape`.
      deviation: see `mean`.
      tolerance: t, at least 1.
      center: whether to subtract the mean.
    """

    shape: tuple[int, ...] = ()
    mean: Any = 0.0
    deviation: Any = 1.0
    tolerance: float = 1.0
    center: bool = True

    @nn.compact
    def __call__(
        self, x: Float[Array, "..."], where: Bool[Array, "..."] | None = None
    ) -> Float[Array, "..."]:
        """Normalize x; `where` are the samples that count as seen, see `ops.moments.moments_of`."""

        def buffer(name: str, shape: tuple[int, ...], value: ArrayLike) -> Array:
            full = jnp.broadcast_to(jnp.asarray(value, x.dtype), shape)
            return jax.lax.stop_gradient(self.param(name, lambda _: full))

        seen = Moments(
            count=buffer("count", (), 0),
            mean=buffer("mean", self.shape, self.mean),
            variance=buffer("variance", self.shape, jnp.square(self.deviation)),
        )
        if self.is_mutable_collection(_COLLECTION) and not self.is_initializing():
            batch = moments_of(jax.lax.stop_gradient(x), len(self.shape), where)
            self.sow(_COLLECTION, _NAME, batch)
        lead = (1,) * (x.ndim - len(self.shape))
        size = seen.deviation if self.center else jnp.hypot(seen.mean, seen.deviation)
        scale = size / jnp.clip(size, 1 / self.tolerance, self.tolerance)
        most = (self.tolerance - 1) * scale if self.center else jnp.inf
        shift = seen.mean - jnp.clip(seen.mean, -most, most)
        shift, scale = (z.reshape(*lead, *z.shape) for z in (shift, scale))
        # Without statistics, the result may have any scale.
        largest = jnp.where(seen.count > 0, LARGEST * self.tolerance, jnp.inf)
        return jnp.clip((x - shift) / scale, -largest, largest)


def update_normalizers(
    module: nn.Module, variables: Any, *inputs: Any, method: Any = "encode"
) -> Any:
    """Return the variables with the statistics of all normalizers updated by a batch of inputs.

    Args:
      module: the network.
      variables: what its `init` returns: {"params": parameters}.
      *inputs: arguments of `method`.
      method: the method of the module that applies its normalizers; by default as in an `Agent`.
    """
    apply: Any = module.apply
    _, recorded = apply(variables, *inputs, method=method, mutable=[_COLLECTION])
    recorded = recorded.get(_COLLECTION, {})

    def merge_recorded(statistics: Any, path: tuple[str, ...]) -> Any:
        found = functools.reduce(lambda tree, name: tree.get(name, {}), path, recorded)
        moments = functools.reduce(merge, found.get(_NAME, ()), Moments(**statistics))
        return {name: getattr(moments, name) for name in statistics}

    return {**variables, "params": _map_normalizers(merge_recorded, variables["params"])}


def copy_normalizers(params: Any, source: Any) -> Any:
    """Return the parameters with the statistics of another copy of the same network."""

    def of_source(statistics: Any, path: tuple[str, ...]) -> Any:
        return functools.reduce(operator.getitem, path, source)

    return _map_normalizers(of_source, params)


def normalizer_statistics(params: Any) -> dict[str, Array]:
    """Return the statistics of all normalizers by path, `encoder/reward/mean`."""
    found: dict[str, Array] = {}

    def add(statistics: Any, path: tuple[str, ...]) -> Any:
        found.update({"/".join((*path, name)): array for name, array in statistics.items()})

    _map_normalizers(add, params)
    return found


def without_statistics(params: Any) -> Any:
    """Return the parameters without the statistics of normalizers: those that are trained."""
    return _map_normalizers(lambda statistics, path: {}, params)


def _map_normalizers(
    function: Callable[[Any, tuple[str, ...]], Any], params: Any, path: tuple[str, ...] = ()
) -> Any:
    """Apply a function to the statistics of each normalizer, with their path, in place of them."""
    if not isinstance(params, Mapping):
        return params
    if params.keys() == _STATISTICS:
        return function(params, path)
    return {
        name: _map_normalizers(function, child, (*path, name)) for name, child in params.items()
    }
