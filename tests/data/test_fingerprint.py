"""The fingerprint of episodes depends on their contents, and on nothing else."""

import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.data import concatenate, datasets, minari, select
from gtrxl_jax.data.fingerprint import Fingerprint
from tests.data.sets import NESTED, make_episode, make_set, with_value


def of(*sets):
    fingerprint = Fingerprint()
    for one in sets:
        fingerprint.add(one)
    return str(fingerprint)


WHOLE = make_set(spaces=NESTED)


def with_pixel():
    image = WHOLE.observations["image"].copy()
    image[3, 12, 32, 39, 2] ^= 1
    return WHOLE.replace(observations={**WHOLE.observations, "image": image})


OTHERS = {
    "action": lambda: with_value("actions", (3, 11, 1), 0.5)(WHOLE),
    "reward": lambda: with_value("rewards", (0, 2), 0.5)(WHOLE),
    "termination": lambda: with_value("terminated", 4, not WHOLE.terminated[4])(WHOLE),
    "last pixel of final observation": with_pixel,
    "shorter": lambda: with_value("length", 1, 8)(WHOLE),
    "order": lambda: select(WHOLE, [1, 0, 2, 3, 4]),
    "fewer": lambda: select(WHOLE, slice(4)),
}


@pytest.mark.parametrize("change", OTHERS)
def test_contents_matter(change):
    assert of(OTHERS[change]()) != of(WHOLE)


def test_padding_and_division_do_not_matter():
    expected = of(WHOLE)
    longer = concatenate([WHOLE, make_episode(30, NESTED)])
    assert of(select(longer, slice(5))) == expected
    assert of(*(select(WHOLE, [e]) for e in range(5))) == expected
    assert of(with_value("rewards", (0, 3), 7.0)(WHOLE)) == expected  # past the end of its episode


def test_array_types_and_storage_do_not_matter(tmp_path):
    expected = of(WHOLE)
    rewards = jnp.asarray(WHOLE.rewards)
    assert of(WHOLE.replace(rewards=rewards)) == expected
    minari.save(WHOLE, tmp_path / "set")
    assert of(datasets.load(tmp_path / "set")) == expected
    with datasets.DatasetReader(tmp_path / "set") as reader:
        assert of(*(episode for _, episode in datasets.checked_episodes(reader))) == expected
    np.testing.assert_array_equal(datasets.load(tmp_path / "set").length, WHOLE.length)
