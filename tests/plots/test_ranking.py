"""Runs ranked by score."""

import numpy as np
import pytest

from gtrxl_jax.plots import ranking as module
from gtrxl_jax.plots.ranking import plot_ranking


def test_scores_are_drawn_by_rank(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(module, "save_figure", lambda figure, path: saved.append(figure))
    panels = {"a": {"lstm": [0.2, np.nan, 0.9], "gru": [1.0]}, "b": {"gru": [3.0, 4.0]}}
    plot_ranking(panels, tmp_path / "a.png", y_labels={"a": "success", "b": "return"})
    first, second = saved[0].axes
    lstm, gru = first.get_lines()
    np.testing.assert_array_equal(lstm.get_xydata(), [[1, 0.9], [2, 0.2]])
    (again,) = second.get_lines()
    np.testing.assert_array_equal(again.get_xydata(), [[1, 4], [2, 3]])
    assert again.get_color() == gru.get_color() != lstm.get_color()
    assert (first.get_ylabel(), second.get_ylabel()) == ("success", "return")


def test_unfit_scores_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="there are no runs to rank"):
        plot_ranking({"a": {}}, tmp_path / "a.png", y_labels={"a": "success"})
    with pytest.raises(ValueError, match="the scores of 'gru' must be"):
        plot_ranking({"a": {"gru": [[1.0]]}}, tmp_path / "a.png", y_labels={"a": "success"})
