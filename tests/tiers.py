"""Parametrized tests whose quick values run always, and whose other values `make slow` runs."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_except(values: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Return the values for `pytest.mark.parametrize`, with all but the quick ones marked slow."""
    values = list(values)
    assert any(value in quick for value in values), "no value is quick"

    def slow(value: Any) -> Any:
        values = value if isinstance(value, tuple) else (value,)
        return pytest.param(*values, marks=pytest.mark.slow)

    return [value if value in quick else slow(value) for value in values]
