"""Data of other formats in offline runs; nothing is trained."""

import gymnasium
import numpy as np
import pytest

from gtrxl_jax.data import dataset_spaces, minari
from gtrxl_jax.offline.config import preset
from gtrxl_jax.offline.data import Streamed
from gtrxl_jax.offline.environments import data_spaces, sampling_of, trajectories_of
from gtrxl_jax.validation import validate
from tests.data.files import d4rl_arrays, write_d4rl, write_shard
from tests.data.sets import NESTED, make_set
from tests.jobs import changed

ALONE = changed(preset("debug"), env__name="", evaluation__lengths=())
CART_POLE = changed(
    preset("debug"), env__name="CartPole-v1", env__params={}, evaluation__lengths=()
)


def cart_pole(path):
    arrays = d4rl_arrays((5, 3, 4), ("terminal", "terminal", "timeout"))
    arrays["observations"] = np.ones((12, 4), np.float32) / 8
    arrays["actions"] = np.zeros(12, np.int64)  # one of the two is never chosen
    return str(write_d4rl(path, arrays))


@pytest.mark.parametrize("stream", [False, True])
def test_spaces_are_those_of_the_environment(tmp_path, capsys, stream):
    path = cart_pole(tmp_path / "cart_pole.hdf5")
    config = changed(CART_POLE, data__path=path, data__stream=stream)
    if stream:
        outcomes = Streamed(config, sampling_of(config)).outcomes()
        assert outcomes.length_E.tolist() == [5, 3, 3]
    else:
        assert trajectories_of(config).spaces.action == gymnasium.spaces.Discrete(2, dtype=np.int32)
    assert capsys.readouterr().err == (
        f"{path}: the last observation of 3 of 3 episodes is not stored: it repeats the one before "
        "where they terminated, and where they were truncated the last action is left out\n"
    )
    alone = changed(ALONE, data__path=path)
    assert data_spaces(alone).action == gymnasium.spaces.Discrete(1, dtype=np.int32)


def test_shards_cannot_be_streamed(tmp_path):
    write_shard(tmp_path, 0, (5, 2))
    config = changed(ALONE, data__path=str(tmp_path), data__stream=True)
    validate(config)
    with pytest.raises(ValueError, match="convert them with gtrxl data convert, or disable data"):
        Streamed(config, sampling_of(config)).outcomes()
    assert trajectories_of(changed(config, data__stream=False)).length.tolist() == [5, 2]


@pytest.mark.parametrize("stream", [False, True])
def test_keys_and_tolerance_are_those_of_the_config(tmp_path, stream):
    whole = make_set(spaces=NESTED)
    minari.save(whole, tmp_path / "set")
    config = changed(
        ALONE, data__path=str(tmp_path / "set"), data__stream=stream, data__keys=("codes",)
    )
    spaces = data_spaces(config)
    codes = gymnasium.spaces.Dict(codes=NESTED.observation["codes"])
    assert spaces == dataset_spaces(codes, NESTED.action)
    if not stream:
        observations = trajectories_of(config).observations
        assert list(observations) == ["codes"]
    else:
        batch = next(Streamed(config, sampling_of(config)).observations())
        assert list(batch) == ["codes"]
