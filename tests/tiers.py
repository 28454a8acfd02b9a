"""Parametrized tests whose quick values run always, and whose other values `make slow` runs."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_except(values: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Return the values for `pytest.mark.parametrize`, with all but the quick ones marked slow."""
    values = list(values)
    assert set(quick) & set(values), "no value is quick"
    return [v if v in quick else pytest.param(v, marks=pytest.mark.slow) for v in values]
