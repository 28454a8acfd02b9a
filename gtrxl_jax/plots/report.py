"""The plots of a run: learning curves, attention, and recorded episodes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from gtrxl_jax.acting.evaluation import AnyTask, RecordedEpisode, record_episodes, render_episode
from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.envs.extensions import chance_of, renderer_of, require_renderer
from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.plots.attention import plot_attention_map, plot_attention_over_episode
from gtrxl_jax.plots.curves import plot_learning_curves, plot_success_against_horizon
from gtrxl_jax.plots.episodes import save_gif, save_mp4
from gtrxl_jax.plots.updates import plot_updates
from gtrxl_jax.runs.directory import status_of
from gtrxl_jax.runs.logging.writers import read_metrics

RATE_5 = ((150, 360, 600, 900), (1.00, 0.95, 0.90, 0.90))
"""T-Maze lengths, and success after training on 150 steps (RATE, table 3, CA-2)."""


def draw_curves(folder: Path, label: str) -> list[Path]:
    """Draw a run's learning curve (success if reported, else return) and its updates."""
    metrics = read_metrics(folder / "metrics.jsonl")
    name = "episode/success" if "episode/success" in metrics else "episode/return"
    curves = {"training": metrics[name]}
    if (evaluation := name.replace("episode", "evaluation")) in metrics:
        curves["evaluation"] = metrics[evaluation]
    path = folder / "learning_curve.png"
    success = name.endswith("success")
    differ = any(name.startswith("hyperparameter/") for name in metrics)
    plot_learning_curves(
        {f"{label}, {kind}": np.atleast_2d(values.T) for kind, values in curves.items()},
        metrics["step"],
        path,
        y_label="success rate" if success else "return",
        y_limits=(-0.02, 1.02) if success else None,
        middle="" if differ else "median" if success else "IQM",
    )
    if not {"psi/kl", "clip_fraction"} & metrics.keys():
        return [path]
    plot_updates(metrics, folder / "updates.png")
    return [path, folder / "updates.png"]


def draw_offline(folder: Path, runs: Sequence[Path]) -> list[Path]:
    """Draw the losses of offline runs into a folder, and their success by episode length.

    Losses are of the training episodes and, with `data.validation`, of the episodes held out.

    The second figure is drawn only for runs evaluated at several common lengths. For the T-Maze it
    includes the results published for RATE.
    """
    losses, steps, scores = {}, {}, {}
    for run in runs:
        name, metrics = run.name, read_metrics(run / "metrics.jsonl")
        for curve, metric in {name: "loss", f"{name}, held out": "loss/validation"}.items():
            if metric in metrics:
                losses[curve] = np.atleast_2d(metrics[metric].T)
                steps[curve] = metrics["step"]
        status = status_of(run)
        if (result := status.result) is None:
            raise FileNotFoundError(f"{run} has no result ({status}): finish the run first")
        scores[name] = {
            int(key.split("/")[1]): values
            for key, values in result.per_seed.items()
            if key.startswith("success/")
        }
    lengths = sorted(set.intersection(*map(set, scores.values())))
    paths = []
    if losses:  # a custom algorithm may have none
        paths.append(folder / "loss.png")
        label = "loss"
        if not any((values <= 0).any() for values in losses.values()):  # a critic's may be negative
            losses = {curve: np.log10(values) for curve, values in losses.items()}
            label = "log10 of the loss"
        plot_learning_curves(losses, steps, paths[-1], x_label="updates", y_label=label)
    if len(lengths) > 1:
        paths.append(folder / "success_by_length.png")
        env = json.loads((runs[0] / "config.json").read_text("utf-8"))["env"]["name"]
        plot_success_against_horizon(
            {name: np.array([of[n] for n in lengths]).T for name, of in scores.items()},
            lengths,
            paths[-1],
            published={"RATE-5": RATE_5} if env.startswith("TMaze") else None,
            x_label="steps of an episode",
            chance=chance_of(make_env(env)[0]),
        )
    return paths


def draw_episodes(
    folder: Path, policy: Policy, tasks: Sequence[AnyTask], params: Any
) -> list[Path]:
    """Play and draw an episode of each task: attention if the policy has it, and a GIF.

    File names end in `_task_0`, `_task_1`, ... if there are several tasks.
    """
    paths = []
    for k, stream in enumerate(tasks):
        (episode,) = record_episodes(policy, stream, params, seed=0, episodes=1)
        if episode.attention is not None:
            paths += _draw_attention(
                task_path(folder / "attention.png", k, len(tasks)),
                task_path(folder / "attention_over_episode.png", k, len(tasks)),
                episode,
                episode.attention,
            )
        if renderer_of(stream.env) is not None:
            paths.append(task_path(folder / "episode.gif", k, len(tasks)))
            draw_animation(stream, [episode], paths[-1])
    return paths


def draw_animation(stream: AnyTask, episodes: Sequence[RecordedEpisode], path: Path) -> None:
    """Draw episodes one after another, as an MP4 if the file is named so, else as a GIF.

    Of a longer episode, only the first `evaluation.MAX_FRAMES` frames are drawn.

    Raises:
      ValueError: if the environment cannot be drawn.
      ModuleNotFoundError: if MP4 is asked for without the extra "hub".
    """
    renderer = require_renderer(stream.env)
    clips = [clip for e in episodes if (clip := render_episode(stream, e)) is not None]
    ends = np.cumsum([len(clip) for clip in clips]) - 1
    save = save_mp4 if path.suffix == ".mp4" else save_gif
    save(np.concatenate(clips), path, renderer.fps, pauses=ends.tolist())


def task_path(path: Path, task: int, num_tasks: int) -> Path:
    """Return the path of a task: the given one, or `name_task_0.gif` if there are several tasks."""
    return path.with_stem(f"{path.stem}_task_{task}") if num_tasks > 1 else path


def _draw_attention(
    at_decision: Path,
    over_episode: Path,
    episode: RecordedEpisode,
    attention_LHSW: Float[np.ndarray, "L H S W"],
) -> list[Path]:
    decision = episode.decision
    weights_LHTW = attention_LHSW[:, :, : decision + 1]
    window = weights_LHTW.shape[-1]
    # A cue in the last observation is after the decision.
    cue = episode.cue if episode.cue is not None and episode.cue <= decision else None
    distance = None if cue is None else decision - cue
    plot_attention_map(
        weights_LHTW[:, :, -1],
        at_decision,
        cue=distance if distance is not None and distance < window else None,
    )
    plot_attention_over_episode(weights_LHTW, over_episode, cue=cue)
    return [at_decision, over_episode]
