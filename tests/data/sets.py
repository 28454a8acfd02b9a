"""Small sets of trajectories for tests, with values that identify their origin."""

import gymnasium
import numpy as np

from gtrxl_jax.data import Trajectories, concatenate, dataset_spaces

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
    """Draw arrays `[*lead, ...]` from a space."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: random_values(child, rng, *lead) for name, child in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Discrete):
        return rng.integers(space.start, space.start + space.n, lead).astype(space.dtype)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return rng.integers(space.start, space.start + space.nvec, (*lead, *space.shape)).astype(
            space.dtype
        )
    if space.dtype == np.uint8:
        return rng.integers(0, 256, (*lead, *space.shape)).astype(np.uint8)
    low, high = np.maximum(space.low, -100), np.minimum(space.high, 100)
    return rng.uniform(low, high, (*lead, *space.shape)).astype(space.dtype)


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
