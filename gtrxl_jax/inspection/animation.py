"""An episode beside what the agent attends to, as an animation."""

import os
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gtrxl_jax.inspection.episode import InspectedEpisode
from gtrxl_jax.plots.episodes import save_gif

_GROUND, _PANEL, _INK, _QUIET = "#14171c", "#262c35", "#e8eaed", "#99a1ab"
_ATTENTION, _INFLUENCE, _FUTURE = "#6cb6ff", "#ffab57", "#191d23"
_STEPS_PER_SECOND = 1.7
_MARGIN, _LEFT, _WIDTH = 0.03, 0.53, 0.44
"""The margin, and the place of the past steps, as shares of the width."""


def save_memory_gif(episode: InspectedEpisode, path: str | os.PathLike[str]) -> None:
    """Write an episode's frames as a GIF, beside the attention of each head to the past steps.

    The past step that is attended to most, by the mean of the last layer's heads, is shown too.

    Raises:
      ValueError: if the environment cannot be drawn, or the agent has no attention.
    """
    if episode.frames is None:
        raise ValueError(f"{episode.environment} cannot be drawn: give it a method render")
    if episode.attention is None:
        raise ValueError(f"core {episode.agent} has no attention: use --to with a name in .html")
    drawn = np.stack([_draw(episode, step) for step in range(episode.num_actions)])
    # The last action is shown for a while.
    save_gif(np.concatenate([drawn, drawn[[-1, -1]]]), path, _STEPS_PER_SECOND)


def _draw(episode: InspectedEpisode, step: int) -> UInt8[np.ndarray, "Y X 3"]:
    figure = Figure(figsize=(7.2, 3.5), dpi=100, facecolor=_GROUND)
    canvas = FigureCanvasAgg(figure)
    frames: Any = episode.frames
    square = 3.5 / 7.2  # the width of a square, as a share of the figure's, for a height of 1

    def write(x: float, y: float, text: str, color: str = _QUIET, **settings: Any) -> None:
        figure.text(x, y, text, **{"color": color, "fontsize": 9, "va": "center", **settings})

    def show(at_step: int, left: float, bottom: float, height: float, color: str) -> None:
        axes = figure.add_axes((left, bottom, height * square, height))
        axes.imshow(frames[at_step], interpolation="antialiased")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(color=color, linewidth=1.5)

    write(_MARGIN, 0.93, "now", _INK)
    write(_MARGIN + 0.8 * square, 0.93, f"step {step}", ha="right")
    show(step, _MARGIN, 0.065, 0.8, _PANEL)

    heads_LHT = _attention(episode, step)
    strips = []
    if episode.influence is not None:
        strips.append(("decision", _INFLUENCE, _influence(episode.influence, step)[None]))
    strips += [(f"layer {k + 1}", _ATTENTION, heads) for k, heads in enumerate(heads_LHT)][::-1]
    cell = min(0.036, 0.4 / sum(len(weights) for *_, weights in strips))
    bottom = 0.065
    for label, color, weights_RT in strips:
        height = cell * len(weights_RT)
        axes = figure.add_axes((_LEFT, bottom, _WIDTH, height), facecolor=_GROUND)
        _draw_weights(axes, weights_RT, episode.num_actions, color)
        write(_LEFT - 0.012, bottom + height / 2, label, ha="right", fontsize=8)
        bottom += height + 0.022

    write(_LEFT, 0.93, "looks back at", _INK)
    past_T = heads_LHT[-1].mean(axis=0)[:step]
    if step and not past_T.any():  # of models of segments, at the first step of one
        write(_LEFT + _WIDTH, 0.93, "nothing of the past", ha="right")
    elif step:
        most = int(past_T.argmax())
        write(_LEFT + _WIDTH, 0.93, f"step {most}, {_count(step - most, 'step')} ago", ha="right")
        bottom += 0.05
        column = _LEFT + _WIDTH * (most + 0.5) / episode.num_actions
        side = 0.865 - bottom
        left = np.clip(column - side * square / 2, _LEFT, _LEFT + _WIDTH - side * square)
        show(most, float(left), bottom, side, _ATTENTION)
        figure.add_artist(
            Line2D(
                [column, column],
                [bottom - 0.062, bottom],
                color=_ATTENTION,
                linewidth=1.5,
                transform=figure.transFigure,
            )
        )
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _draw_weights(
    axes: Axes, weights_RT: Float[np.ndarray, "R T"], num_steps: int, color: str
) -> None:
    """Draw rows of weights on the steps up to the present one; colors scale with their roots."""
    rows, steps = weights_RT.shape
    roots = np.full((rows, num_steps), np.nan)
    roots[:, :steps] = np.sqrt(weights_RT)
    scale = LinearSegmentedColormap.from_list("", [_PANEL, color]).with_extremes(bad=_FUTURE)
    axes.pcolormesh(roots, cmap=scale, vmin=0, vmax=1, edgecolors=_GROUND, linewidth=1)
    axes.set(ylim=(rows, 0), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _attention(episode: InspectedEpisode, step: int) -> Float[np.ndarray, "L H T"]:
    """Return the weights of a step on the steps up to it."""
    attention: Any = episode.attention
    seen = min(step + 1, attention.shape[-1])
    return np.pad(attention[:, :, step, -seen:], [(0, 0), (0, 0), (step + 1 - seen, 0)])


def _influence(influence_TT: Float[np.ndarray, "T T"], step: int) -> Float[np.ndarray, " _"]:
    """Return how much the action depends on the steps up to it, relative to the largest."""
    return influence_TT[step, : step + 1] / max(influence_TT[step].max(), 1e-9)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
