"""A fingerprint of episodes, by which a run knows its data wherever they are."""

import hashlib

import jax
import numpy as np

from gtrxl_jax.data.trajectories import Trajectories


class Fingerprint:
    """A hash of the contents of episodes in their order, which may be added in several sets.

    Padding has no effect, nor has the format or the place in which the episodes are stored.
    """

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, trajectories: Trajectories) -> None:
        """Add the episodes of a set."""
        rest = trajectories.actions, trajectories.rewards
        leaves = [np.asarray(x) for x in jax.tree.leaves((trajectories.observations, rest))]
        observed = len(jax.tree.leaves(trajectories.observations))
        terminated = np.asarray(trajectories.terminated)
        for e, length in enumerate(np.asarray(trajectories.length)):
            self._hash.update(f"{length} {terminated[e]}".encode())
            for number, leaf in enumerate(leaves):
                steps = leaf[e, : length + (number < observed)]
                self._hash.update(f"{steps.dtype} {steps.shape}".encode())
                self._hash.update(np.ascontiguousarray(steps).data)

    def __str__(self) -> str:
        return self._hash.hexdigest()
