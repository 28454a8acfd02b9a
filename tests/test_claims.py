"""The rule by which the claims of the papers are decided, and that what they name exists."""

import shlex

import numpy as np
import pytest

from gtrxl_jax.studies.cells import _select
from tests.processes import EXPERIMENTS
from tests.test_experiments import study_of

SOURCES = ("agent", "data")
"""Cells that make data, which commands have in addition."""
HIGH, LOW, WIDE = [1.0, 1.0, 0.9], [0.5, 0.6, 0.5], [0.5, 1.0, 0.5]


@pytest.fixture
def claims(monkeypatch):
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    import claims

    return claims


@pytest.fixture
def compare(claims, monkeypatch):
    """Return the function from two groups' scores, or a constant, to their comparison."""

    def compare(first, second, score="return", **options):
        runs = {"study/first": dict(enumerate(first))}
        other = claims.Group("other", ("study/second",))
        if np.isscalar(second):
            other = claims.Group("chance", constant=second)
        else:
            runs["study/second"] = dict(enumerate(second))
        monkeypatch.setattr(claims, "by_seed", lambda cell, _: runs[cell])
        return claims.Comparison(
            "what", claims.Group("ours", ("study/first",)), other, score, **options
        )

    return compare


@pytest.mark.parametrize(
    ("first", "second", "options", "verdict"),
    [
        (HIGH, LOW, {}, "holds"),
        (LOW, HIGH, {}, "does not hold"),
        (WIDE, LOW, {}, "undecided"),
        (HIGH, HIGH, {"margin": 0.2}, "does not hold"),
        (HIGH, HIGH, {"margin": 0.2, "score": "success"}, "undecided (both solve it)"),
        (LOW, LOW, {"margin": 0.2, "score": "success"}, "does not hold"),
        (HIGH, HIGH, {"margin": 0.2, "level": True}, "holds"),
        (HIGH, HIGH, {"margin": 0.01, "level": True}, "undecided"),
        (LOW, HIGH, {"level": True}, "does not hold"),
        (LOW, HIGH, {"fewer": True}, "holds"),
        (HIGH, 0.5, {}, "holds"),
        (WIDE, 0.5, {}, "undecided"),
        (HIGH[:2], LOW, {}, "undecided (2 seeds)"),
        (HIGH, LOW[:1], {}, "undecided (1 seed)"),
        (HIGH, [], {}, "undecided (0 seeds)"),
    ],
)
def test_verdict_of_comparison(compare, first, second, options, verdict):
    comparison = compare(first, second, **options)
    assert comparison.verdict == verdict
    assert comparison.row()[-1] == verdict


def test_verdict_of_claim_is_of_all_that_decide(claims, monkeypatch):
    verdicts = {"a": "holds", "b": "undecided (2 seeds)", "c": "does not hold"}
    monkeypatch.setattr(claims.Comparison, "verdict", property(lambda self: verdicts[self.what]))

    def verdict(*names, beside=()):
        one = claims.Group("one")
        comparisons = [claims.Comparison(n, one, one, decides=n not in beside) for n in names]
        return claims.Claim("G0", "text", "published", tuple(comparisons)).verdict

    assert verdict("a", "a") == "holds"
    assert verdict("a", "b") == "undecided (1 of 2 hold)"
    assert verdict("a", "b", "c") == "does not hold (1 of 3 hold)"
    assert verdict("b") == "undecided (2 seeds)"
    assert verdict("a", "c", beside="c") == "holds"
    assert verdict("a", beside="a") == verdict() == "not run"


@pytest.mark.parametrize(
    ("first", "second", "options", "names"),
    [
        (LOW, HIGH, {}, ["what (other)"]),
        (LOW, HIGH, {"decides": False}, ["what (other)"]),
        (LOW, HIGH, {"margin": 0.9}, []),
        (HIGH, LOW, {}, []),
        (HIGH, LOW, {"fewer": True}, ["what (other)"]),
        (LOW, [], {}, []),
    ],
)
def test_claim_names_where_it_is_behind(claims, compare, first, second, options, names):
    claim = claims.Claim("G0", "text", "published", (compare(first, second, **options),))
    assert claim.behind == names


def test_seed_has_mean_over_cells_and_those_missing_are_left_out(claims, monkeypatch):
    runs = {"s/a": {0: 1.0, 1: 3.0}, "s/b": {0: 2.0, 1: 5.0, 2: 9.0}, "s/c": {0: 4.0, 1: 2.0}}
    monkeypatch.setattr(claims, "by_seed", lambda cell, _: runs[cell])
    pooled = claims.Group("pooled", ("s/a", "s/b"))
    kept = claims.Group("kept", ("s/a", "s/b"), over=("s/c",))
    comparison = claims.Comparison("what", pooled, kept)
    assert comparison.values(pooled).tolist() == [1.5, 4.0]
    assert comparison.values(kept).tolist() == [0.375, 2.0]
    assert comparison.seeds == 2


def test_diverged_runs_and_those_short_of_the_goal_count(claims, monkeypatch):
    runs = [
        {"seed": 0, "scores": {"success": 1.0}, "goal": {"steps": 50_000}, "steps": 90_000},
        {"seed": 1, "scores": {"success": "NaN"}, "goal": {"steps": None}, "steps": 90_000},
        {"seed": 2, "scores": {"return": 3.0}, "goal": {"steps": 60_000}, "steps": 90_000},
    ]
    monkeypatch.setattr(claims, "records_of", lambda study: {"cell": runs})
    assert claims.by_seed("study/cell", "success") == {0: 1.0, 1: 0.0}
    assert claims.by_seed("study/cell", "thousand steps") == {0: 50.0, 1: 90.0, 2: 60.0}


def test_commands_make_the_data_that_models_learn_from(claims):
    command = claims.command("rate_memory_maze", ["walker, RATE", "walker, DT"])
    assert command.endswith("--only walker data RATE DT")
    command = claims.command("offline_control", ["Pong, replay, RATE"])
    assert command.endswith("--only Pong '' replay agent data RATE")


def test_cells_of_claims_have_runs(claims):
    comparisons = [one for claim in claims.CLAIMS for one in claim.comparisons]
    groups = [group for one in comparisons for group in (one.first, one.second)]
    cells = {cell.partition("/")[::2] for group in groups for cell in (*group.cells, *group.over)}
    missing = [cell for cell in cells if not claims.records_of(cell[0]).get(cell[1])]
    assert len(cells) > 100
    assert not missing


def test_commands_of_claims_name_the_cells_that_decide(claims):
    for claim in claims.CLAIMS:
        for name, cells in claim.cells.items():
            words = shlex.split(claims.command(name, cells))
            study, options = study_of(name)
            chosen = _select(study.grid(options), words[words.index("--only") + 1 :])
            learned = {cell.name for cell in chosen if cell.labels.get("who") not in SOURCES}
            assert learned == {*cells}, claim.name
