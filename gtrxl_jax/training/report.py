"""The pictures of a run: how it learned, what it attends to, how it plays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.nn.agent import Agent
from gtrxl_jax.pictures.attention import attention_map, attention_over_episode
from gtrxl_jax.pictures.curves import learning_curves
from gtrxl_jax.pictures.episodes import save_gif
from gtrxl_jax.training.evaluation import RecordedEpisode, record_episode, render_episode
from gtrxl_jax.training.metrics import read_metrics


def draw_curves(folder: Path, label: str) -> list[Path]:
    """Draw the learning curve of a run: success where the environment tells, else the return."""
    metrics = read_metrics(folder / "metrics.jsonl")
    name = "episode/success" if "episode/success" in metrics else "episode/return"
    curves = {"training": metrics[name]}
    if (evaluation := name.replace("episode", "evaluation")) in metrics:
        curves["evaluation"] = metrics[evaluation]
    path = folder / "learning_curve.png"
    success = name.endswith("success")
    learning_curves(
        {f"{label}, {kind}": np.atleast_2d(values.T) for kind, values in curves.items()},
        metrics["step"],
        path,
        y_label="success rate" if success else "return",
        y_limits=(-0.02, 1.02) if success else None,
    )
    return [path]


def draw_episodes(
    folder: Path, agent: Agent, tasks: Sequence[Stream], network: Any, policy: str
) -> list[Path]:
    """Play and draw one episode of each task: attention where the core has it, a GIF of `render`.

    The names of the files end in `_task_0`, `_task_1`, ... if there are several tasks.
    """
    paths = []
    for k, stream in enumerate(tasks):
        suffix = f"_task_{k}" if len(tasks) > 1 else ""
        episode = record_episode(agent, stream, network, jax.random.key(0), policy)
        if episode.attention is not None:
            paths += _draw_attention(folder, suffix, episode, episode.attention)
        if (frames := render_episode(stream, episode)) is not None:
            paths.append(folder / f"episode{suffix}.gif")
            save_gif(frames, paths[-1])
    return paths


def _draw_attention(
    folder: Path,
    suffix: str,
    episode: RecordedEpisode,
    attention_LHSW: Float[np.ndarray, "L H S W"],
) -> list[Path]:
    decision = episode.decision
    weights_LHTW = attention_LHSW[:, :, : decision + 1]
    window = weights_LHTW.shape[-1]
    at_decision = folder / f"attention{suffix}.png"
    over_episode = folder / f"attention_over_episode{suffix}.png"
    distance = None if episode.cue is None else decision - episode.cue
    attention_map(
        weights_LHTW[:, :, -1],
        at_decision,
        cue=distance if distance is not None and distance < window else None,
    )
    attention_over_episode(weights_LHTW, over_episode, cue=episode.cue)
    return [at_decision, over_episode]
