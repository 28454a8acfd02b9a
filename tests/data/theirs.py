"""Datasets written by Minari itself."""

import minari as theirs
import numpy as np
from minari.data_collector import EpisodeBuffer

from tests.data.sets import random_values


def write_theirs(path, observation_space, action_space, lengths=(4, 2), **changes):
    """Write a dataset with Minari itself, with images as JPEG."""
    rng = np.random.default_rng(0)
    path.mkdir(parents=True)
    storage = theirs.dataset.minari_storage.MinariStorage.new(path, observation_space, action_space)
    storage.update_metadata({"dataset_id": "x-v0", "minari_version": "0.5.4"})
    buffers = []
    for n in lengths:
        parts = dict(
            observations=random_values(observation_space, rng, n + 1),
            actions=random_values(action_space, rng, n),
            rewards=np.ones(n),
            terminations=np.arange(n) == n - 1,
            truncations=np.zeros(n, bool),
        )
        parts |= {name: change(parts[name]) for name, change in changes.items()}
        buffers.append(EpisodeBuffer(**parts))
    storage.update_episodes(buffers)
    return storage
