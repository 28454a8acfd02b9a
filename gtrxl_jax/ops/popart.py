"""PopArt: adaptive normalization of value targets, with one scale per task.

van Hasselt et al. 2016, "Learning values across many orders of magnitude"; Hessel et al. 2019,
"Multi-task deep reinforcement learning with PopArt". The network's value head has N outputs, one
per task, in normalized units: V = scale * output + mean. A learner step is then (van Hasselt et al.
2016, algorithm 1)

  1. select the task's output, `unnormalize` it, and compute the returns G in the reward's units;
  2. `update` the statistics with G and `rescale_head` of the online and of the target network,
     which preserves every V (except before a task's first statistics, see `conversion`);
  3. `normalize` G and V with the new statistics; the value loss compares them, and their difference
     is the advantage (G - V) / scale.

Arrays hold the global batch: under `jax.jit` a sharded batch needs no special handling.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

MIN_SCALE = 1e-2
"""The least scale of returns, relative to the range of a task's rewards and to the mean return.
While hardly any reward has been seen, the few returns that differ are not blown up; and where all
returns are the same, since the task is solved, the value head is not, whose gradient would leave
nothing of the policy's. The papers bound the scale by 1e-4 and 1e6 in the units of the rewards, on
which learning would then depend."""


@struct.dataclass
class PopArtStatistics:
    """Moving statistics of the returns of N tasks, in the reward's units; also of several seeds.

    The papers track the second moment; the variance tracked here is equivalent and stays accurate
    in float32 if the mean is large compared to the spread.

    Attributes:
      mean_N: the mean.
      variance_N: the variance, before the bounds of the scale.
      range_N2: the lowest and the highest reward so far.
      weight_N: the total weight of all samples so far, in [0, 1]. The initial values, whose weight
        would be 1 - weight_N, are left out, so that the first batch is normalized by its own
        statistics at any rate (like the bias correction of Adam).
    """

    mean_N: Float[Array, " N"]
    variance_N: Float[Array, " N"]
    weight_N: Float[Array, " N"]
    range_N2: Float[Array, "N 2"]

    @property
    def scale_N(self) -> Float[Array, "*S N"]:
        """The standard deviation, at least `MIN_SCALE` of rewards and mean; 1 if all are 0."""
        low_N, high_N = self.range_N2[..., 0], self.range_N2[..., 1]
        range_N = jnp.where(high_N > low_N, high_N - low_N, 0)
        floor_N = MIN_SCALE * jnp.maximum(range_N, jnp.abs(self.mean_N))
        scale_N = jnp.maximum(jnp.sqrt(self.variance_N), floor_N)
        return jnp.where(scale_N > 0, scale_N, 1)


def init(num_tasks: int) -> PopArtStatistics:
    """Return statistics of the identity normalization: mean 0 and variance 1 for each task."""
    zeros_N = jnp.zeros(num_tasks)
    empty_N2 = jnp.broadcast_to(jnp.array([jnp.inf, -jnp.inf]), (num_tasks, 2))
    return PopArtStatistics(zeros_N, jnp.ones(num_tasks), zeros_N, empty_N2)


def update_range(
    statistics: PopArtStatistics,
    reward_BT: Float[Array, "B T"],
    task_BT: Int[Array, "B T"],
    mask_BT: Bool[Array, "B T"],
) -> PopArtStatistics:
    """Widen the range of every task's rewards to the rewards of transitions."""
    one_hot_BTN = jax.nn.one_hot(task_BT, statistics.mean_N.shape[0], dtype=bool)
    member_BTN, reward_BT1 = one_hot_BTN & mask_BT[..., None], reward_BT[..., None]
    low_N, high_N = statistics.range_N2.T
    low_N = jnp.minimum(low_N, jnp.min(jnp.where(member_BTN, reward_BT1, jnp.inf), (0, 1)))
    high_N = jnp.maximum(high_N, jnp.max(jnp.where(member_BTN, reward_BT1, -jnp.inf), (0, 1)))
    return dataclasses.replace(statistics, range_N2=jnp.stack([low_N, high_N], axis=-1))


def update(
    statistics: PopArtStatistics,
    returns_BT: Float[Array, "B T"],
    task_BT: Int[Array, "B T"],
    mask_BT: Bool[Array, "B T"],
    rate: float | Float[Array, ""],
) -> PopArtStatistics:
    """Move the statistics of every task towards the statistics of its samples in the global batch.

    `rate` is the weight of one sample, as in the papers, so the horizon (1 / rate samples) does not
    depend on the batch size: n samples of a task have the total weight w = 1 - (1 - rate)^n. With W
    the weight of all previous samples,

        W'             = (1 - w) W + w
        mean'          = mean          + w / W' (mean of the n returns - mean)
        second moment' = second moment + w / W' (mean of their squares - second moment)

    For W = 1 this equals the sum of n single updates to first order in n * rate, but it cannot
    overshoot when n * rate > 1. A task without valid samples keeps its statistics.

    Args:
      statistics: the statistics of the N tasks.
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
    # Relative to the current mean, to avoid cancellation if the mean is far from zero.
    offset_BTN = jnp.where(member_BTN, returns_BT[..., None] - statistics.mean_N[None, None], 0)
    shift_N = jnp.sum(offset_BTN, axis=(0, 1)) / at_least_one_N
    residual_BTN = jnp.where(member_BTN, offset_BTN - shift_N[None, None], 0)
    batch_variance_N = jnp.sum(jnp.square(residual_BTN), axis=(0, 1)) / at_least_one_N
    batch_weight_N = -jnp.expm1(count_N * jnp.log1p(-rate))
    weight_N = (1 - batch_weight_N) * statistics.weight_N + batch_weight_N
    share_N = batch_weight_N / jnp.where(weight_N > 0, weight_N, 1)
    between_N = share_N * (1 - share_N) * jnp.square(shift_N)
    return dataclasses.replace(
        statistics,
        mean_N=statistics.mean_N + share_N * shift_N,
        variance_N=(1 - share_N) * statistics.variance_N + share_N * batch_variance_N + between_N,
        weight_N=weight_N,
    )


def normalize(
    statistics: PopArtStatistics, x_BT: Float[Array, "B T"], task_BT: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """Return (x - mean) / scale with the statistics of each element's task."""
    chex.assert_equal_shape([x_BT, task_BT])
    return (x_BT - statistics.mean_N[task_BT]) / statistics.scale_N[task_BT]


def unnormalize(
    statistics: PopArtStatistics, x_BT: Float[Array, "B T"], task_BT: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """Return scale * x + mean with the statistics of each element's task; inverts `normalize`."""
    chex.assert_equal_shape([x_BT, task_BT])
    return statistics.scale_N[task_BT] * x_BT + statistics.mean_N[task_BT]


def clip_to_possible(
    statistics: PopArtStatistics,
    value_BT: Float[Array, "B T"],
    task_BT: Int[Array, "B T"],
    gamma: float | Float[Array, ""],
) -> Float[Array, "B T"]:
    """Clip values to the discounted returns that the rewards so far allow.

    With rewards of r_low to r_high, and an end at any time, these are

        min(r_low, 0) / (1 - gamma)   to   max(r_high, 0) / (1 - gamma)

    The value of the observation at which an episode is truncated is bootstrapped from, but never
    regressed to anything. If it exceeds those of the steps before it, they follow, it exceeds them
    again, and since the network's outputs are in units of the scale of such returns, which grows
    with them, nothing else ends this.
    """
    horizon = 1 / jnp.maximum(1 - gamma, jnp.finfo(value_BT.dtype).tiny)
    low_N, high_N = statistics.range_N2.T
    low_N, high_N = jnp.minimum(low_N, 0) * horizon, jnp.maximum(high_N, 0) * horizon
    return jnp.clip(value_BT, low_N[task_BT], high_N[task_BT])


def conversion(
    old: PopArtStatistics, new: PopArtStatistics
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """Return the factor and the shift that convert outputs from old to new units, preserving V.

    They are 1 and 0 for a task without previous samples: a head that has learned nothing yet is
    taken to be in the units of the first statistics. If its V were preserved instead, returns of
    hundreds would shrink the head until hardly any gradient passes through it, and returns of a
    hundredth would blow it up.
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
    """Return the head whose un-normalized output under `new` equals the given one's under `old`.

    The head of a task without previous samples is not changed, see `conversion`.

    Args:
      kernel_DN: weights of the linear value head, from D features to N tasks.
      bias_N: bias of the value head.
      old: statistics that the head was made for.
      new: statistics that the head will be used with.
    """
    chex.assert_rank(kernel_DN, 2)
    chex.assert_shape(bias_N, kernel_DN.shape[1:])
    factor_N, shift_N = conversion(old, new)
    return kernel_DN * factor_N[None], bias_N * factor_N + shift_N
