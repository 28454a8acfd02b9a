"""RATE: a training batch and an acting step, against the authors' PyTorch code; peak memory.

    python experiments/bench/rate.py
    python experiments/bench/rate.py --peer PATH

Sizes are the authors' for the T-Maze: 8 layers, 10 heads of 64, width 64, 5 memory tokens, N = 3
segments of K = 30 steps, and 64 trajectories per batch. Both sides take an optimizer step for each
segment, with the memory detached (`bptt` 0); ours is also timed with the gradient through the whole
trajectory. Ours are iterations of the trainer, with several batches in one program. Acting steps
are in one environment: theirs at a late step of a segment, ours averaged over a segment including
the update of the memory at its end. PATH is a checkout of https://github.com/AIRI-Institute/RATE,
whose model is timed in the same process; without it, only the reimplementation of its design in
`torch_rate` is timed, and without PyTorch only our side. Peak memory is the size of the temporaries
that XLA allocates for a training batch, for N, 2 N and 4 N segments.
"""

import dataclasses
import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import tyro
from timing import Row, interleaved, show

from gtrxl_jax.nn.sequence.registry import model_config
from gtrxl_jax.offline.config import OfflineConfig, OfflineEvaluationConfig
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.runs.programs import make_iteration
from gtrxl_jax.segments import Segments, zero_segment
from gtrxl_jax.timestep import zero_timestep


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to time."""

    preset: str = "tmaze"
    batch: int = 64
    unroll: int = 30
    segments: int = 3
    batches: int = 4
    """Number of batches in an iteration of our trainer, which is one program."""
    rounds: int = 3
    acting_rounds: int = 20
    """Number of rounds of acting, each with the steps of one segment."""
    peer: Path | None = None
    """A checkout of the authors' repository."""
    keep: bool = True
    """Write the table to results/bench."""


def make_trainer(
    settings: Settings, segments: int, model: Any = None, **changes: Any
) -> OfflineTrainer:
    """Create our trainer for the T-Maze."""
    return OfflineTrainer(
        OfflineConfig(
            model=model or model_config("rate", settings.preset),
            # Set explicitly, since the default would require data.
            evaluation=OfflineEvaluationConfig(target_return=1.0),
            unroll=settings.unroll,
            segments=segments,
            batch_size=settings.batch,
            updates_per_iteration=settings.batches,
            devices=1,
            **changes,
        )
    )


def random_batch(trainer: OfflineTrainer) -> Segments:
    """Return a batch of complete trajectories, with random observations."""
    segments, unroll = trainer.config.shape
    spaces = trainer.observation_space, trainer.action_space
    steps = zero_segment(zero_timestep(*spaces, trainer.config.batch_size, unroll))
    batch = jax.tree.map(lambda x: jnp.stack([x] * segments, axis=1), steps)
    noise = 255 * jax.random.uniform(jax.random.key(0), batch.observations.shape)
    return batch.replace(
        observations=noise.astype(batch.observations.dtype), mask=jnp.ones_like(batch.mask)
    )


def training(trainer: OfflineTrainer) -> Callable[[], Any]:
    """Return an iteration of a trainer, for repeated calls."""
    updates = trainer.config.updates_per_iteration
    batches = jax.tree.map(lambda x: jnp.stack([x] * updates), random_batch(trainer))
    iteration = jax.jit(make_iteration(trainer, 0), donate_argnums=0)
    held = [jax.jit(trainer.init)(0)]

    def call() -> Any:
        held[0], metrics = iteration(held[0], (batches, None))
        return metrics

    return call


def acting(trainer: OfflineTrainer) -> Callable[[], Any]:
    """Return a function that acts for all steps of a segment, one at a time."""
    params = jax.jit(trainer.init)(0).params
    model, variables = trainer.model, {"params": params}
    held = [jax.jit(lambda: model.apply(variables, 1, method="start"))()]

    @functools.partial(jax.jit, donate_argnums=1)
    def step(variables: Any, state: Any, asked_B: Any, observation: Any, first_B: Any) -> Any:
        state, policy = model.apply(
            variables, state, asked_B, observation, first_B, method="decode"
        )
        action = policy.mode()
        return model.apply(variables, state, action, method="observe_action"), action

    observation = random_batch(trainer).observations[:1, 0, 0]
    seen = jnp.ones(1), observation, jnp.zeros(1, bool)

    def call() -> Any:
        for _ in range(trainer.config.unroll):
            held[0], action = step(variables, held[0], *seen)
            jax.block_until_ready(action)
        return action

    return call


def peak(trainer: OfflineTrainer) -> float:
    """Return the temporaries of a training batch in megabytes."""
    update = jax.jit(trainer.algorithm.update, donate_argnums=0)
    learner = jax.eval_shape(trainer.init, 0).learner
    batch = jax.eval_shape(lambda: random_batch(trainer))
    memory: Any = update.lower(learner, batch, jax.random.key(0)).compile().memory_analysis()
    return memory.temp_size_in_bytes / 1e6


def peaks(settings: Settings) -> list[Row]:
    """Measure the temporaries of a training batch with the whole gradient."""
    rows = []
    for remat in (True, False):
        for times in (1, 2, 4):
            segments = times * settings.segments
            size = peak(make_trainer(settings, segments, remat=remat))
            kind = "rematerialized" if remat else "all activations kept"
            rows.append(Row(f"peak memory, N = {segments}, {kind}", size, "MB"))
    return rows


def in_torch(settings: Settings, model: Any, code: Any) -> tuple[Callable[[], Any], ...]:
    """Return training and acting functions of a PyTorch model, with as many steps as ours."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, weight_decay=0.1)
    sizes = (settings.batch, settings.unroll, settings.segments)

    def learn() -> None:
        model.train()
        for _ in range(settings.batches):
            code.training_batch(model, optimizer, *sizes)

    def act() -> None:
        model.eval()
        for _ in range(settings.unroll):
            code.acting_step(model, settings.unroll)

    return learn, act


def main(settings: Settings) -> None:
    """Time both sides, interleaved."""
    trainer = make_trainer(settings, settings.segments, bptt=0)
    whole = make_trainer(settings, settings.segments)
    learn = {"ours": training(trainer), "whole gradient": training(whole)}
    act = {"ours": acting(trainer)}
    names = []
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed: only our side is timed")
    else:
        import torch_rate

        names = ["their design in PyTorch"]
        config: Any = trainer.config.model
        design = torch_rate.TorchRATE(
            config.layers,
            config.width,
            config.heads,
            config.head_width or config.width,
            config.memory_tokens,
            max(config.cache_size, 1),
            config.dropout,
        )
        learn[names[0]], act[names[0]] = in_torch(settings, design, torch_rate)
        if settings.peer is None:
            print("no --peer: the authors' own code is not timed")
        else:
            import peer_rate

            names.append("the authors' code")
            theirs = peer_rate.make_model(settings.peer, config)
            learn[names[1]], act[names[1]] = in_torch(settings, theirs, peer_rate)
    batch = {k: s / settings.batches for k, s in interleaved(learn, settings.rounds).items()}
    step = {k: s / settings.unroll for k, s in interleaved(act, settings.acting_rounds).items()}
    rows = [
        Row("training batch, an update a segment", batch["ours"], "s"),
        Row("training batch, whole gradient", batch["whole gradient"], "s"),
        Row("acting step, cached", 1e3 * step["ours"], "ms"),
    ]
    for name in names:
        rows += [
            Row(f"{name}: training batch", batch[name], "s"),
            Row("... against ours", batch[name] / batch["ours"], "x"),
            Row(f"{name}: acting step", 1e3 * step[name], "ms"),
            Row("... against ours", step[name] / step["ours"], "x"),
        ]
    sizes = f"{settings.batch} trajectories of {settings.segments} x {settings.unroll} steps"
    show("rate", f"RATE {settings.preset}, {sizes}", rows + peaks(settings), keep=settings.keep)


if __name__ == "__main__":
    main(tyro.cli(Settings))
