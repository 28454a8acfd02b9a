"""Scores of one seed, of several, and of seeds with different settings."""

import math

import numpy as np
import pytest

from gtrxl_jax.runs.results import Score, main_scores, scores_of
from gtrxl_jax.statistics import (
    interquartile_mean,
    mean_and_interval,
    stratified_bootstrap,
    wilson_interval,
)

EPISODES = np.array([[0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0]])
MEANS = [0.5, 1.0, 0.75]


@pytest.mark.parametrize("one", [EPISODES[2], EPISODES[2:]])
def test_single_seed_has_mean_and_interval(one):
    scores = scores_of({"success": one, "return": one})
    assert scores["success"].per_seed == scores["return"].per_seed == [0.75]
    assert scores["success"].mean == scores["return"].mean == 0.75
    np.testing.assert_allclose(scores["success"].interval, wilson_interval(3, 4))
    mean, half = mean_and_interval(EPISODES[2], 0)
    np.testing.assert_allclose(scores["return"].interval, (mean - half, mean + half))
    assert str(scores["success"]) == "0.750 [0.301, 0.954]"


def test_success_of_fractions():
    """They are not binomial."""
    parts = np.array([0.5, 0.0, 0.25, 0.5])
    score = scores_of({"success": parts})["success"]
    mean, half = mean_and_interval(parts, 0)
    assert score.mean == 0.3125
    np.testing.assert_allclose(score.interval, (mean - half, mean + half))


def test_small_scores_are_not_shown_as_zero():
    small = np.array([[2e-6, 4e-6], [3e-6, 3e-6]])
    assert str(scores_of({"return": small[0]})["return"]).startswith("3.00e-06 [-")
    assert str(scores_of({"return": small})["return"]).startswith("median 3.00e-06, IQM 3.00e-06")
    shown = str(scores_of({"return": small}, equal=False)["return"])
    assert shown == "of each seed 3.00e-06, 3.00e-06"


@pytest.mark.parametrize("name", ["success", "success/30", "success/task_0", "success_2"])
def test_success_counts_seeds_that_solved(name):
    score = scores_of({name: EPISODES})[name]
    assert (score.per_seed, score.median, score.solved) == (MEANS, 0.75, 1)
    assert score.mean is None
    np.testing.assert_allclose(score.interval, wilson_interval(1, 3))
    assert str(score) == "solved by 1 of 3 seeds [0.061, 0.792], median 0.750"


def test_returns_have_median_and_iqm():
    values = np.random.default_rng(0).normal(size=(8, 5))
    score = scores_of({"return": values})["return"]
    means = values.mean(axis=1)
    np.testing.assert_allclose(score.median, np.median(means))
    np.testing.assert_allclose(score.iqm, interquartile_mean(means))
    assert score.interval == stratified_bootstrap([means], interquartile_mean)
    assert str(score).startswith(f"median {score.median:.3f}, IQM {score.iqm:.3f} [")


def test_seeds_with_different_settings_stay_separate():
    for name in ("success", "return"):
        score = scores_of({name: EPISODES}, equal=False)[name]
        assert score == Score(MEANS)
        assert score.record == {"per_seed": MEANS}
        assert str(score) == "of each seed 0.500, 1.000, 0.750"
    assert scores_of({"success": EPISODES[:1]}, equal=False)["success"].mean == 0.5


def test_diverged_seeds_are_unsolved_and_unaveraged():
    gone = np.concatenate([EPISODES, np.full((1, 4), np.nan)])
    success, reward = scores_of({"success": gone, "return": gone}).values()
    assert (success.solved, len(success.per_seed), success.median) == (1, 4, 0.75)
    np.testing.assert_allclose(success.interval, wilson_interval(1, 4))
    assert (reward.median, reward.iqm) == (0.75, 0.75)


@pytest.mark.parametrize("seeds", [1, 2])
def test_all_diverged_seeds_have_nan_scores(seeds):
    gone = np.full((seeds, 4), np.nan)
    for score in scores_of({"success": gone, "return": gone}).values():
        assert math.isnan(score.median if seeds > 1 else score.mean)


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("seeds", [1, 3])
def test_record_round_trip(seeds, equal):
    episodes = {"success": EPISODES[:seeds], "return": EPISODES[:seeds]}
    for score in scores_of(episodes, equal=equal).values():
        assert Score.of(score.record) == score
        assert None not in score.record.values()


def test_main_scores():
    assert main_scores(["return", "success/task_0", "success"]) == ["success", "return"]
    assert main_scores(["return/9", "success/90", "success/9"]) == ["success/9", "success/90"]
    assert main_scores(["return/90", "return/9"]) == ["return/9", "return/90"]
