"""Training: rollout, learner and compilation of the whole program, against a public PPO.

    python experiments/bench/training.py
    python experiments/bench/training.py --peer PATH

Ours is V-MPO, one step per rollout, and PPO, four epochs of eight minibatches, on MemoryChain with
2 layers, width 256, memory 128, 16 environments and unrolls of 128 steps. PATH is a checkout of
https://github.com/Reytuag/transformerXL_PPO_JAX, a PPO with a gated Transformer-XL. It is timed in
the same process, interleaved with ours, at the same sizes and in the same environment: with four
epochs, as published, and with one, for V-MPO. Its program is a whole run of a few updates,
including initialization.

Products of matrices bound how much faster PPO can be. Their operations are those of the core's
learner steps, see `learning`, and of its steps in acting, without attention; their rate is measured
on a product of a minibatch's size. "With nothing but products at this rate" is the ratio to the
peer that they leave.
"""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import tyro
from learning import useful_operations
from timing import Row, interleaved, show

from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.algorithm import AlgorithmConfig
from gtrxl_jax.online.config import AgentConfig, EnvConfig, OnlineConfig
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.online.vmpo import VMPOConfig
from gtrxl_jax.runs.programs import compiler_options, make_iteration

HEADS = 4
MINIBATCHES = 8
PPO_EPOCHS = 4


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


def job(settings: Settings, algorithm: AlgorithmConfig) -> OnlineConfig:
    """Return the config of a run of ours."""
    return OnlineConfig(
        env=EnvConfig("MemoryChain-v0", {"memory_length": 64}, num_envs=settings.num_envs),
        core=core_config(
            "gtrxl", "small", width=settings.width, memory_size=settings.memory_size, heads=HEADS
        ),
        agent=AgentConfig(encoder_width=settings.width),
        algorithm=algorithm,
        unroll=settings.unroll,
        updates_per_iteration=1,
    )


def peers(
    settings: Settings, config: OnlineConfig, all_epochs: Sequence[int] = (PPO_EPOCHS, 1)
) -> tuple[dict[int, Any], dict[int, float]]:
    """Compile the peer's runs; returns them and the seconds of compilation, by number of epochs."""
    if settings.peer is None:
        print("no --peer: only ours is timed")
        return {}, {}
    from peer_ppo import compiled

    runs, seconds = {}, {}
    for epochs in all_epochs:
        began = time.perf_counter()
        runs[epochs] = compiled(
            settings.peer,
            (config.env.name, config.env.params),
            NUM_ENVS=settings.num_envs,
            NUM_STEPS=settings.unroll,
            NUM_MINIBATCHES=min(MINIBATCHES, settings.num_envs),
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


def compiled_as_in_a_run(trainer: OnlineTrainer) -> tuple[Any, Any, float, float]:
    """Return the state, the program of an update, and the seconds to the state and to both."""
    began = time.perf_counter()
    state = jax.jit(trainer.init, compiler_options=compiler_options(runs_once=True))(0)
    jax.block_until_ready(state)
    init_seconds = time.perf_counter() - began
    iteration = (
        jax.jit(make_iteration(trainer), compiler_options=compiler_options()).lower(state).compile()
    )
    return state, iteration, init_seconds, time.perf_counter() - began


def products(settings: Settings, trainer: OnlineTrainer) -> tuple[float, Any, float]:
    """Return the operations of the products of a PPO update; a product, and its operations."""
    core: Any = trainer.agent.core
    width, minibatches = settings.width, min(MINIBATCHES, settings.num_envs)
    rows = settings.num_envs // minibatches
    learning = PPO_EPOCHS * minibatches * useful_operations(core, rows, settings.unroll)
    acting = settings.num_envs * settings.unroll * core.config.layers * 18 * 2.0 * width**2
    rows *= settings.unroll
    a, b = jnp.ones((rows, width)), jnp.ones((width, 3 * width))
    several = 100  # of one call, which takes a few microseconds

    @jax.jit
    def multiply(a: Any, b: Any) -> Any:
        def body(a: Any, _: None) -> Any:
            return (a @ b)[:, :width] * 0.001, None

        return jax.lax.scan(body, a, length=several)[0]

    return learning + acting, lambda: multiply(a, b), several * 6.0 * rows * width**2


def main(settings: Settings) -> None:
    """Compile as a run does, then time its parts, interleaved."""
    config = job(settings, VMPOConfig())
    steps = config.steps_per_update
    trainer = OnlineTrainer(config)
    state, iteration, init_seconds, compile_seconds = compiled_as_in_a_run(trainer)
    ppo = OnlineTrainer(
        job(settings, PPOConfig(epochs=PPO_EPOCHS, minibatches=min(MINIBATCHES, settings.num_envs)))
    )
    ppo_state, ppo_iteration, _, ppo_compile_seconds = compiled_as_in_a_run(ppo)

    act, learn = jax.jit(trainer.act), jax.jit(trainer.learn)
    params, key = trainer.algorithm.acting_params(state.learner), jax.random.key(1)
    _, experience = act(params, state.actor, key)

    operations, product, product_operations = products(settings, ppo)
    runs, compiling = peers(settings, config)
    seconds = interleaved(
        {
            "act": lambda: act(params, state.actor, key),
            "learn": lambda: learn(state.learner, experience, key),
            "V-MPO": lambda: iteration(state),
            "PPO": lambda: ppo_iteration(ppo_state),
            "product": product,
        }
        | {f"peer {n}": lambda run=run: run(jax.random.key(0)) for n, run in runs.items()},
        settings.rounds,
    )
    rate = product_operations / seconds["product"]
    fraction = operations / seconds["PPO"] / rate
    ours = {1: ("V-MPO", compile_seconds), PPO_EPOCHS: ("PPO", ppo_compile_seconds)}
    rows = [
        Row("initialization, compiled and run", init_seconds, "s"),
        Row("acting", steps / seconds["act"], "environment steps/s"),
        Row("V-MPO: learner", steps / seconds["learn"], "tokens/s"),
    ]
    for name, compilation in ours.values():
        rows += [
            Row(f"{name}: initialization and compilation of the program", compilation, "s"),
            Row(f"{name}: rollout and learner", steps / seconds[name], "environment steps/s"),
        ]
    rows += [
        Row("a product of a minibatch's size", 1e-9 * rate, "GFLOP/s"),
        Row("PPO: products, fraction of its time at this rate", fraction, ""),
    ]
    for epochs in runs:
        name, compilation = ours[epochs]
        theirs = settings.peer_updates * steps / seconds[f"peer {epochs}"]
        ratio = steps / seconds[name] / theirs
        rows += [
            Row(f"peer, epochs {epochs}: rollout and learner", theirs, "environment steps/s"),
            Row(f"... our {name} against it", ratio, "x"),
            *(
                [Row("... with nothing but products at this rate", ratio / fraction, "x")]
                if name == "PPO"
                else []
            ),
            Row(f"peer, epochs {epochs}: compilation", compiling[epochs], "s"),
            Row(f"... against our {name}", compiling[epochs] / compilation, "x"),
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
