"""Small sets of trajectories for tests, with values that identify their origin."""

import gymnasium
import numpy as np

from gtrxl_jax.data import Trajectories, concatenate, dataset_spaces
from gtrxl_jax.specs.spaces import bounds_of, dtype_of, map_leaves, shape_of

FLAT = dataset_spaces(
    gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32), gymnasium.spaces.Discrete(5)
)
NESTED = dataset_spaces(
    gymnasium.spaces.Dict(
        image=gymnasium.spaces.Box(0, 255, (33, 40, 3), np.uint8),
        body=gymnasium.spaces.Dict(
            place=gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float64),
            room=gymnasium.spaces.Discrete(4, start=2),
        ),
        codes=gymnasium.spaces.MultiDiscrete([3, 4]),
    ),
    gymnasium.spaces.Box(np.array([-1.0, 0.0], np.float32), 2.0, (2,), np.float32),
)
LENGTHS = (3, 9, 1, 12, 6)


def random_values(space, rng, *lead):
    """Draw arrays `[*lead, ...]` from a space; boxes of floats within 100, if unbounded."""

    def of_leaf(leaf, _):
        dtype, shape = dtype_of(leaf), (*lead, *shape_of(leaf))
        low, high = bounds_of(leaf)
        if np.issubdtype(dtype, np.floating):
            return rng.uniform(np.maximum(low, -100), np.minimum(high, 100), shape).astype(dtype)
        return rng.integers(low, high.astype(np.int64) + 1, shape).astype(dtype)

    return map_leaves(of_leaf, space)


def make_episode(length, spaces=FLAT, seed=0):
    """Create a set of one episode, truncated if its length is even."""
    rng = np.random.default_rng([seed, length])
    return Trajectories(
        observations=random_values(spaces.observation, rng, 1, length + 1),
        actions=random_values(spaces.action, rng, 1, length),
        rewards=rng.normal(size=(1, length)).astype(np.float32),
        length=np.array([length], np.int32),
        terminated=np.array([length % 2 == 1]),
        spaces=spaces,
    )


def make_set(lengths=LENGTHS, spaces=FLAT, seed=0):
    """Create a set of episodes of the given lengths."""
    return concatenate([make_episode(n, spaces, seed + e) for e, n in enumerate(lengths)])


def with_value(field, index, value):
    """Return a function that changes a value of a set."""

    def change(whole):
        array = getattr(whole, field).copy()
        array[index] = value
        return whole.replace(**{field: array})

    return change
