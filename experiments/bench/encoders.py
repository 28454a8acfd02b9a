"""Image encoders: alone, in a loop, and in the trainer.

    python experiments/bench/encoders.py

For the MinAtar encoder at 10 x 10, and those of GTrXL and DQN at 64 x 64 and 84 x 84, this times a
forward pass, its gradient, and the gradient inside a `lax.scan`, as in an iteration. There, XLA's
CPU backend runs JAX's own gradient of a convolution tens of times slower (see `ops.convolution`);
both kinds of gradient are timed at 10 x 10. Finally, it times an iteration of a trainer in
MinAtar's Breakout, against the program of a single update.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import tyro
from timing import Row, interleaved, show

from gtrxl_jax.nn import encoders
from gtrxl_jax.online.config import EnvConfig, preset
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs.programs import compiler_options, make_iteration


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to time."""

    preset: str = "default"
    batch: int = 256
    loop: int = 4
    """Number of gradients in the loop."""
    updates: int = 5
    """Number of updates of an iteration."""
    sides: tuple[int, ...] = (10, 64, 84)
    rounds: int = 3
    keep: bool = True
    """Write the table to results/bench."""


def calls(name: str, side: int, settings: Settings) -> dict[str, Callable[[], Any]]:
    """Return the forward pass, gradient, and loop of gradients of an image encoder."""
    shape = (side, side, 4)
    encoder = encoders.make_encoder(jax.ShapeDtypeStruct(shape, jnp.float32), name, width=64)
    x = jax.random.normal(jax.random.key(0), (settings.batch, *shape))
    variables = jax.jit(encoder.init)(jax.random.key(1), x)
    apply: Any = encoder.apply

    def gradient(variables: Any, x: Any) -> Any:
        return jax.grad(lambda v: jnp.sum(jnp.square(apply(v, x))))(variables)

    def descend(variables: Any, x: Any) -> Any:
        def step(variables: Any, _: None) -> Any:
            change = gradient(variables, x)
            return jax.tree.map(lambda v, g: v - 1e-9 * g, variables, change), None

        return jax.lax.scan(step, variables, length=settings.loop)[0]

    programs = {
        kind: jax.jit(function, compiler_options=compiler_options()).lower(variables, x).compile()
        for kind, function in (
            ("forward", apply),
            ("gradient", gradient),
            ("in a loop", descend),
        )
    }
    return {kind: functools.partial(run, variables, x) for kind, run in programs.items()}


def of_encoder(name: str, side: int, settings: Settings) -> list[Row]:
    """Time an encoder; returns the times, and the ratios of those of the gradients."""
    timed = calls(name, side, settings)
    if side == min(settings.sides):
        ours = encoders.convolve
        encoders.convolve = jax.lax.conv_general_dilated  # type: ignore[assignment]
        try:
            timed["JAX's in a loop"] = calls(name, side, settings)["in a loop"]
        finally:
            encoders.convolve = ours
    seconds = interleaved(timed, settings.rounds)
    loops = {kind: s / settings.loop for kind, s in seconds.items() if "loop" in kind}
    what = f"{name}, {side} x {side}"
    rows = [
        Row(f"{what}: forward", 1e3 * seconds["forward"], "ms"),
        Row(f"{what}: gradient", 1e3 * seconds["gradient"], "ms"),
        Row("... against forward", seconds["gradient"] / seconds["forward"], "x"),
    ]
    for kind, taken in loops.items():
        rows += [
            Row(f"{what}: gradient, {kind}", 1e3 * taken, "ms"),
            Row("... against by itself", taken / seconds["gradient"], "x"),
        ]
    return rows


def of_trainer(settings: Settings) -> list[Row]:
    """Measure steps per second in MinAtar's Breakout, of an iteration and of single updates."""
    config = dataclasses.replace(
        preset(settings.preset),
        env=EnvConfig("Breakout-MinAtar", num_envs=settings.batch),
        updates_per_iteration=settings.updates,
    )
    trainer = OnlineTrainer(config)
    state = jax.jit(trainer.init, compiler_options=compiler_options(runs_once=True))(0)
    iteration, update = (
        jax.jit(function, compiler_options=compiler_options()).lower(state).compile()
        for function in (make_iteration(trainer), trainer.update)
    )
    seconds = interleaved(
        {"iteration": lambda: iteration(state), "update": lambda: update(state)}, settings.rounds
    )
    in_iteration = config.steps_per_iteration / seconds["iteration"]
    alone = config.steps_per_update / seconds["update"]
    return [
        Row("Breakout: an iteration", in_iteration, "environment steps/s"),
        Row("Breakout: updates one by one", alone, "environment steps/s"),
        Row("an iteration against updates one by one", in_iteration / alone, "x"),
    ]


def main(settings: Settings) -> None:
    """Time every encoder, then the trainer."""
    rows = []
    for side in settings.sides:
        for name in ("conv",) if side < encoders.NatureEncoder.min_side else ("resnet", "nature"):
            rows += of_encoder(name, side, settings)
    rows += of_trainer(settings)
    show("encoders", f"Encoders, {settings.batch} images", rows, keep=settings.keep)


if __name__ == "__main__":
    main(tyro.cli(Settings))
