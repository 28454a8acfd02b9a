"""Export a trained agent: its parameters, config and model card, without the rest of its run.

export("runs/mine", "cartpole")  # then gtrxl_jax.load("cartpole")
push("runs/mine", "me/cartpole")  # then gtrxl_jax.load("hf://me/cartpole")
"""

import importlib.util
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from gtrxl_jax.acting.evaluation import record_episodes
from gtrxl_jax.acting.stepping import export_step
from gtrxl_jax.envs.extensions import renderer_of, restricts_actions
from gtrxl_jax.extras import install_command
from gtrxl_jax.loading import Loaded, load
from gtrxl_jax.plots.episodes import can_save_mp4
from gtrxl_jax.plots.report import draw_animation
from gtrxl_jax.runs import hub
from gtrxl_jax.runs.addresses import local_folder
from gtrxl_jax.runs.card import CARD, set_card_address, write_card
from gtrxl_jax.runs.directory import Folder, is_export, params_path, read_config, status_of
from gtrxl_jax.runs.params import write_params
from gtrxl_jax.runs.results import read_record


def export(
    folder: Folder,
    to: Folder,
    *,
    seed: int | None = None,
    best: bool = False,
    stablehlo: bool = False,
) -> None:
    """Export the trained agent of a run to a new folder, see `gtrxl_jax.runs.params`.

    Args:
      folder: the folder of the run, which has ended; or of an export, or its address, to copy it.
      to: the new folder, which appears once it is complete.
      seed: the seed to export, as numbered in the run; by default its first.
      best: whether to export the best checkpoint instead of the newest.
      stablehlo: whether to write `step.stablehlo` too, see `acting.stepping.export_step`.

    Raises:
      FileExistsError: if the new folder exists.
      FileNotFoundError, UnusableError: see `load`.
      ValueError: if the run has not ended, or has no such seed, or the seed diverged; see also
        `load`.
      ModuleNotFoundError: if `stablehlo` is set and the extra "export" is not installed.
    """
    folder, to = local_folder(folder), Path(to)
    if to.exists():
        raise FileExistsError(f"{to} exists already: choose another folder")
    if stablehlo and importlib.util.find_spec("flatbuffers") is None:  # jax.export imports it
        raise ModuleNotFoundError(f"stablehlo requires flatbuffers: {install_command('export')}")
    loaded = load(folder, best=best)
    seeds = range(loaded.config.seed, loaded.config.seed + loaded.config.num_seeds)
    seed = seeds[0] if seed is None else seed
    if seed not in seeds:
        raise ValueError(f"{folder} has seeds {seeds[0]} to {seeds[-1]}: choose one, not {seed}")
    params = loaded.params_per_seed[seed - seeds[0]]
    config = read_config(folder) | {"seed": seed, "num_seeds": 1}
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{to.name}-") as temporary:
        new = Path(temporary, to.name)
        new.mkdir()
        if is_export(folder):
            (new / CARD).write_bytes(Path(folder, CARD).read_bytes())
        else:
            trainer, record = loaded.trainer, _record(folder, loaded, seed)
            write_card(new, trainer.title, config, record, params, trainer.notes)
        units = loaded.value_units[seed - seeds[0]]
        write_params(params_path(new), params, loaded.step, units)
        (new / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        if stablehlo:
            trainer = loaded.trainer
            step = export_step(
                loaded.policy,
                params,
                trainer.observation_space,
                trainer.action_space,
                masked=loaded.policy.reads_legal
                and any(restricts_actions(stream.env) for stream in trainer.tasks),
            )
            (new / "step.stablehlo").write_bytes(step.serialize())
        os.rename(new, to)


def push(
    folder: Folder,
    repository: str,
    *,
    seed: int | None = None,
    best: bool = False,
    private: bool = False,
) -> str:
    """Export the trained agent of a run to the Hugging Face hub.

    Beside the export, there is a replay of an episode, of at most 1,000 frames, where the
    environment can be drawn: replay.mp4, or replay.gif if the encoder of MP4 is not installed.

    Args:
      folder: the folder of the run, or of an export, or its address.
      repository: "owner/name", created if missing.
      seed: see `export`.
      best: see `export`.
      private: whether a new repository is private.

    Returns:
      The address of the commit.

    Raises:
      ConnectionError, PermissionError: see `runs.hub.upload`; see also `export`.
    """
    hub.require_token(repository)
    with tempfile.TemporaryDirectory() as temporary:
        to = Path(temporary, repository.rpartition("/")[2])
        export(folder, to, seed=seed, best=best)
        set_card_address(to, f"hf://{repository}")
        loaded = load(to)
        for stream in loaded.tasks[:1]:
            if renderer_of(stream.env) is not None:
                episodes = record_episodes(loaded.policy, stream, loaded.params, 0, 1)
                draw_animation(
                    stream, episodes, to / f"replay.{'mp4' if can_save_mp4() else 'gif'}"
                )
        return hub.upload(to, repository, private=private)


def _record(folder: Folder, loaded: Loaded, seed: int) -> dict[str, Any]:
    """Return the result of a run, see `runs.results.record_of`, for one of its seeds."""
    status, record = status_of(folder), read_record(folder)
    if status.result is None or record is None:
        raise ValueError(
            f"{folder} has not ended ({status}): finish the run with the same command and --folder "
            f"{folder}"
        )
    index = seed - record["seeds"][0]
    if any(one["seed"] == seed for one in record["diverged"]):
        raise ValueError(f"seed {seed} of {folder} diverged: export another")
    if loaded.step != record["steps"]:
        record["checkpoint"] = loaded.step
    if len(record["seeds"]) == 1:
        return record
    return record | {
        "seeds": [seed],
        "num_diverged": 0,
        "sampled": {name: [values[index]] for name, values in record["sampled"].items()},
        "evaluation": {
            name: {"per_seed": [score["per_seed"][index]], "mean": score["per_seed"][index]}
            for name, score in record["evaluation"].items()
        },
    }
