"""Training: rollout, learner and compilation of the whole program, against a public PPO.

    python experiments/bench/training.py
    python experiments/bench/training.py --peer PATH

Ours is V-MPO on MemoryChain with 2 layers, width 256, memory 128, 16 environments and unrolls of
128 steps. PATH is a checkout of https://github.com/Reytuag/transformerXL_PPO_JAX, a PPO with a
gated Transformer-XL. It is timed in the same process, interleaved with ours, at the same sizes and
in the same environment: with four epochs per rollout, as published, and with one, as in ours. Its
program is a whole run of a few updates, including initialisation.
"""

import dataclasses
import time
from pathlib import Path
from typing import Any

import jax
import tyro
from timing import Row, interleaved, show

from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import AgentConfig, EnvConfig, OnlineConfig
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs.compilation import compiler_options
from gtrxl_jax.runs.programs import make_iteration

HEADS = 4


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to time."""

    width: int = 256
    memory_size: int = 128
    num_envs: int = 16
    unroll: int = 128
    rounds: int = 7
    peer: Path | None = None
    """A checkout of the public PPO; without it, only ours is timed."""
    peer_updates: int = 4
    """Number of updates of the peer's run."""
    keep: bool = True
    """Write the table to results/bench."""


def job(settings: Settings) -> OnlineConfig:
    """Return the config of our run."""
    return OnlineConfig(
        env=EnvConfig("MemoryChain-v0", {"memory_length": 64}, num_envs=settings.num_envs),
        core=core_config(
            "gtrxl", "small", width=settings.width, memory_size=settings.memory_size, heads=HEADS
        ),
        agent=AgentConfig(encoder_width=settings.width),
        unroll=settings.unroll,
        updates_per_iteration=1,
    )


def peers(settings: Settings, config: OnlineConfig) -> tuple[dict[int, Any], dict[int, float]]:
    """Compile the peer's runs; returns them and the seconds of compilation, by number of epochs."""
    if settings.peer is None:
        print("no --peer: only ours is timed")
        return {}, {}
    from peer_ppo import compiled

    runs, seconds = {}, {}
    for epochs in (4, 1):
        began = time.perf_counter()
        runs[epochs] = compiled(
            settings.peer,
            (config.env.name, config.env.params),
            NUM_ENVS=settings.num_envs,
            NUM_STEPS=settings.unroll,
            NUM_MINIBATCHES=min(8, settings.num_envs),
            TOTAL_TIMESTEPS=settings.peer_updates * config.steps_per_update,
            UPDATE_EPOCHS=epochs,
            qkv_features=settings.width,
            EMBED_SIZE=settings.width,
            hidden_layers=settings.width,
            num_heads=HEADS,
            num_layers=config.core.layers,
            WINDOW_MEM=settings.memory_size,
            WINDOW_GRAD=settings.unroll // 2,
        )
        seconds[epochs] = time.perf_counter() - began
    return runs, seconds


def main(settings: Settings) -> None:
    """Compile as a run does, then time its parts, interleaved."""
    config = job(settings)
    began = time.perf_counter()
    trainer = OnlineTrainer(config)
    state = jax.jit(trainer.init, compiler_options=compiler_options(runs_once=True))(0)
    jax.block_until_ready(state)
    init_seconds = time.perf_counter() - began
    iteration = (
        jax.jit(make_iteration(trainer), compiler_options=compiler_options()).lower(state).compile()
    )
    compile_seconds = time.perf_counter() - began

    rollout = jax.jit(trainer.rollout)
    _, collected, _ = rollout(state, jax.random.key(1))

    @jax.jit
    def learn(state: Any, collected: Any) -> Any:
        return trainer.algorithm.step(state.learner, collected)

    runs, compiling = peers(settings, config)
    seconds = interleaved(
        {
            "rollout": lambda: rollout(state, jax.random.key(1)),
            "learn": lambda: learn(state, collected),
            "update": lambda: iteration(state),
        }
        | {f"peer {n}": lambda run=run: run(jax.random.key(0)) for n, run in runs.items()},
        settings.rounds,
    )
    steps = config.steps_per_update
    ours = steps / seconds["update"]
    rows = [
        Row("initialisation, compiled and run", init_seconds, "s"),
        Row("initialisation and compilation of the program", compile_seconds, "s"),
        Row("rollout", steps / seconds["rollout"], "environment steps/s"),
        Row("learner", steps / seconds["learn"], "tokens/s"),
        Row("rollout and learner", ours, "environment steps/s"),
    ]
    for epochs in runs:
        theirs = settings.peer_updates * steps / seconds[f"peer {epochs}"]
        rows += [
            Row(f"peer, epochs {epochs}: rollout and learner", theirs, "environment steps/s"),
            Row("... ours against it", ours / theirs, "x"),
            Row(f"peer, epochs {epochs}: compilation", compiling[epochs], "s"),
            Row("... against ours", compiling[epochs] / compile_seconds, "x"),
        ]
    show(
        "training",
        f"Training, 2 layers, width {settings.width}, memory {settings.memory_size}, "
        f"{settings.num_envs} environments, unroll {settings.unroll}",
        rows,
        keep=settings.keep,
    )


if __name__ == "__main__":
    main(tyro.cli(Settings))
