"""The ray caster, with Memory Maze and Two-Colors on it, beside memory-maze and vizdoom.

    python experiments/bench/raycast.py
    python experiments/bench/raycast.py --peers PATH     # a folder with the two packages

This times images alone, from random places; steps with random actions without resets; steps of
`Stream`, as in training, while no episode ends; and resets. The peers are run where they are
installed: memory-maze 1.0.3 with dm_control, of whose `__init__`, which imports the old gym,
nothing is run; and the scenario "basic" of vizdoom, with 4 tics for each step, in its smallest
image of 160 x 120 pixels.
"""

import dataclasses
import functools
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from timing import Row, interleaved, show

from gtrxl_jax.envs import Stream, make_env
from gtrxl_jax.runs.programs import compiler_options


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to time."""

    batch: int = 64
    steps: int = 16
    """Number of steps in a program."""
    sizes: tuple[int, ...] = (9, 15)
    peers: Path | None = None
    """A folder with packages of the peers, beside those that are installed."""
    peer_steps: int = 100
    """Number of steps of memory-maze; vizdoom takes ten times as many."""
    rounds: int = 5
    keep: bool = True
    """Write the table to results/bench."""


def of_env(label: str, name: str, settings: Settings) -> list[Row]:
    """Measure images and steps per second in one environment."""
    env, params = make_env(name)
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
    rows = [Row(f"{label}: {what}", number / s, "1/s") for what, s in seconds.items()]
    return [*rows, Row(f"{label}: state", bytes_ / settings.batch, "bytes")]


def of_memory_maze(settings: Settings) -> list[Row]:
    """Measure steps per second of memory-maze at 9 x 9; no rows if it cannot be imported."""
    try:
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
    seconds = timed(lambda: env.step(rng.integers(6)), settings.peer_steps)
    return [Row("memory-maze 1.0.3, 9 x 9: steps", 1 / seconds, "1/s")]


def of_vizdoom(settings: Settings) -> list[Row]:
    """Measure steps per second of vizdoom; no rows if it cannot be imported."""
    try:
        import vizdoom  # type: ignore[import-not-found]
    except ImportError:
        print("vizdoom is not installed here: its speed is left out")
        return []
    game = vizdoom.DoomGame()
    scratch = tempfile.TemporaryDirectory()
    game.set_doom_config_path(str(Path(scratch.name) / "vizdoom.ini"))
    game.load_config(str(Path(vizdoom.scenarios_path) / "basic.cfg"))
    game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
    game.set_screen_format(vizdoom.ScreenFormat.RGB24)
    game.set_window_visible(False)
    game.init()
    rng = np.random.default_rng(0)

    def step() -> None:
        if game.is_episode_finished():
            game.new_episode()
        game.make_action(list(np.eye(3)[rng.integers(3)]), 4)
        game.get_state()

    seconds = timed(step, 10 * settings.peer_steps)
    game.close()
    scratch.cleanup()
    return [Row(f"vizdoom {vizdoom.__version__}: steps", 1 / seconds, "1/s")]


def timed(call: Callable[[], Any], times: int) -> float:
    """Return the mean seconds of a call."""
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times


def main(settings: Settings) -> None:
    """Time every environment, then the peers."""
    if settings.peers is not None:
        sys.path.append(str(settings.peers))
    mazes = {f"maze {n} x {n}": f"MemoryMaze-{n}x{n}-v0" for n in settings.sizes}
    envs = mazes | {"Two-Colors": "TwoColors-v0"}
    rows = [row for label, name in envs.items() for row in of_env(label, name, settings)]
    rows += of_memory_maze(settings) + of_vizdoom(settings)
    show("raycast", f"The ray caster, {settings.batch} environments", rows, keep=settings.keep)


if __name__ == "__main__":
    main(tyro.cli(Settings))
