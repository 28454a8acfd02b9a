"""The animation of an episode: what it says of the past."""

import pytest
from matplotlib.figure import Figure

from gtrxl_jax.inspection.animation import _draw
from tests.inspection.test_page import make_episode, make_segments


@pytest.fixture
def said(monkeypatch):
    """The texts of the figures, in order."""
    texts = []
    monkeypatch.setattr(Figure, "text", lambda *given, **_: texts.append(given[3]))
    return texts


def test_nothing_is_looked_back_at_where_nothing_is_attended_to(said):
    episode = make_segments(steps=6, context=3, cached=0)
    _draw(episode, 2)
    assert said[-1].startswith("step ")
    _draw(episode, 3)  # the first of its segment, which has no cache of the one before
    assert said[-1] == "nothing of the past"


def test_without_influence_there_is_no_strip_of_decisions(said):
    for influence in ({}, {"influence": None}):
        _draw(make_episode(**influence), 2)
        assert ("decision" in said) == (not influence)
        said.clear()
