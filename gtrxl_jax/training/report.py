"""The pictures of a run: how it learned, what it attends to, how it plays."""

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
from gtrxl_jax.training.evaluation import RecordedEpisode, record_episode
from gtrxl_jax.training.metrics import read_metrics

MAX_FRAMES = 500


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


def draw_episode(
    folder: Path, agent: Agent, stream: Stream, params: Any, policy: str
) -> list[Path]:
    """Play one episode and draw it: attention where the core has it, a GIF where `render` is."""
    episode = record_episode(agent, stream, params, jax.random.key(0), policy)
    paths = []
    if episode.attention is not None:
        paths += _draw_attention(folder, episode, episode.attention)
    if hasattr(stream.env, "render"):
        steps = len(episode.timesteps.first)
        frames = [
            stream.env.render(jax.tree.map(lambda x, t=t: x[t], episode.states), stream.params)
            for t in range(min(steps, MAX_FRAMES))
        ]
        paths.append(folder / "episode.gif")
        save_gif(np.stack(frames), paths[-1])
    return paths


def _draw_attention(
    folder: Path, episode: RecordedEpisode, attention_LHSW: Float[np.ndarray, "L H S W"]
) -> list[Path]:
    # The last step at which the agent acts; the final observation comes after it.
    decision = len(episode.timesteps.first) - 2
    weights_LHTW = attention_LHSW[:, :, : decision + 1]
    window = weights_LHTW.shape[-1]
    at_decision, over_episode = folder / "attention.png", folder / "attention_over_episode.png"
    distance = None if episode.cue is None else decision - episode.cue
    attention_map(
        weights_LHTW[:, :, -1],
        at_decision,
        cue=distance if distance is not None and distance < window else None,
    )
    attention_over_episode(weights_LHTW, over_episode, cue=episode.cue)
    return [at_decision, over_episode]
