"""The hidden sequences of Numpad against enumeration, and its rule against a naive player."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.worlds.numpad import sequence as rule

SIZES = (2, 3, 4)
PATHS = {2: 24, 3: 784, 4: 343_184}


def neighbors(pad, size):
    row, column = divmod(pad, size)
    around = [(row + down, column + right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
    cells = [(r, c) for r, c in around if 0 <= r < size and 0 <= c < size]
    return {r * size + c for r, c in cells} - {pad}


def all_paths(size, path=()):
    """Yield every path by depth-first search."""
    if len(path) == size**2:
        yield path
    for pad in neighbors(path[-1], size) - {*path} if path else range(size**2):
        yield from all_paths(size, (*path, pad))


@functools.cache
def table(size):
    """Return every path from which sequences are drawn."""
    ranks = rule._ranks(size)[:, rule._symmetries(size)].reshape(-1, size**2)
    paths = np.empty(ranks.shape, np.int64)
    np.put_along_axis(paths, ranks.astype(np.int64), np.arange(size**2)[None], axis=1)
    return paths


def draw(size, number, seed=0):
    """Return sequences as the pads in their order, `[number, P]`."""
    keys = jax.random.split(jax.random.key(seed), number)
    rank = jax.jit(jax.vmap(lambda key: rule.draw_sequence(key, size).rank))(keys)
    return np.argsort(np.asarray(rank), axis=1)


@pytest.mark.parametrize("size", SIZES)
def test_table_and_symmetries_give_every_path(size):
    paths = table(size)
    assert len(paths) == PATHS[size]
    visited = np.bitwise_or.reduce(np.int64(1) << paths, axis=1)
    assert (visited == 2 ** (size**2) - 1).all()
    is_neighbor = np.zeros((size**2, size**2), bool)
    for pad in range(size**2):
        is_neighbor[pad, [*neighbors(pad, size)]] = True
    assert is_neighbor[paths[:, :-1], paths[:, 1:]].all()
    digits = np.uint64(size**2) ** np.arange(size**2, dtype=np.uint64)
    assert len(np.unique(paths.astype(np.uint64) @ digits)) == PATHS[size]
    if size < 4:
        assert {*map(tuple, paths.tolist())} == {*all_paths(size)}


@pytest.mark.parametrize("size", [2, 3])
def test_every_path_is_equally_likely(size):
    number = 50 * PATHS[size]
    _, counts = np.unique(draw(size, number), axis=0, return_counts=True)
    assert len(counts) == PATHS[size]
    chi_squared = ((counts - 50) ** 2 / 50).sum()
    degrees = PATHS[size] - 1
    assert abs(chi_squared - degrees) < 4 * np.sqrt(2 * degrees)


def test_large_sequences_start_like_their_paths():
    """The first two pads have the frequencies that they have among all paths."""
    number = 20_000
    expected, counts = (
        np.bincount(16 * paths[:, 0] + paths[:, 1], minlength=256) / len(paths)
        for paths in (table(4), draw(4, number))
    )
    assert (counts[expected == 0] == 0).all()
    error = np.sqrt(expected * (1 - expected) / number)
    assert (abs(counts - expected) <= 4.5 * error).all()


def start(path):
    zero = jnp.int32(0)
    return rule.Sequence(jnp.asarray(np.argsort(path), jnp.int32), zero, zero, zero)


@pytest.mark.parametrize(
    ("presses", "rewards", "lit"),
    [
        # The sequence is 0, 1, 3, 2.
        ([0, 1, 3, 2], [1, 1, 1, 1], [1, 2, 3, 0]),
        ([1, 3, 2, 0], [0, 0, 0, 1], [0, 0, 0, 1]),
        # A wrong pad clears all, and what was rewarded earns nothing again in this round.
        ([0, 1, 2, 0, 1, 3], [1, 1, 0, 0, 0, 1], [1, 2, 0, 1, 2, 3]),
        # A lit pad is wrong, and does not light up at once, even if it is the first one.
        ([0, 1, 0, 0, 1], [1, 1, 0, 0, 0], [1, 2, 0, 1, 2]),
        # After the last pad, all earn again.
        ([0, 1, 3, 2, 0, 1, 2, 0], [1, 1, 1, 1, 1, 1, 0, 0], [1, 2, 3, 0, 1, 2, 0, 1]),
        ([0, -1, -1, 1], [1, 0, 0, 1], [1, 1, 1, 2]),
    ],
)
def test_rewards_of_given_presses(presses, rewards, lit):
    sequence, path = start([0, 1, 3, 2]), [0, 1, 3, 2]
    got_rewards, got_lit = [], []
    for pad in presses:
        sequence, reward = rule.press(sequence, jnp.int32(pad))
        got_rewards.append(float(reward))
        got_lit.append(int(sequence.lit))
        shown = np.flatnonzero(rule.lit_pads(sequence)).tolist()
        assert shown == sorted(path[: got_lit[-1]])
        assert rule.next_pad(sequence) == path[got_lit[-1]]
    assert (got_rewards, got_lit) == (rewards, lit)


class NaivePads:
    """The rule with lists and sets."""

    def __init__(self, path):
        self.path, self.lit, self.paid, self.completed = list(path), [], set(), 0

    def press(self, pad):
        if pad != self.path[len(self.lit)]:
            self.lit = []
            return 0
        self.lit.append(pad)
        reward = 0 if pad in self.paid else 1
        self.paid.add(pad)
        if self.lit == self.path:
            self.lit, self.paid = [], set()
            self.completed += 1
        return reward


@pytest.mark.parametrize("size", [2, 3])
def test_rule_matches_naive_pads(size):
    """For random presses, most of which are right, so that rounds are completed."""
    steps, batch = 300, 24

    def play(key):
        key_sequence, key_presses = jax.random.split(key)
        sequence = rule.draw_sequence(key_sequence, size)

        def step(carry, key):
            any_pad = jax.random.randint(key, (), -1, size**2, jnp.int32)
            is_right = jax.random.bernoulli(key, 0.85)
            pad = jnp.where(is_right, rule.next_pad(carry), any_pad)
            carry, reward = rule.press(carry, pad)
            return carry, (pad, reward, rule.lit_pads(carry), carry.completed)

        return sequence.rank, jax.lax.scan(step, sequence, jax.random.split(key_presses, steps))[1]

    keys = jax.random.split(jax.random.key(size), batch)
    ranks, played = jax.device_get(jax.jit(jax.vmap(play))(keys))
    for rank, *episode in zip(ranks, *played, strict=True):
        pads = NaivePads(np.argsort(rank))
        for pad, reward, is_lit, completed in zip(*episode, strict=True):
            expected = pads.press(pad) if pad >= 0 else 0
            assert reward == expected
            assert np.flatnonzero(is_lit).tolist() == sorted(pads.lit)
            assert completed == pads.completed
    assert played[3][:, -1].mean() > 1


@pytest.mark.parametrize("size", [1, 5, 0])
def test_other_sizes_raise(size):
    with pytest.raises(ValueError, match=f"size must be one of 2, 3, 4, got {size}"):
        rule.require_size(size)
