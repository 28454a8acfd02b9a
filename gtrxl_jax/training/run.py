"""A run from its config to its results: the host's side of training.

    run = train(OnlineTrainer(config), folder=Path("runs/mine"))

A run folder holds

    config.json       what the run is
    metrics.jsonl     its numbers, one line for each visit of the host
    checkpoints/      its state
    result.json       the final evaluation, with command, commit, device, date, seeds and times
    *.png, *.gif      pictures
"""

import dataclasses
import os
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from gtrxl_jax.training import checkpoint
from gtrxl_jax.training.compilation import compiler_options
from gtrxl_jax.training.config import from_json, to_json
from gtrxl_jax.training.evaluation import with_intervals
from gtrxl_jax.training.metrics import MetricWriter, Writers
from gtrxl_jax.training.online import OnlineTrainer
from gtrxl_jax.training.placement import shardings
from gtrxl_jax.training.results import Result
from gtrxl_jax.training.trainer import Trainer


@dataclasses.dataclass(frozen=True)
class Trained:
    """A run that is over.

    Attributes:
      trainer: what was trained, with its config and its agent.
      networks: the trained network's parameters for each seed.
      result: what came out.
    """

    trainer: Trainer
    networks: list[Any]
    result: Result


def train(
    trainer: Trainer, *, writers: Sequence[MetricWriter] = (), folder: Path | None = None
) -> Trained:
    """Run a trainer to its end.

    Args:
      trainer: the run. Several seeds are trained in one program (on CPU they take turns in it, see
        `_over_seeds`), and metrics have an entry for each.
      writers: where metrics go.
      folder: saves the final state there, if given (see `checkpoint.claim` first).

    Raises:
      ValueError: the run cannot have the devices that it asks for.
    """
    began = time.monotonic()
    config, programs = trainer.config, _Programs(trainer)
    state = programs.init()
    visit = programs.visit(state, trainer.stage(1))
    compile_seconds = time.monotonic() - began

    every = config.evaluation.interval
    train_seconds = 0.0
    scores: dict[str, Any] = {}
    with Writers(*writers) as writer:
        for number in range(1, trainer.num_visits + 1):
            visit = programs.visit(state, trainer.stage(number))
            before = time.monotonic()
            state, metrics = visit(state, programs.data)
            metrics = jax.device_get(metrics)
            train_seconds += (seconds := time.monotonic() - before)
            metrics["steps_per_second"] = config.num_seeds * trainer.steps_per_visit / seconds
            step = number * trainer.steps_per_visit
            due = bool(every) and step // every > (step - trainer.steps_per_visit) // every
            if due or number == trainer.num_visits:
                scores = programs.evaluate(state.network, number)
                metrics |= {f"evaluation/{k}": v.mean(axis=-1) for k, v in scores.items()}
            writer.write(step, metrics)
    steps = trainer.num_visits * trainer.steps_per_visit
    if folder is not None:
        checkpoint.save(folder, steps, state, to_json(config))
    result = Result(
        evaluation=with_intervals(scores),
        per_seed={k: np.atleast_1d(v.mean(axis=-1)).tolist() for k, v in scores.items()},
        steps=steps,
        compile_seconds=compile_seconds,
        train_seconds=time.monotonic() - began - compile_seconds,
        steps_per_second=config.num_seeds * steps / train_seconds,
    )
    return Trained(trainer, _each_seed(config.num_seeds, state.network), result)


class _Programs:
    """The compiled programs of a run, over its seeds and on its devices.

    Attributes:
      data: the trainer's, on every device.
    """

    def __init__(self, trainer: Trainer):
        config = trainer.config
        mesh = trainer.mesh()
        self._trainer = trainer
        self._several = config.num_seeds > 1
        self._seeds: Any = config.seed
        init = trainer.init
        if self._several:
            init = _over_seeds(init)
            self._seeds = np.arange(config.seed, config.seed + config.num_seeds)
        self._placed = shardings(jax.eval_shape(init, self._seeds), mesh, seeds=self._several)
        self._init = jax.jit(
            init,
            out_shardings=self._placed,
            compiler_options=compiler_options(runs_once=True),
        )
        self.data = jax.device_put(trainer.data, NamedSharding(mesh, PartitionSpec()))
        self._visits: dict[Hashable, Callable[..., Any]] = {}
        evaluate = _over_seeds(trainer.evaluate) if self._several else trainer.evaluate
        self._evaluate = jax.jit(evaluate, compiler_options=compiler_options())

    def init(self) -> Any:
        """The state of a new run."""
        return self._init(self._seeds)

    def visit(self, state: Any, stage: Hashable) -> Callable[..., Any]:
        """The program of a stage: from (state, data), of which it takes the state, to the new state
        and metrics. It is compiled when it is first asked for.
        """
        if stage not in self._visits:

            def visit(state: Any, data: Any) -> Any:
                def of_one(state: Any) -> Any:
                    return self._trainer.visit(state, data, stage)

                return (_over_seeds(of_one) if self._several else of_one)(state)

            program = jax.jit(
                visit,
                donate_argnums=0,
                out_shardings=(self._placed, None),
                compiler_options=compiler_options(),
            )
            self._visits[stage] = program.lower(state, self.data).compile()
        return self._visits[stage]

    def evaluate(self, network: Any, number: int) -> dict[str, np.ndarray]:
        """Scores of the evaluation after visit `number`: `[E]`, or `[S, E]` of several seeds."""
        scores = self._evaluate(network, _evaluation_keys(self._trainer.config, number))
        return {name: np.asarray(score, np.float64) for name, score in scores.items()}


def _over_seeds(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with a leading axis of seeds on its arguments and results.

    On an accelerator seeds are a batch. A CPU is full with one of them, and its caches hold the
    activations of one but not of all: there they take turns, within the one program.
    """
    if jax.default_backend() != "cpu":
        return jax.vmap(function)
    return lambda *arguments: jax.lax.map(lambda of_one: function(*of_one), arguments)


def _evaluation_keys(config: Any, number: int) -> Array:
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
    network = checkpoint.restore(folder, jax.eval_shape(init, seeds)).network
    return trainer, _each_seed(config.num_seeds, network)


def evaluate(
    folder: str | os.PathLike[str], episodes: int, policy: str = "", seed: int = 1
) -> tuple[dict[str, tuple[float, float]], OnlineTrainer, list[Any]]:
    """Evaluate a run's agent on fresh episodes.

    Args:
      folder: the run.
      episodes: how many for each of its seeds.
      policy: one of `evaluation.POLICIES`; the run's own if empty.
      seed: of the episodes.

    Returns:
      Mean and half width of the 95 % interval of each score (see `Result`), and what `load` gives.
    """
    trainer, networks = load(folder)
    settings = trainer.config.evaluation
    settings = dataclasses.replace(settings, episodes=episodes, policy=policy or settings.policy)
    trainer = OnlineTrainer(dataclasses.replace(trainer.config, evaluation=settings))
    play = jax.jit(trainer.evaluate)
    keys = jax.random.split(jax.random.key(seed), len(networks))
    played = [play(network, key) for network, key in zip(networks, keys, strict=True)]
    scores = {
        name: np.stack([np.asarray(one[name], np.float64) for one in played]) for name in played[0]
    }
    return with_intervals(scores), trainer, networks


def _each_seed(num_seeds: int, tree: Any) -> list[Any]:
    if num_seeds == 1:
        return [tree]
    return [jax.tree.map(lambda x, n=n: x[n], tree) for n in range(num_seeds)]
