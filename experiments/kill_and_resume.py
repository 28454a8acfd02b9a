"""A run that is killed and resumed repeatedly is bit-identical to an uninterrupted run.

    python experiments/kill_and_resume.py

This runs `gtrxl train --preset debug`, which saves as often as the disk allows, once without
interruption and once killed (SIGKILL) at 25 random moments: during the start, between iterations,
and in about half of the cases while a checkpoint is being written. Each time the same command
resumes the run. In the end, all lines of metrics.jsonl except wall-clock times, every array of the
last checkpoint, and the scores must be equal. Takes about ten minutes on two cores.

    python experiments/kill_and_resume.py --host --kills 20 --signals SIGKILL SIGTERM SIGINT

does so with an environment on the host and two actors. It starts anew at each resume, so that the
numbers differ; each step must have its line of metrics once, and a run that is asked to stop must
end within ten seconds.

Writes kill_and_resume.md or kill_and_resume_host.md to experiments/results/.
"""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from gtrxl_jax.files import atomic
from gtrxl_jax.online.config import from_json
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs import checkpoint
from gtrxl_jax.runs.directory import read_config_text
from gtrxl_jax.runs.programs import Programs
from gtrxl_jax.runs.results import provenance, read_result

RESULTS = Path(__file__).parent / "results"
STEPS_PER_ITERATION = 20 * 8 * 8
WALL_CLOCK = ("time", "steps_per_second")
HOST = (
    *("--env.name", "gymnasium:CartPole-v1", "--env.params", "max_episode_steps", "50"),
    *("--actors.count", "2", "--evaluation.episodes", "8"),
)
EXIT_CODES = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 75, signal.SIGINT: 130}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the test."""

    kills: int = 25
    """Number of times that the run is stopped."""
    seed: int = 0
    """Seed of the random moments."""
    signals: tuple[str, ...] = ("SIGKILL",)
    """Signals that stop the run, in turn."""
    keep: bool = True
    """Write the report to results."""
    host: bool = False
    """Run in an environment on the host."""


def start(
    folder: Path, num_iterations: int, cache: Path, options: tuple[str, ...] = ()
) -> subprocess.Popen[bytes]:
    """Start the run, or resume it."""
    steps = str(STEPS_PER_ITERATION * num_iterations)
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "gtrxl_jax.cli", "train", "--preset", "debug"),
            *("--updates-per-iteration", "20", "--total-steps", steps),
            *("--checkpoint.interval", "1", "--evaluation.interval", str(3 * STEPS_PER_ITERATION)),
            *("--folder", str(folder), "--no-plots", *options),
        ],
        # All starts compile the same programs, so a persistent cache makes resuming fast.
        env={
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            **os.environ,
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def finish(run: subprocess.Popen[bytes], *exit_codes: int) -> None:
    """Wait for a run to end, which must be with one of these exit codes."""
    _, errors = run.communicate()
    if run.returncode not in exit_codes:
        raise SystemExit(f"exit code {run.returncode}, not in {exit_codes}: {errors.decode()}")


def lines_of(folder: Path) -> int:
    """Return the number of lines of the metrics."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def is_saving(folder: Path) -> bool:
    """Return whether a checkpoint is being written."""
    return any((folder / "checkpoints").glob("*.orbax-checkpoint-tmp*"))


def stop(run: subprocess.Popen[bytes], folder: Path, number: int, chance: random.Random) -> str:
    """Stop the run at a random moment, and return a description of the moment."""
    before = lines_of(folder)
    saving = chance.random() < 0.5
    iterations = chance.randint(1, 4)
    if not saving and number == signal.SIGKILL and chance.random() < 0.3:
        time.sleep(chance.uniform(0, 10))
    else:
        # A resumed run first drops the lines of iterations after its checkpoint.
        while run.poll() is None and lines_of(folder) == before:
            time.sleep(0.001)
        before = lines_of(folder)
        while run.poll() is None and lines_of(folder) < before + iterations:
            time.sleep(0.001)
        while run.poll() is None and saving and not is_saving(folder):
            time.sleep(0.0005)
        time.sleep(chance.uniform(0, 0.1))
    moment = "while saving" if is_saving(folder) else "between saves"
    moment = "while starting" if lines_of(folder) == before else moment
    run.send_signal(number)
    return moment


def final_state(folder: Path) -> Any:
    """Return the last saved state of a run."""
    trainer = OnlineTrainer(from_json(read_config_text(folder)))
    return checkpoint.restore(folder, Programs(trainer).like)[0]


def require_equal(one: Path, other: Path) -> int:
    """Assert that the results of two runs are equal, and return the number of metrics lines."""
    lines = [
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (one, other)
    ]
    for a, b in zip(*lines, strict=True):
        for record in (a, b):
            for name in WALL_CLOCK:
                del record[name]
        assert a == b, (a, b)
    states = [jax.tree.leaves_with_path(final_state(folder)) for folder in (one, other)]
    for (path, a), (_, b) in zip(*states, strict=True):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path))
    results = [read_result(folder) for folder in (one, other)]
    scores = [result and (result.evaluation, result.per_seed) for result in results]
    assert scores[0] == scores[1]
    return len(lines[0])


def require_each_step_once(folder: Path, num_iterations: int) -> int:
    """Assert that a finished run has a line for each iteration; return their number."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    expected = [STEPS_PER_ITERATION * n for n in range(1, num_iterations + 1)]
    assert [line["step"] for line in lines] == expected, [line["step"] for line in lines]
    result = read_result(folder)
    assert result is not None
    assert result.steps == expected[-1]
    return len(lines)


def main_on_host(settings: Settings) -> None:
    """Stop and resume a run in an environment on the host."""
    chance, moments, slowest = random.Random(settings.seed), Counter[str](), 0.0
    num_iterations = 12 * (settings.kills + 1)
    with tempfile.TemporaryDirectory() as temporary:
        folder, cache = Path(temporary, "run"), Path(temporary, "cache")
        for k in range(settings.kills):
            number = signal.Signals[settings.signals[k % len(settings.signals)]]
            run = start(folder, num_iterations, cache, HOST)
            moment = stop(run, folder, number, chance)
            began = time.monotonic()
            finish(run, EXIT_CODES[number], 0)
            seconds = time.monotonic() - began
            if run.returncode:  # a run that was finishing anyway ends in its own time
                slowest = max(slowest, seconds)
            moments[f"{number.name} {moment}"] += 1
            print(
                f"{number.name} {moment}, after {lines_of(folder)} iterations; exit code "
                f"{run.returncode} after {seconds:.1f} s",
                flush=True,
            )
        finish(start(folder, num_iterations, cache, HOST), 0)
        iterations = require_each_step_once(folder, num_iterations)
    origin = provenance()
    counts = ", ".join(f"{count} {moment}" for moment, count in moments.items())
    report = (
        "# Kill and resume, with an environment on the host\n\n"
        f"{settings.kills} signals ({counts}) to a run of {iterations} iterations with two actors: "
        f"each iteration is in the metrics once, and the slowest end took {slowest:.1f} s.\n\n"
        f"`{' '.join(['python', 'experiments/kill_and_resume.py', *sys.argv[1:]])}` on "
        f"{origin['device']}, {origin['date'][:10]}, commit {origin['commit']}.\n"
    )
    if settings.keep:
        with atomic(RESULTS / "kill_and_resume_host.md") as path:
            path.write_text(report)
    print(report)


def main(settings: Settings) -> None:
    """Stop and resume the run, and compare it with an uninterrupted run."""
    # A shell starts background jobs with SIGINT ignored, which the runs would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if settings.host:
        main_on_host(settings)
        return
    chance = random.Random(settings.seed)
    num_iterations = 12 * (settings.kills + 1)
    moments: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        whole, stopped, cache = (Path(temporary, name) for name in ("whole", "stopped", "cache"))
        finish(start(whole, num_iterations, cache), 0)
        while sum(moments.values()) < settings.kills:
            number = signal.Signals[settings.signals[moments.total() % len(settings.signals)]]
            run = start(stopped, num_iterations, cache)
            moment = stop(run, stopped, number, chance)
            # A run may finish before it receives the signal.
            finish(run, EXIT_CODES[number], 0)
            moments[moment] += 1
            print(f"{number.name} {moment}, after {lines_of(stopped)} iterations", flush=True)
        finish(start(stopped, num_iterations, cache), 0)
        iterations = require_equal(whole, stopped)
    counts = ", ".join(f"{count} {moment}" for moment, count in moments.items())
    origin = provenance()
    report = (
        "# Kill and resume\n\n"
        f"{settings.kills} kills ({counts}) of a run of {iterations} iterations that saves as "
        "often as the disk allows: metrics, final state and scores are bit-identical to those of "
        "an uninterrupted run.\n\n"
        f"`python experiments/kill_and_resume.py` on {origin['device']}, {origin['date'][:10]}, "
        f"commit {origin['commit']}.\n"
    )
    if settings.keep:
        with atomic(RESULTS / "kill_and_resume.md") as path:
            path.write_text(report)
    print(report)


if __name__ == "__main__":
    main(tyro.cli(Settings))
