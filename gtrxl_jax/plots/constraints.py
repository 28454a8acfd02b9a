"""A plot of V-MPO's updates: KLs relative to their bounds, shares of the losses, entropy."""

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
    looks,
    new_figure,
    save_figure,
    style_axes,
)


def constraints(
    metrics: Mapping[str, Shaped[np.ndarray, "N ..."]], path: str | os.PathLike[str]
) -> None:
    """Draw three panels over the steps of a run, averaged over seeds if there are several.

    First, the KL of psi and of each part of the policy divided by its bound, on a logarithmic axis:
    constraints are met where the lines are near 1, and learning is slow where they stay far below.
    Second, the share of each loss in the gradient that enters the core. Third, the entropy of the
    policy.

    Args:
      metrics: of a run trained with V-MPO: "step" `[N]`, and `psi/kl`, `kl/P`, `bound/P`,
        `share/...` and `entropy`, `[N]` or `[N, S]`.
      path: the PNG file to write.

    Raises:
      ValueError: if the metrics are not those of V-MPO.
    """
    bounded = {"psi": "psi/kl"} | {
        name.removeprefix("kl/"): name for name in metrics if name.startswith("kl/")
    }
    needed = {"step", "entropy", *bounded.values(), *(f"bound/{part}" for part in bounded)}
    if missing := sorted(needed - metrics.keys()):
        raise ValueError(f"the metrics have no {missing}: pass those of a run trained with V-MPO")
    step_N = np.asarray(metrics["step"], np.float64)

    def curve(name: str) -> np.ndarray:
        return np.asarray(metrics[name], np.float64).reshape(len(step_N), -1).mean(axis=1)

    figure = new_figure(6.5, 5.6)
    kls, shares, entropy = figure.subplots(3, 1, sharex=True)
    with np.errstate(divide="ignore"):
        ratios: dict[str, Any] = {
            part: curve(name) / curve(f"bound/{part}") for part, name in bounded.items()
        }
    _draw(kls, step_N, ratios)
    kls.set_yscale("log")
    kls.axhline(1, color=GREY, linestyle=(0, (4, 3)), linewidth=1.0)
    kls.set_ylabel("KL / its bound")
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
    for label, look in looks(curves):
        axes.plot(step_N, curves[label], **look | {"marker": ""}, linewidth=1.2, label=label)
    style_axes(axes)
    axes.margins(x=0.01)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=FONT_SIZE - 1)
