"""Run a trainer from its config to its results: the host side of training.

    run = train(OnlineTrainer(config), folder=Path("runs/mine"))

A run folder contains

    config.json       the config of the run
    metrics.jsonl     its metrics, one line for each iteration
    checkpoints/      its state (see `checkpoint`)
    result.json       the final evaluation, with command, commit, device, date, seeds and times
    README.md         what was trained, its scores, its provenance and its use
    *.png, *.gif      plots

However the process ends, `train` with the same config and folder resumes from the last checkpoint,
with the same numbers as in an uninterrupted run: lines of metrics.jsonl after the checkpoint are
dropped and rewritten.
"""

import contextlib
import dataclasses
import functools
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gtrxl_jax.envs.faults import FaultError, require_no_faults
from gtrxl_jax.parallel import hosts
from gtrxl_jax.runs import checkpoint, divergence
from gtrxl_jax.runs.card import write_card
from gtrxl_jax.runs.checkpoint import Saver
from gtrxl_jax.runs.directory import available_steps, final_result, lock_folder
from gtrxl_jax.runs.divergence import DivergedError, Divergence
from gtrxl_jax.runs.logging.writers import JsonLinesWriter, MetricWriter, Writers
from gtrxl_jax.runs.params import initial_params, params_of
from gtrxl_jax.runs.preemption import Interruption, RunInterrupted
from gtrxl_jax.runs.profiling import Profile
from gtrxl_jax.runs.results import Result, record_of, scores_of, write_result
from gtrxl_jax.runs.trainer import Trainer
from gtrxl_jax.validation import require_choice


@dataclasses.dataclass(frozen=True)
class Trained:
    """A finished run.

    Attributes:
      trainer: the trainer, with its config and its agent.
      params_per_seed: the trained network's parameters for each seed; empty for a run that diverged
        before its first checkpoint and was loaded rather than rerun.
      result: the result of the run.
      stopped_by: the signal by which the run was asked to stop as it ended, if any: for callers
        that would start others.
    """

    trainer: Any
    params_per_seed: list[Any]
    result: Result
    stopped_by: signal.Signals | None = None


def train(
    trainer: Trainer,
    *,
    writers: Sequence[MetricWriter] = (),
    folder: str | os.PathLike[str] | None = None,
    profile: str | os.PathLike[str] | None = None,
) -> Trained:
    """Run a trainer to its end.

    With a folder, the run can be interrupted: on SIGTERM, and on the first SIGINT, it finishes its
    iteration, saves and raises `RunInterrupted`. Until the first iteration begins, and on a second
    SIGINT, an interrupt is a KeyboardInterrupt, as in any program. The same call resumes the run,
    however it ended. A run that has its result is loaded rather than rerun, unless its config has
    been extended.

    Args:
      trainer: the run. If it has several seeds, metrics have one entry for each.
      writers: destinations of metrics in addition to the folder. With several processes (see
        `hosts`), only the writers of the first are used.
      folder: the run folder; nothing is kept if None.
      profile: a folder for a trace of a few iterations, see `Profile`; none if None.

    Raises:
      TypeError: if `trainer` is none, such as a config.
      ValueError: if the requested devices are not available, the folder belongs to another run or
        is in use, or `init_from` in the config does not fit.
      RunInterrupted: if the run was asked to stop; it has been saved.
      DivergedError: if a seed has diverged and the config says to stop.
      FaultError: if an episode of an evaluation exceeds its time limit, or has an observation
        outside its space or a reward that is not finite; the run has been saved.
      SaveError: if a checkpoint could not be written; earlier ones are intact.
      UnusableError: if no checkpoint in the folder is intact and of this run.
    """
    if not hasattr(trainer, "config"):
        kind = type(trainer).__name__
        raise TypeError(f"trainer must be a trainer, such as OnlineTrainer(config), not {kind}")
    if folder is None:
        return _Loop(trainer, Writers(*writers), Profile(profile)).run()
    if result := final_result(trainer, folder):
        saved = available_steps(folder)
        return Trained(trainer, params_of(trainer, folder)[0] if saved else [], result)
    initial_params(trainer, folder)  # raises before the folder is claimed
    tracing = Profile(profile)
    with (
        # Also for what the first process alone does, such as writing.
        hosts.ending_together(DivergedError, FaultError, RunInterrupted),
        lock_folder(folder, trainer.config_json),
        Interruption() as interruption,
    ):
        everything = Writers()
        if hosts.is_first():
            everything = Writers(JsonLinesWriter(Path(folder, "metrics.jsonl")), *writers)
        trained = _Loop(trainer, everything, tracing, Path(folder), interruption).run()
        if hosts.is_first():
            record = record_of(trainer.config, trained.result)
            params = trained.params_per_seed[0]
            config = json.loads(trainer.config_json)
            write_card(folder, trainer.title, config, record, params, trainer.notes)
            write_result(folder, record)
    return trained


@dataclasses.dataclass
class Progress:
    """The progress of a run, which is recorded with its state.

    Attributes:
      iteration: number of completed iterations.
      train_seconds: time since the first update without compilation, summed over all processes
        that ran the run in turn, for each up to its last checkpoint.
      iteration_seconds: the part of it spent in iterations.
      best: step and score of the best checkpoint.
      diverged: the seeds that have diverged, which are excluded from scores.
    """

    iteration: int = 0
    train_seconds: float = 0.0
    iteration_seconds: float = 0.0
    best: tuple[int, float] | None = None
    diverged: list[Divergence] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, record: dict[str, Any]) -> "Progress":
        """Return the progress that was recorded by `dataclasses.asdict` and as JSON."""
        fields = {field.name: record[field.name] for field in dataclasses.fields(cls)}
        fields["best"] = tuple(fields["best"]) if fields["best"] else None
        return cls(**fields | {"diverged": [Divergence(**one) for one in fields["diverged"]]})


class _Loop:
    """The host's loop over the iterations of a run, with its state on the host."""

    def __init__(
        self,
        trainer: Trainer,
        writer: MetricWriter,
        profile: Profile,
        folder: Path | None = None,
        interruption: Interruption | None = None,
    ):
        self._trainer, self._config = trainer, trainer.config
        self._writer = writer
        self._profile = profile
        self._folder = folder
        self._interruption = interruption
        self._progress = Progress()
        self._scores: dict[str, np.ndarray] | None = None
        self._sampled: dict[str, np.ndarray] = {}
        self._save_is_due = False
        self._finished = self._since = self._compile_seconds = 0.0

    def run(self) -> Trained:
        """Run from the last checkpoint in the folder, or from the start, to the end."""
        began = time.monotonic()
        with contextlib.ExitStack() as resources:
            resources.enter_context(self._writer)
            resources.enter_context(self._profile)
            self._programs = self._trainer.programs(self._compiling)
            self._require_score()
            restored = self._restore()
            progress = self._progress
            self._writer.start(self._step)
            saver = None
            if self._folder:
                best = progress.best and progress.best[0]
                saver = Saver(self._folder, keep=self._config.checkpoint.keep, best=best)
                resources.enter_context(saver)
            feed = self._programs.feed(progress.iteration + 1)
            resources.enter_context(contextlib.closing(feed))
            # Innermost, to act before resources wait for other processes when they are closed.
            resources.enter_context(
                hosts.ending_together(DivergedError, FaultError, RunInterrupted)
            )
            # Before compilation, since this raises if the data do not fit the run.
            upcoming = next(feed, None)
            state = self._programs.init(self._folder) if restored is None else restored
            self._sampled = jax.device_get(self._trainer.sampled_hyperparameters(state))
            if upcoming:
                self._programs.iteration(*upcoming)
            self._compile_seconds = time.monotonic() - began
            self._since = time.monotonic() - progress.train_seconds
            if self._interruption:
                self._interruption.defer_signals()
            running = None
            while upcoming and not self._has_diverged.all():
                program = self._programs.iteration(*upcoming)
                self._profile.begin_iteration()
                started = time.monotonic()
                state, metrics = program(state, upcoming[1])
                # While it runs: what is left of the previous iteration, and the next data.
                if running:
                    self._finish_iteration(running)
                running = metrics, started
                upcoming = next(feed, None)
                requested = self._stop_signal()
                if requested or self._is_due(saver, upcoming):
                    self._finish_iteration(running, state, saver, requested)
                    running = None
            if saver:
                saver.wait()
            if self._scores is None:
                self._scores = self._evaluate(state)
            progress.train_seconds = time.monotonic() - self._since
        params_per_seed = self._programs.to_host(state.params)
        return Trained(self._trainer, params_per_seed, self._result(), self._stop_signal())

    @property
    def _step(self) -> int:
        return self._progress.iteration * self._trainer.steps_per_iteration

    @property
    def _has_diverged(self) -> np.ndarray:
        return divergence.diverged_mask(
            self._progress.diverged, self._config.seed, self._config.num_seeds
        )

    def _require_score(self) -> None:
        """Raise, before compilation, if the best checkpoint depends on an unknown score."""
        if best := self._config.checkpoint.best:
            names = [f"evaluation/{name}" for name in self._programs.score_names()]
            require_choice("checkpoint.best", best, names)

    def _restore(self) -> Any:
        """Restore the newest checkpoint and its `_progress`; return its state, None without one."""
        if not self._folder or not available_steps(self._folder):
            return None
        saved, record = checkpoint.restore(
            self._folder, self._trainer.to_checkpoint(self._programs.like)
        )
        hosts.on_main_process(
            functools.partial(checkpoint.set_aside, self._folder, record["unusable"]), "set_aside"
        )
        self._progress = Progress.of(record)
        whole: Any = jax.tree.structure(self._programs.like)
        if jax.tree.structure(saved) == whole:
            return saved
        return self._trainer.from_checkpoint(saved, self._programs.init(self._folder))

    @contextlib.contextmanager
    def _compiling(self) -> Iterator[None]:
        """Count the time of the block as compilation, not as training."""
        began = time.monotonic()
        self._writer.phase("compiling")
        yield
        self._writer.phase("")
        seconds = time.monotonic() - began
        self._compile_seconds += seconds
        self._since += seconds

    def _is_due(self, saver: Saver | None, upcoming: tuple[Any, Any] | None) -> bool:
        """Return whether other work follows the running iteration, which must end before it.

        The work is an evaluation, a checkpoint, the compilation of a new stage, or a trace. An
        iteration that has ended is finished at once, too.
        """
        step = self._step + self._trainer.steps_per_iteration
        due = self._programs.is_blocking
        due |= self._progress.iteration + 1 == self._trainer.num_iterations
        due |= self._has_passed(self._config.evaluation.interval, step)
        due |= self._profile.waits
        due |= upcoming is not None and not self._programs.has_compiled(upcoming[0])
        if saver:
            saver.check()
            self._save_is_due |= self._has_passed(self._config.checkpoint.interval, step)
            due |= self._save_is_due and not saver.busy
        return due

    def _finish_iteration(
        self,
        running: tuple[Any, float],
        state: Any = None,
        saver: Saver | None = None,
        requested: signal.Signals | None = None,
    ) -> None:
        """Do the host's work after an iteration.

        Args:
          running: its metrics on the devices, and the time at which it was started.
          state: its state, if an evaluation or a checkpoint follows.
          saver: for checkpoints.
          requested: the signal by which the run was asked to stop, if any.
        """
        trainer, progress = self._trainer, self._progress
        metrics, started = running
        metrics = jax.device_get(metrics)
        now = time.monotonic()
        seconds = now - max(started, self._finished)
        self._finished = now
        metrics |= {f"hyperparameter/{name}": value for name, value in self._sampled.items()}
        diverged = self._find_diverged(metrics)
        progress.iteration += 1
        progress.iteration_seconds += seconds
        metrics["steps_per_second"] = self._steps_per_second
        progress.diverged += diverged
        best, fault = False, None
        at_end = progress.iteration == trainer.num_iterations
        if at_end or self._has_passed(self._config.evaluation.interval, self._step):
            try:
                self._scores = self._evaluate(state)
            except FaultError as error:
                fault = error
            else:
                metrics |= {f"evaluation/{k}": v.mean(axis=-1) for k, v in self._scores.items()}
                best = self._is_best(metrics)
        if diverged:
            metrics["diverged"] = self._has_diverged.astype(float)
        self._writer.write(self._step, metrics)
        if diverged and self._config.on_divergence == "stop":
            raise DivergedError("; ".join(map(str, diverged)))
        progress.train_seconds = time.monotonic() - self._since
        if not (saver and saver.busy):
            self._writer.phase("")
        if saver and state is not None and not self._has_diverged.all():
            self._save(saver, state, best, requested, fault)
        if fault:
            raise fault

    def _find_diverged(self, metrics: dict[str, Any]) -> list[Divergence]:
        """Return the seeds that diverged in this iteration, and not before."""
        steps_per_update = self._trainer.steps_per_iteration // self._config.updates_per_iteration
        found = divergence.pop_report(
            metrics,
            self._config.seed,
            self._step,
            steps_per_update,
            self._trainer.observation_space,
        )
        known = {one.seed for one in self._progress.diverged}
        return [one for one in found if one.seed not in known]

    def _evaluate(self, state: Any) -> dict[str, np.ndarray]:
        """Return scores `[E]` or `[S, E]`, which are NaN for seeds that have diverged.

        Raises:
          FaultError: if there is a fault in an episode of another seed.
        """
        self._writer.phase("evaluating")
        found = self._programs.evaluate(state.params, self._progress.iteration)
        scores = require_no_faults(found, self._trainer.environment[0], self._has_diverged)
        for score in scores.values():
            score[self._has_diverged] = np.nan
        return scores

    def _is_best(self, metrics: dict[str, Any]) -> bool:
        """Return whether the mean score of seeds that have not diverged is the best; record it.

        Without a finite score it is not.
        """
        config, best = self._config.checkpoint, self._progress.best
        if not config.best or self._has_diverged.all():
            return False
        scores = np.asarray(metrics[config.best])
        if not np.isfinite(scores).any():
            return False
        score = float(np.mean(scores, where=np.isfinite(scores)))
        sign = 1 if config.best_is == "max" else -1
        if best and sign * score <= sign * best[1]:
            return False
        self._progress.best = (self._step, score)
        return True

    def _save(
        self,
        saver: Saver,
        state: Any,
        best: bool,
        requested: signal.Signals | None,
        fault: FaultError | None,
    ) -> None:
        """Save if a save is due, or before an error, and stop if requested.

        A save that is merely due is postponed while another is being written, so as not to delay
        the run.
        """
        at_end = self._progress.iteration == self._trainer.num_iterations
        stops = bool(requested or fault or at_end)
        if best or stops or (self._save_is_due and not saver.busy):
            self._writer.phase("saving")
            self._writer.sync()
            saver.save(
                self._step,
                self._trainer.to_checkpoint(state),
                dataclasses.asdict(self._progress),
                best=best,
            )
            self._save_is_due = False
        if fault:
            saver.wait()
        elif requested and not at_end:
            saver.wait()
            raise RunInterrupted(requested, self._step, self._folder)

    def _stop_signal(self) -> signal.Signals | None:
        """Return the signal by which this or another process was asked to stop, if any."""
        own = self._interruption and self._interruption.requested
        number = hosts.all_max(own or 0)
        return signal.Signals(number) if number else None

    def _has_passed(self, interval: int, step: int) -> bool:
        """Return whether the iteration to a step passed a multiple of `interval`, if not 0."""
        before = step - self._trainer.steps_per_iteration
        return bool(interval) and step // interval > before // interval

    @property
    def _steps_per_second(self) -> float:
        """The speed of the whole run so far, of all seeds together, in iterations only."""
        return self._config.num_seeds * self._step / self._progress.iteration_seconds

    def _result(self) -> Result:
        progress = self._progress
        return Result(
            evaluation=scores_of(self._scores or {}, equal=not self._sampled),
            steps=self._step,
            compile_seconds=self._compile_seconds,
            train_seconds=progress.train_seconds,
            steps_per_second=self._steps_per_second,
            diverged=progress.diverged,
            sampled={k: np.atleast_1d(v).tolist() for k, v in self._sampled.items()},
        )
