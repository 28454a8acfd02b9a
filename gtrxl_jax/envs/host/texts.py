"""Texts whose words are not known in advance, as rows of tokens."""

import functools
import zlib

import numpy as np
from gymnasium import spaces

_WORDS = 24
"""The most words of a text."""


def hashed_space(buckets: int) -> spaces.MultiDiscrete:
    """Return the space of what `hash_words` returns."""
    return spaces.MultiDiscrete(np.full(_WORDS, buckets + 1))


@functools.lru_cache
def hash_words(text: str, buckets: int) -> np.ndarray:
    """Return the words of a text by a hash from 1 to `buckets`, then zeros; longer ones are cut."""
    row = [zlib.crc32(word.encode()) % buckets + 1 for word in text.lower().split()[:_WORDS]]
    return np.array(row + [0] * (_WORDS - len(row)), np.int64)
