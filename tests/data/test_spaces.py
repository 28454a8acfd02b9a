"""Conversion of spaces, and errors for unsupported ones."""

import json

import gymnasium.spaces as theirs
import gymnax.environments.spaces as gymnax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.data import dataset_spaces
from gtrxl_jax.data.spaces import from_record, to_record
from tests.data.sets import FLAT, NESTED


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
        (theirs.Text(5), DISCRETE, TypeError, "observation_space is a Text"),
        (theirs.Dict(a=theirs.Text(5)), DISCRETE, TypeError, r"observation_space\['a'\] is a Text"),
        (theirs.Tuple((BOX, BOX)), DISCRETE, TypeError, "observation_space is a Tuple"),
        (BOX, theirs.MultiDiscrete([2, 2]), TypeError, "action_space is a MultiDiscrete"),
        (BOX, theirs.Dict(a=BOX), TypeError, "action_space is a Dict"),
        (BOX, theirs.Box(0.0, 1.0, (2, 2)), TypeError, r"action_space is a Box \(2, 2\) of float"),
        (BOX, theirs.Box(0, 9, (2,), np.int32), TypeError, "action_space is a Box .* of int32"),
        (theirs.Discrete(2**31), DISCRETE, ValueError, "observation_space has choices up to"),
        (BOX, theirs.Discrete(2, start=2**31), ValueError, "action_space has choices up to"),
    ],
)
def test_unsupported_spaces_raise(observation, action, error, message):
    with pytest.raises(error, match=message):
        dataset_spaces(observation, action)


@pytest.mark.parametrize("spaces", [FLAT, NESTED])
def test_records_restore_spaces_from_json(spaces):
    text = json.dumps(to_record(spaces), allow_nan=False)
    restored = from_record(json.loads(text))
    assert restored == spaces
    assert hash(restored) == hash(spaces)


def test_record_of_image_is_short():
    image = dataset_spaces(theirs.Box(0, 255, (84, 84, 4), np.uint8), DISCRETE)
    assert len(json.dumps(to_record(image))) < 200
