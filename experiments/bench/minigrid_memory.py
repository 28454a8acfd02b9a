"""MiniGrid-Memory in JAX against the package minigrid, with random actions.

    python experiments/bench/minigrid_memory.py

Both return symbolic observations of a view of 7 x 7 cells and reset finished episodes. Ours is a
jitted scan over a batch; minigrid is a Python loop in one process.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import minigrid
import numpy as np
import tyro
from timing import Row, interleaved, show

from gtrxl_jax.envs import Stream, make_env


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to time."""

    env: str = "MiniGrid-MemoryS13-v0"
    num_envs: int = 1024
    steps: int = 256
    """Steps of each environment of the batch."""
    python_steps: int = 2000
    rounds: int = 5
    keep: bool = True
    """Write the table to results/bench."""


def ours(settings: Settings) -> Callable[[], Any]:
    """Return a function that takes `steps` random actions in each environment."""
    stream = Stream(*make_env(settings.env, observation="symbolic"), settings.num_envs)
    draw = jax.vmap(stream.action_space.sample)

    @functools.partial(jax.jit, donate_argnums=0)
    def run(state: Any, key: jax.Array) -> Any:
        def step(state: Any, key: jax.Array) -> Any:
            state, timestep = stream.step(state, draw(jax.random.split(key, settings.num_envs)))
            # Of the whole observation, so that none of it is left out of the program.
            return state, (timestep.observation.sum(), timestep.reward.sum())

        return jax.lax.scan(step, state, jax.random.split(key, settings.steps))

    held = [stream.reset(jax.random.key(0))[0]]

    def call() -> Any:
        held[0], sums = run(held[0], jax.random.key(1))
        return sums

    return call


def theirs(settings: Settings) -> Callable[[], Any]:
    """Return a function that takes random actions in one environment of minigrid."""
    gymnasium.register_envs(minigrid)
    env: Any = gymnasium.make(settings.env, disable_env_checker=True)
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(env.action_space.n, size=settings.python_steps)

    def call() -> Any:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return call


def main(settings: Settings) -> None:
    """Time both, interleaved."""
    calls = {"ours": ours(settings), "minigrid": theirs(settings)}
    for _ in range(2):
        jax.block_until_ready(calls["ours"]())
    seconds = interleaved(calls, settings.rounds)
    speed = settings.num_envs * settings.steps / seconds["ours"]
    python_speed = settings.python_steps / seconds["minigrid"]
    show(
        "minigrid_memory",
        f"{settings.env}, random actions, {settings.num_envs} environments",
        [
            Row("this package", speed, "steps/s"),
            Row("minigrid", python_speed, "steps/s"),
            Row("ratio", speed / python_speed, "x"),
        ],
        keep=settings.keep,
    )


if __name__ == "__main__":
    main(tyro.cli(Settings))
