"""Which tokens of a RATE segment attend to which (arXiv 2306.09459, section 3)."""

import itertools

import chex
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

Spans = tuple[tuple[slice, int], ...]
"""Runs of queries, each with the number of leading keys that it may attend to: keys that a causal
mask hides from a whole run need not be computed."""


def memory_token_mask(
    step_mask_BK: Bool[Array, "B K"],
    cached_B: Int[Array, " B"],
    cache_size: int,
    memory_tokens: int,
) -> Bool[Array, "B Q S"]:
    """Compute which keys each token of a RATE segment may attend to (arXiv 2306.09459, section 3).

    The keys are [cache | read tokens | 3 K step tokens | write tokens], the queries all of them but
    the cache. Read tokens attend to the read tokens. A step token attends to the cache, the read
    tokens, and the step tokens up to itself. Write tokens attend to everything but the cache.
    Padding is attended to only by itself.

    Args:
      step_mask_BK: true where there is a step, false for padding.
      cached_B: the number of most recent cache slots that have been written.
      cache_size: C, the number of cache slots.
      memory_tokens: m, the number of memory tokens.
    """
    chex.assert_rank([step_mask_BK, cached_B], [2, 1])
    batch, steps = step_mask_BK.shape
    read, write = cache_size + memory_tokens, cache_size + memory_tokens + 3 * steps
    key_S = np.arange(write + memory_tokens)
    query_Q = key_S[cache_size:, None]
    by_read_QS = (query_Q < read) & (key_S >= cache_size) & (key_S < read)
    by_step_QS = (query_Q >= read) & (query_Q < write) & (key_S <= query_Q)
    by_write_QS = (query_Q >= write) & (key_S >= cache_size)
    exists_BS = jnp.concatenate(
        [
            jnp.arange(cache_size, dtype=jnp.int32)[None] >= cache_size - cached_B[:, None],
            jnp.ones((batch, memory_tokens), bool),
            jnp.repeat(step_mask_BK, 3, axis=1),
            jnp.ones((batch, memory_tokens), bool),
        ],
        axis=1,
    )
    seen_QS = by_read_QS | by_step_QS | by_write_QS
    return (jnp.asarray(seen_QS)[None] & exists_BS[:, None]) | jnp.asarray(query_Q == key_S)[None]


def memory_token_spans(steps: int, cache_size: int, memory_tokens: int) -> tuple[Spans, Spans]:
    """Return runs of the queries of `memory_token_mask` for which hidden keys can be omitted.

    Args:
      steps: K, the number of steps of a segment.
      cache_size: C, the number of cache slots.
      memory_tokens: m, the number of memory tokens.

    Returns:
      The spans of all queries, in order; and those of the K tokens o (the second of a step's three)
      and the m write tokens, the only ones that the last layer needs.
    """
    write = memory_tokens + 3 * steps
    num_tokens = write + memory_tokens
    # More runs omit few more keys and take longer to compile; shorter ones are not worthwhile.
    runs = min(max(steps // 8, 1), 3)
    cuts = [memory_tokens + 3 * round(steps * run / runs) for run in range(runs + 1)]
    ends = [*cuts[1:-1], num_tokens]
    every = [(slice(start, end), cache_size + end) for start, end in itertools.pairwise([0, *ends])]
    useful = [
        (slice(start + 1, end, 3), cache_size + end) for start, end in itertools.pairwise(cuts)
    ]
    if memory_tokens:
        useful.append((slice(write, num_tokens), cache_size + num_tokens))
    return tuple(every), tuple(useful)
