"""Trials: the return of each of ten episodes in one world, of an agent that learned to learn it.

    python experiments/trials.py
    python experiments/trials.py --only bandit --seeds 1

    bandit        five arms, each of which pays with a probability that is drawn for each trial;
                  an episode is ten pulls. Its return is the mean of 1 for a pull that pays, and -1.
    four rooms    gymnax's FourRooms, with a start and a goal that are drawn for each trial, and a
                  picture of the walls and the agent, not of the goal. A third of the steps slip.
                  The return is 1 if the goal is found within 50 steps.

The agents are GTrXLs whose memory reaches over a trial, trained by PPO. The reference of the bandit
is Thompson sampling, with a uniform prior, as the arms' probabilities have. Its highest expected
return, of an agent that knows them, is 2 * 5 / 6 - 1 = 0.67.

On one CPU core, a run takes 6 minutes in the bandit and 20 in the four rooms.

Writes trials.jsonl, trials.md and trials.png to experiments/results/.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import EnvConfig, EvaluationConfig, OnlineConfig
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.plots.style import (
    FONT_SIZE,
    GREY,
    assign_styles,
    legend_outside,
    new_figure,
    save_figure,
    style_axes,
)
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores
from gtrxl_jax.studies.report import Paragraph, mean_entry, table

EPISODES = 10
"""Episodes of a trial."""
ARMS, PULLS = 5, 10
WORLDS = {
    "bandit": EnvConfig(
        "MultiarmedBanditEasy-v0",
        {"num_arms": ARMS, "episode_length": PULLS},
        trial=EPISODES,
        num_envs=64,
    ),
    "four rooms": EnvConfig(
        "FourRooms-misc",
        {
            "use_visual_obs": True,
            "resample_init_pos": True,
            "resample_goal_pos": True,
            "max_steps_in_episode": 50,
        },
        trial=EPISODES,
        num_envs=64,
    ),
}
MEMORY = {"bandit": 100, "four rooms": 250}
"""Two layers with a memory of 250 each reach the 500 actions of a trial."""
TOTAL_STEPS = {"bandit": 1_000_000, "four rooms": 1_500_000}
ORACLE = 2 * ARMS / (ARMS + 1) - 1


def job(world: str, total_steps: int) -> OnlineConfig:
    """Return the config of a world."""
    return OnlineConfig(
        env=WORLDS[world],
        core=core_config("gtrxl", "small", memory_size=MEMORY[world]),
        algorithm=PPOConfig(
            gae_lambda=0.5 if world == "bandit" else 0.95, entropy_cost=0.02, minibatches=4
        ),
        evaluation=EvaluationConfig(episodes=256, interval=0, actions="sample"),
        total_steps=total_steps,
        unroll=100,
    )


def grid(options: Options) -> list[Cell]:
    """Return all runs."""
    return [
        Cell(
            {"world": world},
            job(world, options.steps or TOTAL_STEPS[world]),
            options.seeds or 3,
            goal=("return", np.inf),
        )
        for world in WORLDS
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
    cells = {world: by_episode(runs) for world, runs in by_cell(records, "world").items()}
    rows = [
        [world, *(mean_entry(return_SK[:, n - 1]) for n in shown)]
        for world, return_SK in cells.items()
    ]
    reference = {"Thompson sampling": thompson()}
    rows += [
        [f"bandit, {name}", *(f"{return_K[n - 1]:.2f}" for n in shown)]
        for name, return_K in reference.items()
    ]
    draw(options, cells, reference["Thompson sampling"])
    return "Trials of ten episodes", [
        f"Return of the n-th of {EPISODES} episodes in one world, of GTrXL agents trained by PPO: "
        "the mean over seeds with its 95 % interval (Student's t), each of 256 fresh trials with "
        "sampled actions.",
        table(["world", *(f"n = {n}" for n in shown)], rows),
        f"The highest in the bandit is {ORACLE:.2f}, of an agent that knows the arms.",
    ]


def draw(
    options: Options,
    cells: dict[str, Float[np.ndarray, "S K"]],
    thompson_K: Float[np.ndarray, " K"],
) -> None:
    """Draw the return of each episode, a panel for each world and a line for each seed."""
    figure = new_figure(6.5, 2.6)
    panels = figure.subplots(1, len(cells), squeeze=False)[0]
    episode_K = np.arange(1, EPISODES + 1)
    for (world, return_SK), (_, look), axes in zip(
        cells.items(), assign_styles(cells), panels, strict=True
    ):
        for seed, return_K in enumerate(return_SK):
            label = None if seed else f"GTrXL, {world} ({len(return_SK)} seeds)"
            axes.plot(episode_K, return_K, **look, markersize=4, linewidth=1.2, label=label)
        if world == "bandit":
            axes.plot(episode_K, thompson_K, color=GREY, linestyle="--", label="Thompson sampling")
            axes.axhline(ORACLE, color=GREY, linestyle=":", label="the arms known")
        axes.set_title(world, fontsize=FONT_SIZE)
        axes.set_xlabel("episode of the trial")
        axes.set_ylim(0, None)
        style_axes(axes)
    panels[0].set_ylabel("return")
    legend_outside(figure, "")
    save_figure(figure, options.results / "trials.png")


STUDY = Study(__file__, grid, report)

if __name__ == "__main__":
    STUDY.main()
