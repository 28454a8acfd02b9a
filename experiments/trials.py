"""Trials: the return of each of ten episodes in one world, of an agent that learned to learn it.

    python experiments/trials.py
    python experiments/trials.py --seeds 1

The world is a bandit of five arms, each of which pays with a probability that is drawn for each
trial, uniform in [0, 1]; an episode is ten pulls. Its return is the mean of 1 for a pull that pays
and -1 for one that does not.

The agents are GTrXLs whose memory holds a trial, trained by PPO. The reference is Thompson sampling
with the right prior. The highest expected return, of an agent that knows the probabilities, is
2 * 5 / 6 - 1 = 0.67.

On two CPU cores that others use too, a run takes 11 minutes.

Writes trials.jsonl, trials.md and trials.png to experiments/results/.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import EnvConfig, EvaluationConfig, OnlineConfig
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.plots.style import (
    COLORS,
    GREY,
    legend_outside,
    new_figure,
    save_figure,
    style_axes,
)
from gtrxl_jax.studies import Cell, Options, Record, Study, scores
from gtrxl_jax.studies.report import Paragraph, mean_entry, table

EPISODES = 10
"""Episodes of a trial."""
ARMS, PULLS = 5, 10
TOTAL_STEPS = 1_000_000
ORACLE = 2 * ARMS / (ARMS + 1) - 1


def job(total_steps: int) -> OnlineConfig:
    """Return the config of the runs."""
    return OnlineConfig(
        env=EnvConfig(
            "MultiarmedBanditEasy-v0",
            {"num_arms": ARMS, "episode_length": PULLS},
            trial=EPISODES,
            num_envs=64,
        ),
        core=core_config("gtrxl", "small", memory_size=EPISODES * PULLS),
        algorithm=PPOConfig(gae_lambda=0.5, entropy_cost=0.02, minibatches=4),
        evaluation=EvaluationConfig(episodes=256, interval=0, actions="sample"),
        total_steps=total_steps,
        unroll=100,
    )


def grid(options: Options) -> list[Cell]:
    """Return all runs."""
    return [
        Cell(
            {"world": "bandit"},
            job(options.steps or TOTAL_STEPS),
            options.seeds or 3,
            goal=("return", np.inf),
        )
    ]


def thompson(trials: int = 5_000) -> Float[np.ndarray, " K"]:
    """Return the mean return of each episode of trials in the bandit, by Thompson sampling."""
    rng = np.random.default_rng(0)
    chance_TA = rng.uniform(size=(trials, ARMS))
    count_2TA = np.ones((2, trials, ARMS))  # of pulls that did not pay, and that did
    trial_T = np.arange(trials)
    means = []
    for _ in range(EPISODES * PULLS):
        arm_T = rng.beta(count_2TA[1], count_2TA[0]).argmax(axis=1)
        pays_T = rng.uniform(size=trials) < chance_TA[trial_T, arm_T]
        count_2TA[pays_T.astype(int), trial_T, arm_T] += 1
        means.append(2 * pays_T.mean() - 1)
    return np.reshape(means, (EPISODES, PULLS)).mean(axis=1)


def by_episode(runs: Sequence[Record]) -> Float[np.ndarray, "S K"]:
    """Return the mean return of each episode of a trial, for each seed."""
    return np.stack([scores(runs, f"return_{n}") for n in range(1, EPISODES + 1)], axis=1)


def report(options: Options, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the table and the figure."""
    shown = (1, 2, 3, 5, EPISODES)
    return_SK, thompson_K = by_episode(records), thompson()
    draw(options, return_SK, thompson_K)
    return "Trials of ten episodes", [
        f"Return of the n-th of {EPISODES} episodes in one bandit of {ARMS} arms, of {PULLS} pulls "
        "each. GTrXL, trained by PPO: the mean over seeds with its 95 % interval (Student's t), "
        "each of 256 fresh trials with sampled actions.",
        table(
            ["", *(f"n = {n}" for n in shown)],
            [
                ["GTrXL", *(mean_entry(return_SK[:, n - 1]) for n in shown)],
                ["Thompson sampling", *(f"{thompson_K[n - 1]:.2f}" for n in shown)],
            ],
        ),
        f"The highest is {ORACLE:.2f}, of an agent that knows the arms.",
    ]


def draw(
    options: Options, return_SK: Float[np.ndarray, "S K"], thompson_K: Float[np.ndarray, " K"]
) -> None:
    """Draw the return of each episode, a line for each seed."""
    figure = new_figure(6.5, 2.6)
    axes = figure.add_subplot()
    episode_K = np.arange(1, EPISODES + 1)
    for seed, return_K in enumerate(return_SK):
        label = None if seed else f"GTrXL ({len(return_SK)} seeds)"
        axes.plot(episode_K, return_K, "o-", color=COLORS[0], markersize=4, label=label)
    axes.plot(episode_K, thompson_K, "--", color=GREY, label="Thompson sampling")
    axes.axhline(ORACLE, color=GREY, linestyle=":", label="the arms known")
    axes.set_xlabel("episode of the trial")
    axes.set_ylabel("return")
    axes.set_ylim(0, None)
    style_axes(axes)
    legend_outside(figure, "")
    save_figure(figure, options.results / "trials.png")


STUDY = Study(__file__, grid, report)

if __name__ == "__main__":
    STUDY.main()
