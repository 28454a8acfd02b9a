"""PopArt: adaptive normalisation of value targets, one scale for each task.

van Hasselt et al. 2016, "Learning values across many orders of magnitude"; Hessel et al. 2019,
"Multi-task deep reinforcement learning with PopArt". The network's value head has N outputs, one
for each task, in normalised units: V = scale * output + mean. A learner's step is then (van Hasselt
et al. 2016, algorithm 1)

  1. select the task's output, `unnormalise` it, and compute the returns G in the reward's units;
  2. `update` the statistics with G, and `rescale_head` of the online and of the target network,
     which leaves every V as it was (but for the first of a task, see `conversion`);
  3. `normalise` G and V with the new statistics; the value loss compares them, and their difference
     is the advantage (G - V) / scale.

Arrays are those of the global batch: under `jax.jit` a sharded batch needs nothing else.
"""

import chex
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

SCALE_BOUNDS = (1e-2, 1e6)


@struct.dataclass
class PopArtStatistics:
    """Moving statistics of the returns of N tasks, in the reward's units.

    The papers keep the second moment; the variance kept here says the same, and survives float32
    where the mean is large against the spread.

    Attributes:
      mean_N: the mean.
      variance_N: the variance, before the bounds of the scale.
      weight_N: the weight of all samples so far, in [0, 1]: what the initial values would have is
        1 - weight_N, and is left out, so that the first batch is normalised by its own statistics
        whatever the rate (as Adam corrects its moments).
    """

    mean_N: Float[Array, " N"]
    variance_N: Float[Array, " N"]
    weight_N: Float[Array, " N"]

    @property
    def scale_N(self) -> Float[Array, " N"]:
        """The standard deviation, kept within `SCALE_BOUNDS`."""
        low, high = SCALE_BOUNDS
        return jnp.sqrt(jnp.clip(self.variance_N, low**2, high**2))


def init(num_tasks: int) -> PopArtStatistics:
    """Return statistics that normalise nothing: mean 0 and variance 1 for each task."""
    zeros_N = jnp.zeros(num_tasks)
    return PopArtStatistics(mean_N=zeros_N, variance_N=jnp.ones(num_tasks), weight_N=zeros_N)


def update(
    statistics: PopArtStatistics,
    returns_BT: Float[Array, "B T"],
    task_BT: Int[Array, "B T"],
    mask_BT: Bool[Array, "B T"],
    rate: float | Float[Array, ""],
) -> PopArtStatistics:
    """Move the statistics of every task towards those of its samples in the global batch.

    `rate` is that of one sample, as in the papers, so the horizon (1 / rate samples) does not
    depend on the batch's size: n samples of a task have the weight w = 1 - (1 - rate)^n together.
    With W the weight of all samples before,

        W'             = (1 - w) W + w
        mean'          = mean          + w / W' (mean of the n returns - mean)
        second moment' = second moment + w / W' (mean of their squares - second moment)

    For W = 1 and to first order in n * rate that is the sum of n single updates; unlike that sum it
    cannot overshoot when n * rate > 1. A task without valid samples keeps its statistics.

    Args:
      statistics: those of the N tasks.
      returns_BT: G in the reward's units.
      task_BT: the index of the task, 0 .. N - 1.
      mask_BT: False where G is not a transition's return.
      rate: the weight of one sample, in (0, 1).
    """
    chex.assert_rank([returns_BT, task_BT, mask_BT], 2)
    chex.assert_equal_shape([returns_BT, task_BT, mask_BT])
    returns_BT = jax.lax.stop_gradient(returns_BT)
    dtype = returns_BT.dtype
    one_hot_BTN = jax.nn.one_hot(task_BT, statistics.mean_N.shape[0], dtype=bool)
    member_BTN = one_hot_BTN & mask_BT[..., None]
    count_N = jnp.sum(member_BTN, axis=(0, 1), dtype=dtype)
    at_least_one_N = jnp.maximum(count_N, 1)
    # Measured from the present mean, so that nothing cancels where the mean is far from zero.
    offset_BTN = jnp.where(member_BTN, returns_BT[..., None] - statistics.mean_N[None, None], 0)
    shift_N = jnp.sum(offset_BTN, axis=(0, 1)) / at_least_one_N
    residual_BTN = jnp.where(member_BTN, offset_BTN - shift_N[None, None], 0)
    batch_variance_N = jnp.sum(jnp.square(residual_BTN), axis=(0, 1)) / at_least_one_N
    batch_weight_N = -jnp.expm1(count_N * jnp.log1p(-rate))
    weight_N = (1 - batch_weight_N) * statistics.weight_N + batch_weight_N
    share_N = batch_weight_N / jnp.where(weight_N > 0, weight_N, 1)
    between_N = share_N * (1 - share_N) * jnp.square(shift_N)
    return PopArtStatistics(
        mean_N=statistics.mean_N + share_N * shift_N,
        variance_N=(1 - share_N) * statistics.variance_N + share_N * batch_variance_N + between_N,
        weight_N=weight_N,
    )


def normalise(
    statistics: PopArtStatistics, x_BT: Float[Array, "B T"], task_BT: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """Return (x - mean) / scale of each element's task."""
    chex.assert_equal_shape([x_BT, task_BT])
    return (x_BT - statistics.mean_N[task_BT]) / statistics.scale_N[task_BT]


def unnormalise(
    statistics: PopArtStatistics, x_BT: Float[Array, "B T"], task_BT: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """Return scale * x + mean of each element's task; the inverse of `normalise`."""
    chex.assert_equal_shape([x_BT, task_BT])
    return statistics.scale_N[task_BT] * x_BT + statistics.mean_N[task_BT]


def conversion(
    old: PopArtStatistics, new: PopArtStatistics
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """Return the factor and the shift that bring outputs in old units to the same V in new ones.

    They are 1 and 0 for a task without samples before: a head that has learned nothing yet is taken
    to be in the units of the first statistics. Were its V kept, returns of hundreds would shrink it
    to where hardly a gradient passes through it, and returns of a hundredth blow it up.
    """
    known_N = old.weight_N > 0
    shift_N = (old.mean_N - new.mean_N) / new.scale_N
    return jnp.where(known_N, old.scale_N / new.scale_N, 1), jnp.where(known_N, shift_N, 0)


def rescale_head(
    kernel_DN: Float[Array, "D N"],
    bias_N: Float[Array, " N"],
    old: PopArtStatistics,
    new: PopArtStatistics,
) -> tuple[Float[Array, "D N"], Float[Array, " N"]]:
    """Return the head whose un-normalised output under `new` is the present one's under `old`.

    But for a task without samples before, whose head stays as it is, see `conversion`.

    Args:
      kernel_DN: weights of the linear value head, from D features to N tasks.
      bias_N: its bias.
      old: statistics that the head was made for.
      new: statistics that it will be used with.
    """
    chex.assert_rank(kernel_DN, 2)
    chex.assert_shape(bias_N, kernel_DN.shape[1:])
    factor_N, shift_N = conversion(old, new)
    return kernel_DN * factor_N[None], bias_N * factor_N + shift_N
