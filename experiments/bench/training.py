"""Training: rollout, learner and compilation of the whole program at a size others have reported.

    python experiments/bench/training.py

MemoryChain with 2 layers, width 256, memory 128, 16 environments and unrolls of 128 steps, V-MPO.
A public PPO with a Transformer-XL of this size ran about 590 environment steps a second, with four
epochs on each rollout and after 38 s of compilation, on two CPU cores; the ratios are to that.
"""

import dataclasses
import time
from typing import Any

import jax
import tyro
from timing import Row, interleaved, show

from gtrxl_jax.nn.cores import core_config
from gtrxl_jax.training.compilation import compiler_options
from gtrxl_jax.training.config import AgentConfig, EnvConfig, OnlineConfig
from gtrxl_jax.training.online import OnlineTrainer

OTHERS_STEPS_PER_SECOND = 590.0
OTHERS_COMPILE_SECONDS = 38.0


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to time."""

    width: int = 256
    memory_size: int = 128
    num_envs: int = 16
    unroll: int = 128
    rounds: int = 7
    keep: bool = True
    """Write the table to results/bench."""


def job(settings: Settings) -> OnlineConfig:
    """The run."""
    return OnlineConfig(
        env=EnvConfig("MemoryChain-v0", {"memory_length": 64}, num_envs=settings.num_envs),
        core=core_config(
            "gtrxl", "small", width=settings.width, memory_size=settings.memory_size, heads=4
        ),
        agent=AgentConfig(encoder_width=settings.width),
        unroll=settings.unroll,
        updates_per_visit=1,
    )


def main(settings: Settings) -> None:
    """Compile as a run does, then time its parts in turn."""
    config = job(settings)
    began = time.perf_counter()
    trainer = OnlineTrainer(config)
    state = jax.jit(trainer.init, compiler_options=compiler_options(runs_once=True))(0)
    jax.block_until_ready(state)
    init_seconds = time.perf_counter() - began
    visit = jax.jit(trainer.visit, compiler_options=compiler_options()).lower(state).compile()
    compile_seconds = time.perf_counter() - began

    rollout = jax.jit(trainer.rollout)
    *_, collected = rollout(state, jax.random.key(1))

    @jax.jit
    def learn(state: Any, collected: Any) -> Any:
        return trainer.learner.learn(state, collected)

    seconds = interleaved(
        {
            "rollout": lambda: rollout(state, jax.random.key(1)),
            "learn": lambda: learn(state, collected),
            "update": lambda: visit(state),
        },
        settings.rounds,
    )
    steps = config.steps_per_update
    show(
        "training",
        f"Training, 2 layers, width {settings.width}, memory {settings.memory_size}, "
        f"{settings.num_envs} environments, unroll {settings.unroll}",
        [
            Row("initialisation, compiled and run", init_seconds, "s"),
            Row("initialisation and compilation of the program", compile_seconds, "s"),
            Row("... against 38 s", OTHERS_COMPILE_SECONDS / compile_seconds, "x"),
            Row("rollout", steps / seconds["rollout"], "environment steps/s"),
            Row("... against 590", steps / seconds["rollout"] / OTHERS_STEPS_PER_SECOND, "x"),
            Row("learner", steps / seconds["learn"], "tokens/s"),
            Row("rollout and learner", steps / seconds["update"], "environment steps/s"),
            Row("... against 590", steps / seconds["update"] / OTHERS_STEPS_PER_SECOND, "x"),
        ],
        keep=settings.keep,
    )


if __name__ == "__main__":
    main(tyro.cli(Settings))
