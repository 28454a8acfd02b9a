"""The ray caster and Memory Maze on it, beside the original on MuJoCo where that is installed.

    python experiments/bench/raycast.py
    python experiments/bench/raycast.py --original PATH     # a folder that has memory_maze/

This times images alone, from random places of random mazes; steps with random actions without
resets; steps of `Stream`, as in training, while no episode ends; and resets. The original is
memory-maze 1.0.3 with dm_control; of its `__init__`, which imports the old gym, nothing is run.
"""

import dataclasses
import functools
import sys
import time
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from timing import Row, interleaved, show

from gtrxl_jax.envs import Stream, make_env
from gtrxl_jax.runs.compilation import compiler_options


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to time."""

    batch: int = 64
    steps: int = 16
    """Number of steps in a program."""
    sizes: tuple[int, ...] = (9, 15)
    side: int = 64
    """Height and width of the images."""
    original: Path | None = None
    """The folder of the package memory_maze; None where it is installed."""
    original_steps: int = 100
    rounds: int = 5
    keep: bool = True
    """Write the table to results/bench."""


def of_size(size: int, settings: Settings) -> list[Row]:
    """Measure images and steps per second in mazes of one size."""
    env, params = make_env(
        f"MemoryMaze-{size}x{size}-v0", height=settings.side, width=settings.side
    )
    stream = Stream(env, params, settings.batch)
    (state, _), key = jax.jit(stream.reset)(jax.random.key(0)), jax.random.key(1)
    action_TB = jax.random.randint(key, (settings.steps, settings.batch), 0, env.num_actions)

    def images(state: Any) -> Any:
        def draw(turn: Any, _: None) -> Any:
            seen = state.env.replace(heading=state.env.heading + turn)
            return turn + 0.1, jax.vmap(lambda s: env.observe(key, s, None, params))(seen)

        return jax.lax.scan(draw, 0.0, None, settings.steps)[1]

    def steps(state: Any) -> Any:
        def step(env_state: Any, action_B: Any) -> Any:
            key_B = jax.random.split(key, settings.batch)
            stepped = jax.vmap(env.step_env, (0, 0, 0, None))(key_B, env_state, action_B, params)
            return stepped[1], stepped[0]

        return jax.lax.scan(step, state.env, action_TB)

    def training(state: Any) -> Any:
        return jax.lax.scan(stream.step, state, action_TB)

    def resets(state: Any) -> Any:
        return jax.lax.map(stream.reset, jax.random.split(key, settings.steps))

    programs = {
        what: jax.jit(function, compiler_options=compiler_options()).lower(state).compile()
        for what, function in (
            ("images", images),
            ("steps", steps),
            ("steps of a stream", training),
            ("resets", resets),
        )
    }
    calls = {what: functools.partial(run, state) for what, run in programs.items()}
    seconds = interleaved(calls, settings.rounds)
    number, bytes_ = (
        settings.batch * settings.steps,
        sum(x.nbytes for x in jax.tree.leaves(state.env)),
    )
    rows = [Row(f"{size} x {size}: {what}", number / s, "1/s") for what, s in seconds.items()]
    return [*rows, Row(f"{size} x {size}: state", bytes_ / settings.batch, "bytes")]


def of_original(settings: Settings) -> list[Row]:
    """Measure steps per second of the original at 9 x 9; no rows if it cannot be imported."""
    try:
        if settings.original is not None:
            sys.path.insert(0, str(settings.original))
        folder = next(p for p in map(Path, sys.path) if (p / "memory_maze/tasks.py").exists())
        package = types.ModuleType("memory_maze")
        package.__path__ = [str(folder / "memory_maze")]
        sys.modules["memory_maze"] = package
        from memory_maze import tasks  # type: ignore[import-not-found]
    except (ImportError, StopIteration):
        print("memory-maze is not installed here: its speed is left out")
        return []
    env = tasks.memory_maze_9x9(seed=0)
    env.reset()
    rng = np.random.default_rng(0)
    began = time.perf_counter()
    for _ in range(settings.original_steps):
        env.step(rng.integers(6))
    taken = time.perf_counter() - began
    return [Row("memory-maze 1.0.3, 9 x 9: steps", settings.original_steps / taken, "1/s")]


def main(settings: Settings) -> None:
    """Time every size, then the original."""
    rows = [row for size in settings.sizes for row in of_size(size, settings)]
    title = f"Memory Maze, {settings.batch} environments, {settings.side} x {settings.side} RGB"
    show("raycast", title, rows + of_original(settings), keep=settings.keep)


if __name__ == "__main__":
    main(tyro.cli(Settings))
