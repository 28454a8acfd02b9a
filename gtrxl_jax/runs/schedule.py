"""How the learning rate goes over a run."""

import optax


def warmup_and_decay(peak: float, warmup: float, final: float, updates: int) -> optax.Schedule:
    """A linear rise, then a linear decay.

    Args:
      peak: the rate in between.
      warmup: share of the updates that the rise takes; its first has a rate already.
      final: share of the peak that is left at the end.
      updates: of the run.
    """
    rising = round(warmup * updates)
    return optax.join_schedules(
        [
            optax.linear_schedule(peak / max(rising, 1), peak, rising),
            optax.linear_schedule(peak, peak * final, max(updates - rising, 1)),
        ],
        [rising],
    )
