"""An online run from its config to its results: the host's side of training.

A run folder holds

    config.json       what the run is
    metrics.jsonl     its numbers, one line for each visit of the host
    checkpoints/      its state
    result.json       the final evaluation, with command, commit, device, date, seeds and times
    *.png, *.gif      pictures
"""

import contextlib
import dataclasses
import datetime
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from gtrxl_jax.files import atomic
from gtrxl_jax.training import checkpoint
from gtrxl_jax.training.compilation import compiler_options
from gtrxl_jax.training.config import OnlineConfig, from_json, to_json
from gtrxl_jax.training.evaluation import make_evaluate, summarise, with_intervals
from gtrxl_jax.training.metrics import MetricWriter, Writers, json_value
from gtrxl_jax.training.online import OnlineTrainer
from gtrxl_jax.training.placement import data_mesh, shardings


@dataclasses.dataclass(frozen=True)
class Result:
    """What came out of a run.

    Attributes:
      evaluation: of the final evaluation, for each of return, length and success (where the
        environment tells): mean and half width of the 95 % interval, over seeds, or over the
        episodes of a single seed. With several tasks `return` is of all, `return/task_0` of one.
      per_seed: the same numbers' mean over episodes for each seed, `[S]`.
      steps: environment steps of each seed.
      compile_seconds: from the start to the first update.
      train_seconds: from the first update to the last, evaluations included.
      steps_per_second: of all seeds together, while training, evaluations not included.
    """

    evaluation: dict[str, tuple[float, float]]
    per_seed: dict[str, list[float]]
    steps: int
    compile_seconds: float
    train_seconds: float
    steps_per_second: float


def train(
    config: OnlineConfig, *, writers: Sequence[MetricWriter] = (), folder: Path | None = None
) -> tuple[Result, list[Any]]:
    """Run a config to its end.

    Args:
      config: the run. Several seeds are trained in one program (on CPU they take turns in it, see
        `_over_seeds`), and metrics have an entry for each.
      writers: where metrics go.
      folder: saves the final state there, if given (see `checkpoint.claim` first).

    Returns:
      The result, and the trained network's parameters for each seed.
    """
    began = time.monotonic()
    trainer = OnlineTrainer(config)
    mesh = data_mesh(config.devices, config.env.num_envs, config.env.num_tasks)
    play = make_evaluate(
        trainer.agent, trainer.stream.tasks, config.evaluation.episodes, config.evaluation.policy
    )
    init, visit = trainer.init, trainer.visit
    seeds: Any = config.seed
    if several := config.num_seeds > 1:
        init, visit, play = (_over_seeds(f) for f in (init, visit, play))
        seeds = np.arange(config.seed, config.seed + config.num_seeds)
    placed = shardings(jax.eval_shape(init, seeds), mesh, seeds=several)
    init = jax.jit(init, out_shardings=placed, compiler_options=compiler_options(runs_once=True))
    state = init(seeds)
    visit = jax.jit(
        visit,
        donate_argnums=0,
        out_shardings=(placed, None),
        compiler_options=compiler_options(),
    )
    compiled_visit = visit.lower(state).compile()
    play = jax.jit(play, compiler_options=compiler_options())
    compile_seconds = time.monotonic() - began

    steps_per_visit = config.steps_per_update * config.updates_per_visit
    num_visits = config.num_updates // config.updates_per_visit
    every = config.evaluation.interval
    train_seconds = 0.0
    episodes: dict[str, Any] = {}
    with Writers(*writers) as writer:
        for number in range(1, num_visits + 1):
            before = time.monotonic()
            state, metrics = compiled_visit(state)
            metrics = jax.device_get(metrics)
            train_seconds += (seconds := time.monotonic() - before)
            metrics["steps_per_second"] = config.num_seeds * steps_per_visit / seconds
            step = number * steps_per_visit
            due = bool(every) and step // every > (step - steps_per_visit) // every
            if due or number == num_visits:
                episodes = summarise(
                    play(state.learned["network"], _evaluation_keys(config, number))
                )
                metrics |= {f"evaluation/{k}": v.mean(axis=-1) for k, v in episodes.items()}
            writer.write(step, metrics)
    if folder is not None:
        checkpoint.save(folder, num_visits * steps_per_visit, state, to_json(config))
    result = Result(
        evaluation=with_intervals(episodes),
        per_seed={k: np.atleast_1d(v.mean(axis=-1)).tolist() for k, v in episodes.items()},
        steps=num_visits * steps_per_visit,
        compile_seconds=compile_seconds,
        train_seconds=time.monotonic() - began - compile_seconds,
        steps_per_second=config.num_seeds * num_visits * steps_per_visit / train_seconds,
    )
    return result, _each_seed(config, state.learned["network"])


def _over_seeds(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with a leading axis of seeds on its arguments and results.

    On an accelerator seeds are a batch. A CPU is full with one of them, and its caches hold the
    activations of one but not of all: there they take turns, within the one program.
    """
    if jax.default_backend() != "cpu":
        return jax.vmap(function)
    return lambda *arguments: jax.lax.map(lambda of_one: function(*of_one), arguments)


def _evaluation_keys(config: OnlineConfig, number: int) -> Array:
    """Fresh episodes for every evaluation, the same for every config with these seeds."""
    base = jax.random.fold_in(jax.random.key(2**31 - 1), number)
    if config.num_seeds == 1:
        return jax.random.fold_in(base, config.seed)
    seeds = np.arange(config.seed, config.seed + config.num_seeds)
    return jax.vmap(lambda seed: jax.random.fold_in(base, seed))(seeds)


def load(folder: str | os.PathLike[str]) -> tuple[OnlineTrainer, list[Any]]:
    """The trainer of a run, and the trained network's parameters for each of its seeds.

    Raises:
      FileNotFoundError: the folder holds no run, or no checkpoint.
      ValueError: the checkpoint is of another architecture.
    """
    config = from_json(checkpoint.load_config(folder))
    trainer = OnlineTrainer(config)
    init: Any = trainer.init
    seeds: Any = 0
    if config.num_seeds > 1:
        init, seeds = jax.vmap(init), np.arange(config.num_seeds)
    network = checkpoint.restore(folder, jax.eval_shape(init, seeds)).learned["network"]
    return trainer, _each_seed(config, network)


def evaluate(
    folder: str | os.PathLike[str], episodes: int, policy: str = "", seed: int = 1
) -> tuple[dict[str, tuple[float, float]], OnlineTrainer, list[Any]]:
    """Evaluate a run's agent on fresh episodes.

    Args:
      folder: the run.
      episodes: how many for each of its seeds.
      policy: "mode" or "sample"; the run's own if empty.
      seed: of the episodes.

    Returns:
      Mean and half width of the 95 % interval of each score (see `Result`), and what `load` gives.
    """
    trainer, networks = load(folder)
    policy = policy or trainer.config.evaluation.policy
    play = jax.jit(make_evaluate(trainer.agent, trainer.stream.tasks, episodes, policy))
    keys = jax.random.split(jax.random.key(seed), len(networks))
    played = [summarise(play(network, key)) for network, key in zip(networks, keys, strict=True)]
    stacked = {name: np.stack([one[name] for one in played]) for name in played[0]}
    return with_intervals(stacked), trainer, networks


def _each_seed(config: OnlineConfig, tree: Any) -> list[Any]:
    if config.num_seeds == 1:
        return [tree]
    return [jax.tree.map(lambda x, n=n: x[n], tree) for n in range(config.num_seeds)]


def write_result(folder: Path, config: OnlineConfig, result: Result) -> None:
    """Write result.json: what came out, and all that is needed to make it come out again."""
    record = provenance() | {
        "seeds": list(range(config.seed, config.seed + config.num_seeds)),
        **dataclasses.asdict(result),
    }
    with atomic(folder / "result.json") as temporary:
        temporary.write_text(json.dumps(json_value(record), indent=2, allow_nan=False) + "\n")


def provenance() -> dict[str, str]:
    """Command, commit, device and date of this process, for a results file."""
    device = jax.devices()[0]
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": _commit(),
        "device": f"{jax.device_count()} x {device.device_kind}"
        + (f", {os.cpu_count()} cores" if device.platform == "cpu" else ""),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str:
    """The commit of this package's sources, with "+" if they have changed since.

    "unknown" if they are in no repository, or in one that they do not belong to, as those of an
    installed package may be.
    """
    package = Path(__file__).parents[1]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        _git(package, "ls-files", "--error-unmatch", "__init__.py")
        return _git(package, "rev-parse", "--short", "HEAD").strip() + (
            "+" if _git(package, "status", "--porcelain", "--", ".") else ""
        )
    return "unknown"


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
