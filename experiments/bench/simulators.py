"""Training in environments on the host: against their own speed, and against stable-baselines3.

    python experiments/bench/simulators.py
    python experiments/bench/simulators.py --peer PYTHON

For one environment of gymnasium, a few runs one after another:

    alone     gymnasium's vector environment with random actions, before and after all others;
              of this library's, only the wrappers that choose what is observed
    LSTM      PPO with an LSTM, one actor that is an update behind
    GTrXL     PPO with the default core, likewise
    peer      RecurrentPPO of sb3-contrib, at the same sizes of network, rollout and minibatches

PYTHON is an interpreter with sb3-contrib and minigrid. Compilation and the first updates, ours and
the peer's, are not counted. CleanRL's PPO with an LSTM is missing, since its script builds Atari's
wrappers and network itself, and would have to be copied to run in another environment.
"""

import dataclasses
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import jax
import tyro
from gymnasium.vector import SyncVectorEnv
from timing import Row, show

from gtrxl_jax.envs.host.stream import HostEnv
from gtrxl_jax.nn.core import CoreConfig
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import ActorsConfig, AgentConfig, EnvConfig, OnlineConfig
from gtrxl_jax.online.host import make_trainer
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.runs.config import CheckpointConfig, EvaluationConfig
from gtrxl_jax.runs.logging.writers import MetricWriter
from gtrxl_jax.runs.loop import train

PEER = Path(__file__).with_name("peer_sb3.py")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to time."""

    env: str = "MiniGrid-MemoryS13Random-v0"
    keys: str = "image"
    """The entries of the observation that are read."""
    num_envs: int = 16
    unroll: int = 32
    segments: int = 4
    epochs: int = 4
    minibatches: int = 8
    width: int = 64
    head: int = 64
    updates: int = 50
    actors: int = 1
    peer: Path | None = None
    """An interpreter with sb3-contrib; without it, only ours is timed."""
    keep: bool = True
    """Write the table to results/bench."""


def alone(settings: Settings) -> float:
    """Return the steps a second of the environments with random actions."""

    def make() -> Any:
        return host_env(settings).make().env

    envs = SyncVectorEnv([make] * settings.num_envs)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(500)]
    began = time.perf_counter()
    for action in actions:
        envs.step(action)
    seconds = time.perf_counter() - began
    envs.close()
    return len(actions) * settings.num_envs / seconds


def host_env(settings: Settings) -> HostEnv:
    """Return the environment."""
    return HostEnv(f"gymnasium:{settings.env}", {}, {"keys": settings.keys, "flatten": True})


def job(settings: Settings, core: CoreConfig) -> OnlineConfig:
    """Return the config of a run."""
    env = host_env(settings)
    return OnlineConfig(
        env=EnvConfig(env.name, wrappers=dict(env.wrappers), num_envs=settings.num_envs),
        core=core,
        agent=AgentConfig(encoder="linear", encoder_width=settings.width, head_width=settings.head),
        algorithm=PPOConfig(epochs=settings.epochs, minibatches=settings.minibatches),
        evaluation=EvaluationConfig(episodes=1, interval=0),
        checkpoint=CheckpointConfig(interval=0),
        actors=ActorsConfig(count=settings.actors),
        unroll=settings.unroll,
        segments=settings.segments,
        updates_per_iteration=settings.updates // 5,
        total_steps=settings.updates * settings.num_envs * settings.segments * settings.unroll,
        devices=1,
    )


class Clock(MetricWriter):
    """Notes when each iteration ends."""

    def __init__(self) -> None:
        self.times: list[tuple[int, float]] = []

    def write(self, step: Any, metrics: Any) -> None:
        """Note the time after so many steps."""
        self.times.append((step, time.perf_counter()))


def ours(settings: Settings, core: CoreConfig) -> tuple[float, int]:
    """Return the steps a second of a run, and the number of its parameters."""
    clock = Clock()
    trained = train(make_trainer(job(settings, core)), writers=[clock])
    size = sum(x.size for x in jax.tree.leaves(trained.params_per_seed[0]))
    (first, began), *_, (last, ended) = clock.times[:-1]  # the last iteration is evaluated
    return (last - first) / (ended - began), size


def theirs(settings: Settings) -> dict[str, Any]:
    """Return the steps a second of the peer, and the number of its parameters."""
    given = {
        "env": settings.env,
        "keys": settings.keys.split(","),
        "params": {},
        "envs": settings.num_envs,
        "rollout": settings.unroll * settings.segments,
        "epochs": settings.epochs,
        "minibatches": settings.minibatches,
        "width": settings.width,
        "head": settings.head,
        "updates": settings.updates // 2,
    }
    command = [str(settings.peer), str(PEER), json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(settings: Settings) -> None:
    """Time everything, one after another."""
    before = alone(settings)
    lstm, lstm_size = ours(settings, core_config("lstm", layers=1, width=settings.width))
    peer = theirs(settings) if settings.peer else None
    gtrxl, gtrxl_size = ours(settings, core_config("gtrxl"))
    speed = (before + alone(settings)) / 2
    rows = [
        Row("environments alone, random actions", speed, "steps/s"),
        Row(f"PPO with an LSTM, {lstm_size:,} parameters", lstm, "steps/s"),
        Row("... against the environments alone", lstm / speed, "x"),
        Row(f"PPO with GTrXL, {gtrxl_size:,} parameters", gtrxl, "steps/s"),
        Row("... against the environments alone", gtrxl / speed, "x"),
    ]
    if peer:
        rows += [
            Row(f"sb3's RecurrentPPO, {peer['parameters']:,} parameters", peer["steps"], "steps/s"),
            Row("... our LSTM against it", lstm / peer["steps"], "x"),
            Row("... our GTrXL against it", gtrxl / peer["steps"], "x"),
        ]
    show(
        "simulators",
        f"Training in {settings.env} on the host, {settings.num_envs} environments, rollouts of "
        f"{settings.segments * settings.unroll}, {settings.epochs} epochs of "
        f"{settings.minibatches} minibatches, {settings.actors} actor(s)",
        rows,
        keep=settings.keep,
    )


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main(tyro.cli(Settings))
