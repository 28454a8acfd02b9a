"""Entries of tables, with the interquartile mean and its interval against rliable."""

import numpy as np
import pytest

from gtrxl_jax.studies.report import (
    fill_tables,
    iqm_entry,
    mean_entry,
    median,
    solved_entry,
    table,
)

NAN = np.nan


def test_entries_of_tables():
    assert solved_entry(np.array([1.0, 0.96, 0.5, 1.0, 1.0])) == "4/5 [0.38, 0.96], 1.00"
    assert solved_entry(np.array([NAN, 0.4])) == "0/2 [0.00, 0.66], 0.40"
    lines = table(["core", 10], [["lstm", "1/2"]])
    assert lines == ["| core | 10 |", "| --- | --- |", "| lstm | 1/2 |"]
    assert median([10, NAN, 30], digits=0) == "20"
    assert median([NAN]) == ""


def test_iqm_entry_without_diverged_runs():
    assert iqm_entry([np.array([NAN, 0.25])]) == "0.25"
    assert iqm_entry([np.array([NAN])]) == ""
    assert iqm_entry([np.array([0.5, NAN, 0.5]), np.array([0.5])]) == "0.50 [0.50, 0.50]"


def test_mean_entry_has_interval_of_student():
    # t is 12.706 for two values, whose standard error is 1.
    assert mean_entry([1.0, NAN, 3.0]) == "2.00 ± 12.71"
    assert mean_entry([0.25], digits=1) == "0.2"
    assert mean_entry([NAN]) == ""


def test_tables_of_pages_are_filled():
    page = "a\n<!-- table: x -->\nold\n<!-- end -->\nb\n<!-- table: y -->\n<!-- end -->\n"
    tables = {"x": ["| 1 |", "| 2 |"], "y": ["| 3 |"]}
    filled = fill_tables(page, tables)
    assert filled == (
        "a\n<!-- table: x -->\n\n| 1 |\n| 2 |\n\n<!-- end -->\n"
        "b\n<!-- table: y -->\n\n| 3 |\n\n<!-- end -->\n"
    )
    assert fill_tables(filled, tables) == filled
    with pytest.raises(KeyError, match="x"):
        fill_tables(page, {"y": []})
