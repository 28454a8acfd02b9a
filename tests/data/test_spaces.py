"""Conversion of spaces, and errors for unsupported ones."""

import itertools
import json

import gymnasium.spaces as theirs
import gymnax.environments.spaces as gymnax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.data import dataset_spaces
from gtrxl_jax.data.spaces import from_record, same_spaces, to_record
from tests.data.sets import FLAT, NESTED
from tests.spaces import ACTIONS, OBSERVATIONS

EVERY = [dataset_spaces(space, theirs.Discrete(3)) for space in OBSERVATIONS.values()]
EVERY += [dataset_spaces(theirs.Discrete(3), space) for space in ACTIONS.values()]


def test_gymnax_spaces_become_gymnasium_spaces():
    read = dataset_spaces(gymnax.Box(-1.0, 1.0, (4,), jnp.float32), gymnax.Discrete(3))
    assert read.observation == theirs.Box(-1.0, 1.0, (4,), np.float32)
    assert read.action == theirs.Discrete(3, dtype=np.int32)
    assert read == dataset_spaces(read.observation, theirs.Discrete(3))
    nested = gymnax.Dict({"b": gymnax.Discrete(2), "a": gymnax.Box(0, 255, (2, 2), jnp.uint8)})
    observation = dataset_spaces(nested, gymnax.Discrete(3)).observation
    assert list(observation) == ["a", "b"]
    assert observation["a"] == theirs.Box(0, 255, (2, 2), np.uint8)


def test_equality_and_hash():
    def make(high):
        return dataset_spaces(theirs.Box(0.0, high, (4,)), theirs.Discrete(3, start=1))

    assert make(1.0) == make(1.0)
    assert hash(make(1.0)) == hash(make(1.0))
    assert make(1.0) != make(2.0)


BOX, DISCRETE = theirs.Box(0.0, 1.0, (2,)), theirs.Discrete(2)


@pytest.mark.parametrize(
    ("observation", "action", "error", "message"),
    [
        (theirs.OneOf((BOX, BOX)), DISCRETE, TypeError, "observation_space is a OneOf"),
        (
            theirs.Dict(a=theirs.Sequence(BOX)),
            DISCRETE,
            TypeError,
            r"observation_space\['a'\] is a Sequence: offline data require a Box",
        ),
        (BOX, theirs.Text(5), TypeError, "action_space is a Text, which no policy supports"),
        (
            BOX,
            theirs.Box(0, 9, (2,), np.int32),
            ValueError,
            "must have a float dtype",
        ),
        (theirs.Discrete(2**31), DISCRETE, ValueError, "observation_space has choices up to"),
        (BOX, theirs.Discrete(2, start=2**31), ValueError, "action_space has choices up to"),
    ],
)
def test_unsupported_spaces_raise(observation, action, error, message):
    with pytest.raises(error, match=message):
        dataset_spaces(observation, action)


@pytest.mark.parametrize("spaces", [FLAT, NESTED, *EVERY])
def test_records_restore_spaces_from_json(spaces):
    text = json.dumps(to_record(spaces), allow_nan=False)
    restored = from_record(json.loads(text))
    assert restored == spaces
    assert hash(restored) == hash(spaces)


def test_the_same_spaces_of_every_kind():
    observed = EVERY[: len(OBSERVATIONS)]
    for one, other in itertools.product(observed, observed):
        assert same_spaces(one, other) == (one is other)


def test_record_of_image_is_short():
    image = dataset_spaces(theirs.Box(0, 255, (84, 84, 4), np.uint8), DISCRETE)
    assert len(json.dumps(to_record(image))) < 200
