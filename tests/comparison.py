"""Comparison of trees of arrays, and of the metrics of two runs."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np


def assert_same(actual: Any, expected: Any) -> None:
    """Assert that two trees have the same structure, shapes, dtypes and entries."""
    for name, a, b in _leaves(actual, expected):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), name
        np.testing.assert_array_equal(a, b, err_msg=name)


def assert_close(actual: Any, expected: Any, atol: float = 1e-9, rtol: float = 0.0) -> None:
    """Assert that two trees have the same structure, and entries within a tolerance.

    The default is for float64.
    """
    for name, a, b in _leaves(actual, expected):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=name)


def _leaves(one: Any, other: Any) -> Any:
    """Assert that two trees have the same structure, and yield their leaves: path, one, other."""
    structure: Any = jax.tree.structure(one)
    assert structure == jax.tree.structure(other)
    pairs = zip(jax.tree.leaves_with_path(one), jax.tree.leaves(other), strict=True)
    for (path, a), b in pairs:
        if isinstance(a, jax.Array) and jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            assert a.dtype == b.dtype
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        yield jax.tree_util.keystr(path), a, b


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run, without its timings."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        del record["time"], record["steps_per_second"]
    return records
