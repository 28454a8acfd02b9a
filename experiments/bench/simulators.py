"""Training in environments on the host: against their own speed, and against stable-baselines3.

    python experiments/bench/simulators.py
    python experiments/bench/simulators.py --peer PYTHON
    python experiments/bench/simulators.py --peer PYTHON --goal 0.95 --env TMaze-v0 --keys ""

For one environment of gymnasium, a few runs one after another:

    alone     gymnasium's vector environment with random actions, before and after all others;
              of this library's, only the wrappers that choose what is observed
    LSTM      PPO with an LSTM, one actor that is an update behind
    GTrXL     PPO with the default core, likewise
    peer      RecurrentPPO of sb3-contrib, at the same sizes of network, rollout and minibatches

PYTHON is an interpreter with sb3-contrib and minigrid. Compilation and the first updates, ours and
the peer's, are not counted.

With a goal, the seconds are told after which the mean return of the episodes of ten updates is at
the goal, compilation included, for each seed. All have the same learning rate and entropy bonus
then, which do not decay. TMaze-v0 is that of `tmaze.py`.

CleanRL's PPO with an LSTM is missing, since its script builds Atari's wrappers and network itself,
and would have to be copied to run in another environment.
"""

import dataclasses
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tmaze  # noqa: F401, registers its environment
import tyro
from gymnasium.vector import SyncVectorEnv
from timing import Row, show

from gtrxl_jax.envs.host.stream import HostEnv
from gtrxl_jax.nn.core import CoreConfig
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import ActorsConfig, AgentConfig, EnvConfig, OnlineConfig
from gtrxl_jax.online.host import make_trainer
from gtrxl_jax.online.optimizer import OptimizerConfig
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.runs.config import CheckpointConfig, EvaluationConfig
from gtrxl_jax.runs.logging.writers import MetricWriter
from gtrxl_jax.runs.loop import train

PEER = Path(__file__).with_name("peer_sb3.py")
WINDOW = 10
"""Updates over which the return of episodes is averaged."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to time."""

    env: str = "MiniGrid-MemoryS13Random-v0"
    keys: str = "image"
    """The entries of the observation that are read, if it has entries."""
    params: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Arguments of the environment, such as corridor_length 20."""
    num_envs: int = 16
    unroll: int = 32
    segments: int = 4
    epochs: int = 4
    minibatches: int = 8
    width: int = 64
    head: int = 64
    updates: int = 50
    """Of the runs that are timed."""
    goal: float | None = None
    """The mean return up to which to train, instead of for so many updates."""
    most_steps: int = 1_000_000
    """Environment steps after which a run ends without having reached the goal."""
    seeds: int = 3
    learning_rate: float = 5e-4
    entropy_cost: float = 0.01
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
    keys = {"keys": settings.keys} if settings.keys else {}
    return HostEnv(f"gymnasium:{settings.env}", settings.params, keys | {"flatten": True})


def job(settings: Settings, core: CoreConfig, seed: int = 0) -> OnlineConfig:
    """Return the config of a run."""
    env = host_env(settings)
    rollout = settings.num_envs * settings.segments * settings.unroll
    learning, algorithm, optimizer = settings.goal is not None, PPOConfig(), OptimizerConfig()
    if learning:
        algorithm = PPOConfig(entropy_cost=settings.entropy_cost, entropy_final=1.0)
        optimizer = OptimizerConfig(learning_rate=settings.learning_rate, final=1.0)
    return OnlineConfig(
        env=EnvConfig(
            env.name, settings.params, wrappers=dict(env.wrappers), num_envs=settings.num_envs
        ),
        core=core,
        agent=AgentConfig(encoder="linear", encoder_width=settings.width, head_width=settings.head),
        algorithm=dataclasses.replace(
            algorithm, epochs=settings.epochs, minibatches=settings.minibatches
        ),
        optimizer=optimizer,
        evaluation=EvaluationConfig(episodes=1, interval=0),
        checkpoint=CheckpointConfig(interval=0),
        actors=ActorsConfig(count=settings.actors),
        unroll=settings.unroll,
        segments=settings.segments,
        updates_per_iteration=WINDOW if learning else settings.updates // 5,
        total_steps=settings.most_steps if learning else settings.updates * rollout,
        seed=seed,
        devices=1,
    )


class Learned(NamedTuple):
    """What a run took to reach the goal, or in all if it did not."""

    seconds: float
    steps: int
    reached: bool


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


class Reached(Exception):  # noqa: N818, ends a run that has done what it is for
    """The return is at the goal."""


class UntilGoal(Clock):
    """Ends a run once the return of an iteration is at the goal."""

    def __init__(self, goal: float) -> None:
        super().__init__()
        self.goal = goal

    def write(self, step: Any, metrics: Any) -> None:
        """Compare the return with the goal."""
        super().write(step, metrics)
        if np.squeeze(metrics.get("episode/return", np.nan)) >= self.goal:
            raise Reached


def learn(settings: Settings, core: CoreConfig, seed: int) -> Learned:
    """Return what it takes a run to reach the goal."""
    assert settings.goal is not None
    clock, began, reached = UntilGoal(settings.goal), time.perf_counter(), False
    try:
        train(make_trainer(job(settings, core, seed)), writers=[clock])
    except Reached:
        reached = True
    step, ended = clock.times[-1]
    return Learned(ended - began, step, reached)


def theirs(settings: Settings, seed: int = 0) -> dict[str, Any]:
    """Return the steps a second of the peer, and the number of its parameters.

    With a goal, also what it took to reach it.
    """
    given = {
        "env": settings.env,
        "keys": settings.keys.split(",") if settings.keys else [],
        "params": settings.params,
        "envs": settings.num_envs,
        "rollout": settings.unroll * settings.segments,
        "epochs": settings.epochs,
        "minibatches": settings.minibatches,
        "width": settings.width,
        "head": settings.head,
        "updates": settings.updates // 2,
        "seed": seed,
    }
    if settings.goal is not None:
        given |= {
            "goal": settings.goal,
            "window": WINDOW,
            "most_steps": settings.most_steps,
            "learning_rate": settings.learning_rate,
            "entropy_cost": settings.entropy_cost,
        }
    command = [str(settings.peer), str(PEER), json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def goal_rows(settings: Settings) -> list[Row]:
    """Return what each agent takes to reach the goal, its seeds one after another."""
    lstm = core_config("lstm", layers=1, width=settings.width)
    agents: dict[str, Callable[[int], Learned]] = {
        "PPO with an LSTM": lambda seed: learn(settings, lstm, seed),
        "PPO with GTrXL": lambda seed: learn(settings, core_config("gtrxl"), seed),
    }
    if settings.peer:
        agents["sb3's RecurrentPPO"] = lambda seed: Learned(**theirs(settings, seed)["learned"])
    rows = []
    for seed in range(settings.seeds):
        for name, run in agents.items():
            learned = run(seed)
            state = "" if learned.reached else ", goal not reached"
            rows += [
                Row(f"{name}, seed {seed}", learned.seconds, f"s{state}"),
                Row("...", learned.steps, f"steps{state}"),
            ]
    return rows


def main(settings: Settings) -> None:
    """Time everything, one after another."""
    title = (
        f"Training in {settings.env} on the host, {settings.num_envs} environments, rollouts of "
        f"{settings.segments * settings.unroll}, {settings.epochs} epochs of "
        f"{settings.minibatches} minibatches, {settings.actors} actor(s)"
    )
    if settings.goal is not None:
        title = f"{title}: to a return of {settings.goal}, with compilation"
        show("simulators_goal", title, goal_rows(settings), keep=settings.keep)
        return
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
    show("simulators", title, rows, keep=settings.keep)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main(tyro.cli(Settings))
