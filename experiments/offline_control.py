"""Control from data of mixed quality: who becomes better than the data?

    python experiments/offline_control.py
    python experiments/offline_control.py --only Pendulum-v1 --seeds 1

Agents are trained first, and collect data with sampled actions, also by earlier checkpoints, as

    gtrxl train --env.name gymnasium:Hopper-v5 --checkpoint.keep 20 --folder runs/hopper ...
    gtrxl collect data/medium --policy runs/hopper --step 552960 --actions sample

do. The data sets, which are as small as the machine and not those of D4RL:

    CartPole-v1                 mixed: random actions, and an early agent
    Pendulum-v1                 replay: random actions, and agents of two stages of learning
                                mixed: the same with the best agent instead of the second stage
    Hopper-v5, HalfCheetah-v5   medium-replay: random actions, and agents of four stages, of which
    and Walker2d-v5             the last has about half of the best one's return
                                medium: the last of them
                                medium-expert: the same, and as many steps of the best one
    Pong and Breakout           replay: random actions, and agents of four stages; images of
                                42 x 42; an episode of Breakout is one of the five lives

Models and algorithms learn from the same data, three seeds each, and play with the best actions
after their last update. Imitation (DT, RATE) asks for the mean return of the best tenth. RATE asks
for it again in each segment, as its authors do in MuJoCo; it also plays without that.

The tasks of MuJoCo need the extra mujoco, the games the extra envpool. Agents and data are kept in
`--data`; with several workers, run `--only agent` and `--only data` before the rest.

Writes offline_control.jsonl and .md to experiments/results/.
"""

import dataclasses
import functools
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gtrxl_jax.collection import Collected, CollectionConfig, CollectionEnvConfig, collect_dataset
from gtrxl_jax.data import datasets, minari
from gtrxl_jax.nn.core import CoreConfig
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.nn.encoders import NatureEncoder, register_encoder
from gtrxl_jax.nn.sequence.registry import model_config
from gtrxl_jax.offline.algorithm import OfflineAlgorithmConfig
from gtrxl_jax.offline.config import (
    DataConfig,
    OfflineConfig,
    OfflineEnvConfig,
    OfflineEvaluationConfig,
)
from gtrxl_jax.offline.cql import CQLConfig
from gtrxl_jax.offline.environments import evaluation_streams
from gtrxl_jax.offline.evaluation import make_play
from gtrxl_jax.offline.imitation import ImitationConfig
from gtrxl_jax.offline.iql import IQLConfig
from gtrxl_jax.offline.optimizer import AdamWConfig
from gtrxl_jax.offline.td3_bc import TD3BCConfig
from gtrxl_jax.online.algorithm import AgentConfig
from gtrxl_jax.online.config import EnvConfig, OnlineConfig, preset
from gtrxl_jax.online.host import make_trainer
from gtrxl_jax.online.optimizer import OptimizerConfig
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.runs import loop
from gtrxl_jax.runs.config import CheckpointConfig
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores
from gtrxl_jax.studies.report import Paragraph, mean_entry, table


class SmallImageEncoder(NatureEncoder):
    """The network of DQN for images of 42 x 42, of which its own strides leave one vector.

    One vector is enough for Pong, not for Breakout's wall of bricks. With these strides, 3 x 3 are
    left.
    """

    strides: tuple[int, ...] = (3, 2, 1)


register_encoder("nature-42", SmallImageEncoder)


@dataclasses.dataclass(frozen=True)
class Settings(Options):
    """Options, and where agents and data are."""

    data: Path = Path("build/offline_control")
    """Folder of the agents' runs and of the data sets, which are made if missing."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Episodes of the agent after some steps, or of random actions."""

    step: int | None
    episodes: int


@dataclasses.dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
      agent: the config of the agent that collects the data.
      expert: the step of its best checkpoint.
      data: the data sets.
      encoder: of the models.
      episodes: number of episodes of an evaluation.
      final: fraction of the learners' learning rate that remains at the end.
      unroll: steps of one of the three segments of models with memory.
      updates: of memoryless models. Others have fewer, with as many steps in all.
      critic_updates: of CQL and TD3+BC, whose policies follow a critic and have not converged after
        as many as others; by default as many.
      singles: single steps in a batch of memoryless models; others have 16 times three segments.
      is_normalized: whether returns are shown on the scale from random actions to the expert.
    """

    agent: OnlineConfig
    expert: int
    data: dict[str, tuple[Part, ...]]
    episodes: int
    encoder: str = "auto"
    final: float = AdamWConfig.final
    unroll: int = 20
    updates: int = 6000
    critic_updates: int | None = None
    singles: int = 256
    is_normalized: bool = True


def agent(
    env: str | EnvConfig,
    steps: int,
    checkpoint: CheckpointConfig,
    core: CoreConfig,
    **settings: Any,
) -> OnlineConfig:
    """Return the config of an agent that keeps all of its checkpoints."""
    config = preset("default")
    return dataclasses.replace(
        config,
        env=EnvConfig(env, num_envs=config.env.num_envs) if isinstance(env, str) else env,
        core=core,
        checkpoint=checkpoint,
        evaluation=dataclasses.replace(config.evaluation, interval=0),
        total_steps=steps,
        **settings,
    )


def each_of(*steps: int | None, episodes: int) -> tuple[Part, ...]:
    """Return as many episodes of each of several policies."""
    return tuple(Part(step, episodes) for step in steps)


def mujoco(
    name: str, stages: Sequence[int], expert: int, replay: int, both: tuple[int, int]
) -> Task:
    """Return a task of MuJoCo.

    Args:
      name: of the environment.
      stages: steps of the agent, of which the last one has about half of the best one's return.
      expert: the step of the best checkpoint.
      replay: episodes of random actions and of each stage.
      both: episodes of the last stage and of the best checkpoint, with about as many steps.
    """
    medium = stages[-1]
    return Task(
        agent(
            f"gymnasium:{name}",
            1_000_000,
            CheckpointConfig(50_000, keep=20),
            core_config("mingru"),
            algorithm=PPOConfig(entropy_cost=0.0),
        ),
        expert=expert,
        data={
            "medium-replay": each_of(None, *stages, episodes=replay),
            "medium": (Part(medium, both[0]),),
            "medium-expert": (Part(medium, both[0]), Part(expert, both[1])),
        },
        episodes=24,
        # A fall ends an episode, so that a small change of the policy changes its return by
        # hundreds: as IQL's authors, until none remains.
        final=0.0,
        critic_updates=20_000,
    )


def atari(
    name: str,
    stages: Sequence[int],
    episodes: int,
    evaluated: int = 16,
    encoder: str = "nature",
    **params: Any,
) -> Task:
    """Return a game of Atari.

    Args:
      name: of the environment.
      stages: steps of the agent, of which the last are all.
      episodes: of random actions and of each stage.
      evaluated: episodes of an evaluation.
      encoder: of the agent, and of the models.
      params: other parameters of the environment.
    """
    size = {"img_height": 42, "img_width": 42, "num_threads": 1}
    return Task(
        agent(
            EnvConfig(f"envpool:{name}", {**size, **params}, num_envs=16),
            stages[-1],
            CheckpointConfig(102_400, keep=20),
            core_config("mingru"),
            agent=AgentConfig(encoder=encoder),
            algorithm=PPOConfig(entropy_cost=0.01, epochs=3, minibatches=8),
            optimizer=OptimizerConfig(learning_rate=3e-4),
            segments=4,
        ),
        expert=stages[-1],
        data={"replay": each_of(None, *stages, episodes=episodes)},
        episodes=evaluated,
        encoder=encoder,
        unroll=30,
        updates=1000,
        singles=16 * 3 * 30,
        is_normalized=False,
    )


TASKS = {
    "CartPole-v1": Task(
        agent(
            "CartPole-v1",
            200_000,
            CheckpointConfig(10_000, keep=40),
            core_config("gtrxl", memory_size=16),
        ),
        expert=204_800,
        data={"mixed": (Part(None, 200), Part(10_240, 64))},
        episodes=64,
    ),
    "Pendulum-v1": Task(
        agent("Pendulum-v1", 500_000, CheckpointConfig(20_000, keep=40), core_config("mingru")),
        expert=501_760,
        data={
            "replay": each_of(None, 40_960, 61_440, episodes=40),
            "mixed": each_of(None, 40_960, 501_760, episodes=40),
        },
        episodes=64,
    ),
    "Hopper-v5": mujoco(
        "Hopper-v5",
        (102_400, 307_200, 450_560, 552_960),
        expert=1_003_520,
        replay=64,
        both=(128, 64),
    ),
    "HalfCheetah-v5": mujoco(
        "HalfCheetah-v5", range(51_200, 204_801, 51_200), expert=1_003_520, replay=12, both=(32, 32)
    ),
    "Walker2d-v5": mujoco(
        "Walker2d-v5", range(153_600, 307_201, 51_200), expert=1_003_520, replay=48, both=(96, 48)
    ),
    "Pong": atari("Pong-v5", (614_400, 1_024_000, 1_433_600, 2_048_000), episodes=12),
    # An episode is one of the five lives, whose ball is served by the environment.
    "Breakout": atari(
        "Breakout-v5",
        (409_600, 819_200, 1_228_800, 1_536_000),
        episodes=150,
        evaluated=64,
        encoder="nature-42",
        episodic_life=True,
        max_episode_steps=3000,
    ),
}
LEARNERS: dict[str, tuple[str, OfflineAlgorithmConfig]] = {
    "BC": ("bc-mlp", ImitationConfig()),
    "IQL": ("bc-mlp", IQLConfig()),
    "CQL": ("bc-mlp", CQLConfig()),
    "TD3+BC": ("bc-mlp", TD3BCConfig()),
    "DT": ("dt", ImitationConfig()),
    "DMamba": ("dmamba", ImitationConfig()),
    "RATE": ("rate", ImitationConfig()),
}
"""The model and the algorithm."""
MEMORYLESS = ("BC", "IQL", "CQL", "TD3+BC")
CONTINUOUS = ("Pendulum-v1", "Hopper-v5", "HalfCheetah-v5", "Walker2d-v5")
KEPT = "return/kept target"
"""RATE's return if it does not ask for the target return again in each segment."""
PUBLISHED = {
    ("Hopper-v5", "medium-replay"): ("95.0", "82.7 ± 7.0", "82.6 ± 4.6", "83.7 ± 8.2"),
    ("Hopper-v5", "medium"): ("58.0", "67.6 ± 1.0", "83.5 ± 12.5", "77.4 ± 1.4"),
    ("Hopper-v5", "medium-expert"): ("105.4", "107.6 ± 1.8", "111.1 ± 0.3", "112.5 ± 0.2"),
    ("HalfCheetah-v5", "medium-replay"): ("45.5", "36.6 ± 0.8", "39.6 ± 0.1", "39.0 ± 0.6"),
    ("HalfCheetah-v5", "medium"): ("44.4", "42.6 ± 0.1", "42.8 ± 0.1", "43.5 ± 0.3"),
    ("HalfCheetah-v5", "medium-expert"): ("91.6", "86.8 ± 1.3", "91.9 ± 0.6", "87.4 ± 0.1"),
    ("Walker2d-v5", "medium-replay"): ("77.2", "66.6 ± 3.0", "70.9 ± 4.3", "73.7 ± 1.4"),
    ("Walker2d-v5", "medium"): ("72.5", "74.0 ± 1.4", "78.2 ± 0.6", "80.7 ± 0.7"),
    ("Walker2d-v5", "medium-expert"): ("108.8", "108.1 ± 0.2", "108.3 ± 0.5", "108.7 ± 0.5"),
    ("Pong", "replay"): ("", "17.1 ± 2.9", "1.6 ± 15.3", "18.7 ± 0.5"),
}
"""The scores of CQL, DT, DMamba and RATE in tables 1 and 2 of RATE's paper, on D4RL's data and
DQN-replay's, by the task and data here."""


def job(task: str, data: str, learner: str, folder: Path, updates: int | None) -> OfflineConfig:
    """Return the config of a cell."""
    of_task, (model, algorithm) = TASKS[task], LEARNERS[learner]
    env, is_memoryless = of_task.agent.env, learner in MEMORYLESS
    segments, batch_size = (1, of_task.singles) if is_memoryless else (3, 16)
    # Single steps for memoryless models, as IQL's authors; the segments of RATE's paper.
    unroll = 1 if is_memoryless else of_task.unroll
    own = of_task.updates
    if learner in ("CQL", "TD3+BC"):
        own = of_task.critic_updates or own
    updates = updates or own * of_task.singles // (batch_size * segments * unroll)
    return OfflineConfig(
        env=OfflineEnvConfig(env.name, env.params),
        data=DataConfig(path=str(folder / f"{task} {data}")),
        model=model_config(model, encoder=of_task.encoder),
        algorithm=algorithm,
        optimizer=AdamWConfig(final=of_task.final),
        evaluation=OfflineEvaluationConfig(
            episodes=of_task.episodes, restart_return=learner == "RATE"
        ),
        unroll=unroll,
        segments=segments,
        batch_size=batch_size,
        total_updates=updates,
        updates_per_iteration=min(updates, 200),
        remat=False,
    )


def collect(task: str, folder: Path, part: Part) -> tuple[Path, Collected]:
    """Collect episodes with sampled actions into a new folder; return it and a summary."""
    env = TASKS[task].agent.env
    config = CollectionConfig(
        CollectionEnvConfig(env.name, env.params) if part.step is None else CollectionEnvConfig(),
        policy="random" if part.step is None else str(folder / task),
        step=part.step,
        actions="" if part.step is None else "sample",
        episodes=part.episodes,
        balance=False,
    )
    to = Path(tempfile.mkdtemp(dir=folder), "part")
    return to, collect_dataset(config, to)


def train_agent(task: str, folder: Path, seed: int) -> Record:
    """Train the agent of a task, and return the returns of its best and of random actions."""
    of_task = TASKS[task]
    config = dataclasses.replace(of_task.agent, seed=seed)
    trained = loop.train(make_trainer(config), folder=folder / task)
    returns = {}
    for name, step in {"expert": of_task.expert, "random": None}.items():
        part = Part(step, of_task.episodes)
        to, collected = collect(task, folder, part)
        shutil.rmtree(to.parent)
        returns[name] = collected.mean_return
    result = trained.result
    return {
        "steps": result.steps,
        "seconds": round(result.compile_seconds + result.train_seconds, 1),
        "scores": returns,
    }


def make_data(task: str, data: str, folder: Path, seed: int) -> Record:
    """Collect a data set, and return the returns of its episodes."""
    parts = [collect(task, folder, part) for part in TASKS[task].data[data]]
    sets = [datasets.load(path) for path, _ in parts]
    env = TASKS[task].agent.env
    metadata = minari.Metadata(env.name, env.params, policy="several")
    minari.save(iter(sets), folder / f"{task} {data}", metadata)
    for path, _ in parts:
        shutil.rmtree(path.parent)
    return_E = np.concatenate([np.sum(one.rewards, axis=1, dtype=np.float64) for one in sets])
    return {
        "episodes": len(return_E),
        "data_steps": sum(collected.steps for _, collected in parts),
        "scores": {"return": float(return_E.mean()), "best": float(return_E.max())},
    }


def measure(trained: Any) -> dict[str, float]:
    """Return RATE's return if it is asked for the return that remains."""
    trainer = trained.trainer
    policy = dataclasses.replace(trainer.policy, restart_every=0)
    streams = evaluation_streams(trainer.config)
    play = make_play(policy, streams, trainer.config.evaluation.episodes)
    played = play(trained.params_per_seed[0], jax.random.key(trainer.config.seed))
    return {KEPT: float(np.mean(played["return"]))}


def grid(options: Settings) -> list[Cell]:
    """Return all cells: agents, data sets and learners."""

    def cell(task: str, data: str, who: str, job: Any, seeds: int = 1, **settings: Any) -> Cell:
        return Cell({"task": task, "data": data, "who": who}, job, seeds, **settings)

    sets = [(task, data) for task, of_task in TASKS.items() for data in of_task.data]
    agents = [
        cell(
            task,
            "",
            "agent",
            functools.partial(train_agent, task, options.data),
            output=options.data / task,
        )
        for task in TASKS
    ]
    collections = [
        cell(
            task,
            data,
            "data",
            functools.partial(make_data, task, data, options.data),
            output=options.data / f"{task} {data}",
        )
        for task, data in sets
    ]
    learners = [
        cell(
            task,
            data,
            learner,
            job(task, data, learner, options.data, options.steps),
            options.seeds or 3,
            measure=measure if learner == "RATE" else None,
        )
        for learner in LEARNERS
        for task, data in sets
        if learner != "TD3+BC" or task in CONTINUOUS
    ]
    return [*agents, *collections, *learners]


def normalize(return_S: np.ndarray, agents: Sequence[Record]) -> np.ndarray:
    """Return returns on a scale of 0 for random actions to 100 for the task's best agent."""
    (low,), (high,) = scores(agents, "random"), scores(agents, "expert")
    return 100 * (return_S - low) / (high - low)


def columns(records: Sequence[Record]) -> dict[str, tuple[str, str]]:
    """Return the columns of the tables: by name, the label and the score of those that have run."""
    known = {record["labels"]["who"] for record in records}
    learners = {who: (who, "return") for who in LEARNERS if who in known}
    kept = {"RATE, counted down": ("RATE", KEPT)} if "RATE" in learners else {}
    return {"the data": ("data", "return"), **learners, **kept}


def returns(records: Sequence[Record]) -> dict[tuple[str, str], dict[str, np.ndarray]]:
    """Return the return of each seed in each column, by task and data set."""
    cells = by_cell(records, "task", "data", "who")
    return {
        (task, data): {
            name: scores(cells.get((task, data, who), []), score)
            for name, (who, score) in columns(records).items()
        }
        for task, of_task in TASKS.items()
        for data in of_task.data
        if {(task, data, "data"), (task, "", "agent")} <= cells.keys()
    }


def entry(value_S: np.ndarray) -> str:
    """Format the mean with its interval, and the number of seeds where there are several."""
    seeds = f" ({len(value_S)})" if len(value_S) > 1 else ""
    return mean_entry(value_S, 1) + seeds


def normalized_table(records: Sequence[Record]) -> list[str]:
    """Return the lines of the table of normalized returns, each above the published ones."""
    agents, rows = by_cell(records, "task", "who"), []
    for (task, data), found in returns(records).items():
        name, shown = f"{task}, {data}", list(found.values())
        if TASKS[task].is_normalized:
            shown = [normalize(return_S, agents[task, "agent"]) for return_S in shown]
        else:
            name += ", return"
        rows.append([name, *map(entry, shown)])
        if published := PUBLISHED.get((task, data)):
            theirs = dict(zip(("CQL", "DT", "DMamba", "RATE"), published, strict=True))
            rows.append(["the same, published", *(theirs.get(who, "") for who in found)])
    return table(["data", *columns(records)], rows)


def report(options: Settings, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the tables of the available records."""
    cells = by_cell(records, "task", "data", "who")
    rows = []
    for (task, data), found in returns(records).items():
        (collected,) = cells[task, data, "data"]
        size = [f"{collected[name]:,}" for name in ("episodes", "data_steps")]
        rows.append([f"{task}, {data}", *size, *map(entry, found.values())])
    agents = [
        [task, *(f"{scores(of_agent, name)[0]:,.1f}" for name in ("random", "expert"))]
        + [f"{TASKS[task].expert:,}"]
        for (task, _, who), of_agent in cells.items()
        if who == "agent"
    ]
    learned = [record for record in records if record["labels"]["who"] in LEARNERS]
    updates = sorted({record["steps"] for record in learned})
    return "Control from data of mixed quality", [
        "Normalized return, 0 for random actions and 100 for the best agent that was trained here: "
        "mean with the 95 % interval over seeds, and their number, after the last of "
        f"{' or '.join(f'{n:,}' for n in updates)} updates; that of the data is the mean of its "
        "episodes. BC, IQL, CQL and TD3+BC are memoryless, an MLP of two layers. Published is "
        "tables 1 and 2 of RATE's paper: its data are larger and of other agents, and its scores "
        "in MuJoCo are normalized by D4RL's returns. Pong has returns, as there, and Breakout "
        "those of one of the five lives.",
        normalized_table(records),
        "The returns themselves, and the sizes of the data:",
        table(["data", "episodes", "steps", *columns(records)], rows),
        "The returns of random actions and of the best agent, which samples its actions as in the "
        "data, and the step of its checkpoint:",
        table(["task", "random", "best agent", "step"], agents),
        "RATE asks for the target return again in each segment, and, in a column of its own, for "
        "what remains of it."
        if "RATE" in columns(records)
        else "",
    ]


STUDY = Study(__file__, grid, report, Settings)

if __name__ == "__main__":
    STUDY.main()
