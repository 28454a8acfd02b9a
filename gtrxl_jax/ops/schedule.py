"""Schedules of the learning rate and the entropy bonus."""

import numpy as np
import optax


def warmup_and_decay(peak: float, warmup: float, final: float, updates: int) -> optax.Schedule:
    """Return a linear warmup followed by a linear decay.

    Args:
      peak: the rate between the two.
      warmup: fraction of the updates in the warmup, whose first update already has a nonzero rate.
      final: fraction of the peak that remains at the end.
      updates: number of updates of the run.
    """
    # Steps are counted in 32 bits, further than which no run gets.
    updates = min(updates, np.iinfo(np.int32).max)
    rising = round(warmup * updates)
    return optax.join_schedules(
        [
            optax.linear_schedule(peak / max(rising, 1), peak, rising),
            optax.linear_schedule(peak, peak * final, max(updates - rising, 1)),
        ],
        [rising],
    )
