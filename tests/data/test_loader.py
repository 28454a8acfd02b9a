"""Segments read from disk match those sampled in memory, and iterators can be resumed."""

import json
import re
import sys

import jax
import numpy as np
import pytest

from gtrxl_jax.data import Sampling, minari, sample_segments
from gtrxl_jax.data.datasets import DatasetReader
from gtrxl_jax.data.loader import load_segments, read_segments
from gtrxl_jax.data.trajectories import select
from gtrxl_jax.data.windows import STARTS, WEIGHTS, take_segments
from gtrxl_jax.extras import install_command
from gtrxl_jax.segments import OPTIONAL
from tests.data.sets import FLAT, LENGTHS, NESTED, make_set

KEY = jax.random.key(5)


@pytest.fixture
def reader(tmp_path):
    minari.save(make_set(), tmp_path / "set")
    with DatasetReader(tmp_path / "set") as reader:
        yield reader


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("needs", [(), OPTIONAL, ("next_observations",), ("terminated",)])
@pytest.mark.parametrize("spaces", [FLAT, NESTED])
def test_read_segments_matches_take_segments(tmp_path, spaces, needs):
    whole = make_set(spaces=spaces)
    minari.save(whole, tmp_path / "set")
    windows = [(e, start) for e, n in enumerate(LENGTHS) for start in range(n)]
    episode_B, start_B = np.array(windows, np.int32).T
    with DatasetReader(tmp_path / "set") as reader, jax.enable_x64(True):
        read = read_segments(reader, episode_B, start_B, 2, 3, needs)
        taken = jax.device_get(take_segments(whole, episode_B, start_B, 2, 3, needs))
    assert jax.tree.map(lambda x: x.dtype, read) == jax.tree.map(lambda x: x.dtype, taken)
    np.testing.assert_allclose(read.returns_to_go, taken.returns_to_go, rtol=1e-5, atol=1e-6)
    assert_same(read.replace(returns_to_go=0), taken.replace(returns_to_go=0))


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_batches_match_sampling_in_memory(reader, start, weight):
    whole = make_set()
    batches = load_segments(reader, KEY, 4, 2, 3, Sampling(start, weight), needs=OPTIONAL)
    for i in range(3):
        batch = next(batches)
        key = jax.random.fold_in(KEY, i)
        sampled = jax.device_get(
            sample_segments(whole, key, 4, 2, 3, start, weight, needs=OPTIONAL)
        )
        np.testing.assert_allclose(batch.returns_to_go, sampled.returns_to_go, rtol=1e-5, atol=1e-6)
        assert_same(batch.replace(returns_to_go=0), sampled.replace(returns_to_go=0))
    batches.close()


def test_resumed_iterator_is_bit_identical(reader):
    def make(threads):
        sampling = Sampling("uniform", "length")
        return load_segments(reader, KEY, 4, 2, 3, sampling, threads=threads, ahead=2 * threads)

    batches = make(threads=1)
    for _ in range(3):
        next(batches)
    state = json.loads(json.dumps(batches.get_state()))
    expected = [next(batches) for _ in range(3)]
    batches.close()

    resumed = make(threads=3)
    resumed.set_state(state)
    for batch in expected:
        assert_same(next(resumed), batch)
    assert resumed.get_state() != state
    resumed.close()


def test_subset_of_rows_and_episodes(reader):
    """A later batch equals one sampled from a set of only these episodes."""
    episodes, rows = np.array([0, 2]), np.array([1, 3])
    batches = load_segments(
        reader, KEY, 4, 2, 3, Sampling("uniform"), episodes=episodes, rows=rows, first=7
    )
    some, key = select(make_set(), episodes), jax.random.fold_in(KEY, 7)
    sampled = jax.device_get(sample_segments(some, key, 4, 2, 3, "uniform"))
    expected = jax.tree.map(lambda x: x[rows], sampled)
    batch = next(batches)
    np.testing.assert_allclose(batch.returns_to_go, expected.returns_to_go, rtol=1e-5, atol=1e-6)
    assert_same(batch.replace(returns_to_go=0), expected.replace(returns_to_go=0))
    batches.close()


def test_missing_grain_names_command(reader, monkeypatch):
    monkeypatch.setitem(sys.modules, "grain", None)
    with pytest.raises(ImportError, match=re.escape(install_command("offline"))):
        load_segments(reader, KEY, 4, 2, 3)
