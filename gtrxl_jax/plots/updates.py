"""A plot of an algorithm's updates: how far they move the policy, shares of the losses, entropy."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Shaped
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from gtrxl_jax.plots.style import (
    FONT_SIZE,
    GREY,
    assign_styles,
    new_figure,
    save_figure,
    style_axes,
)


def plot_updates(
    metrics: Mapping[str, Shaped[np.ndarray, "N ..."]], path: str | os.PathLike[str]
) -> None:
    """Draw three panels over the steps of a run, averaged over seeds if there are several.

    First, on a logarithmic axis, how far updates move the policy. With V-MPO: the KL of psi and of
    each part of the policy, divided by its bound; constraints are met where the lines are near 1,
    and learning is slow where they stay far below. With PPO: the KL of each part, and the share of
    steps whose ratio is clipped. Second, the share of each loss in the gradient that enters the
    core. Third, the entropy of the policy.

    Args:
      metrics: of a run trained with V-MPO or PPO: "step" `[N]`, and `kl/P`, `share/...` and
        `entropy`, `[N]` or `[N, S]`; and with V-MPO `psi/kl` and `bound/P`, with PPO
        `clip_fraction`.
      path: the PNG file to write.

    Raises:
      ValueError: if the metrics are not from V-MPO or PPO.
    """
    of_vmpo = "psi/kl" in metrics
    parts = {name.removeprefix("kl/"): name for name in metrics if name.startswith("kl/")}
    needed = {"step", "entropy", *([] if of_vmpo else ["clip_fraction"])}
    if of_vmpo:
        parts = {"psi": "psi/kl"} | parts
        needed |= {f"bound/{part}" for part in parts}
    if missing := sorted(needed - metrics.keys()):
        raise ValueError(
            f"the metrics have no {missing}: pass the metrics of a run of V-MPO or PPO"
        )
    step_N = np.asarray(metrics["step"], np.float64)

    def seeds(name: str) -> np.ndarray:
        return np.asarray(metrics[name], np.float64).reshape(len(step_N), -1)

    def mean(x_NS: np.ndarray) -> np.ndarray:
        """Return the mean over the seeds that have not diverged."""
        count_N = np.sum(~np.isnan(x_NS), axis=1)
        return np.where(count_N, np.nansum(x_NS, axis=1), np.nan) / np.maximum(count_N, 1)

    def curve(name: str) -> np.ndarray:
        return mean(seeds(name))

    figure = new_figure(6.5, 5.6)
    moves, shares, entropy = figure.subplots(3, 1, sharex=True)
    if of_vmpo:
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios: dict[str, Any] = {
                part: mean(seeds(name) / seeds(f"bound/{part}")) for part, name in parts.items()
            }
        _draw(moves, step_N, ratios)
        moves.axhline(1, color=GREY, linestyle=(0, (4, 3)), linewidth=1.0)
        moves.set_ylabel("KL / its bound")
    else:
        kls = {f"KL, {part}": curve(name) for part, name in parts.items()}
        _draw(moves, step_N, kls | {"clipped": curve("clip_fraction")})
        moves.set_ylabel("KL, share clipped")
    moves.set_yscale("log", nonpositive="mask")  # no step may have been clipped
    prefix = "share/"
    _draw(
        shares,
        step_N,
        {n.removeprefix(prefix): curve(n) for n in metrics if n.startswith(prefix)},
    )
    shares.set_ylim(-0.02, 1.02)
    shares.set_ylabel("share of the gradient")
    _draw(entropy, step_N, {"policy": curve("entropy")})
    entropy.set_ylabel("entropy, nats")
    entropy.set_xlabel("environment steps")
    entropy.xaxis.set_major_formatter(EngFormatter(sep=""))
    save_figure(figure, path)


def _draw(axes: Axes, step_N: np.ndarray, curves: Mapping[str, np.ndarray]) -> None:
    for label, look in assign_styles(curves):
        axes.plot(
            step_N,
            curves[label],
            **look | {"marker": "."},
            linewidth=1.2,
            markersize=2.5,
            label=label,
        )
    style_axes(axes)
    axes.margins(x=0.01)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=FONT_SIZE - 1)
