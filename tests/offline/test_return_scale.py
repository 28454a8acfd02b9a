"""The scale of the returns-to-go: chosen from the data, said, recorded, and applied exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.cli.resuming import without_records
from gtrxl_jax.nn.encoders import make_encoder
from gtrxl_jax.nn.sequence.registry import model_config
from gtrxl_jax.nn.sequence.trajectory import TrajectoryEmbedding, return_statistics
from gtrxl_jax.offline.config import from_json, preset
from gtrxl_jax.offline.cql import CQLConfig
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.specs import action_spec
from tests.data.sets import FLAT, make_set
from tests.jobs import changed

ALONE = changed(preset("debug"), env__name="", evaluation__lengths=(), model__name="dt-gpt")


def data(factor=1.0):
    whole = make_set()
    return whole.replace(rewards=whole.rewards * np.float32(factor))


def largest(whole):
    lengths = np.asarray(whole.length)
    each = [(e, t, n) for e, n in enumerate(lengths) for t in range(n)]
    return max(abs(whole.rewards[e, t:n].sum()) for e, t, n in each)


def test_scale_is_the_largest_return_to_go():
    whole = data(-300.0)
    trainer = OfflineTrainer(ALONE, whole)
    np.testing.assert_allclose(trainer.return_scale, largest(whole), rtol=1e-6)
    measured = {k: v for k, v in trainer.measure_statistics().items() if "return_normalizer" in k}
    assert {k.rpartition("/")[2] for k in measured} == {"count", "mean", "variance"}
    (variance,) = (v for k, v in measured.items() if k.endswith("variance"))
    np.testing.assert_allclose(np.sqrt(variance), largest(whole), rtol=1e-6)
    (line,) = [note for note in trainer.notes if "returns" in note]
    scale = f"{trainer.return_scale:.4g}"
    assert line == f"returns-to-go are divided by {scale}, the largest of them"


def test_scale_is_recorded():
    """A loaded run says it without the data; a new run on others chooses another."""
    trainer = OfflineTrainer(ALONE, data(20.0))
    recorded = from_json(trainer.config_json)
    assert recorded.data.return_scale == trainer.return_scale
    assert OfflineTrainer(recorded).notes == trainer.notes
    assert OfflineTrainer(without_records(recorded), data(40.0)).return_scale == pytest.approx(
        2 * trainer.return_scale
    )


@pytest.mark.parametrize(
    "changes", [{"model__return_scale": 7.0}, {"model__name": "bc-mlp"}, {"model__name": "bc-lstm"}]
)
def test_no_scale_is_chosen(changes):
    trainer = OfflineTrainer(changed(ALONE, data__normalize=False, **changes), data(20.0))
    assert trainer.return_scale is None
    assert not [note for note in trainer.notes if "returns" in note]
    assert trainer.measure_statistics() == {}


def test_scale_is_of_all_steps():
    """Costs that a prize makes up for: returns are small, and returns-to-go are not."""
    costs = make_set().replace(rewards=np.full_like(make_set().rewards, -1.0))
    last_E, length_E = np.arange(len(costs.length)), costs.length
    costs.rewards[last_E, length_E - 1] = length_E
    assert OfflineTrainer(ALONE, costs).return_scale == length_E.max()


def test_scale_is_not_said_where_parameters_bring_another():
    trainer = OfflineTrainer(changed(ALONE, init_from="elsewhere"), data(20.0))
    assert not [note for note in trainer.notes if "returns" in note]


def test_scale_is_not_said_where_returns_are_not_read():
    trainer = OfflineTrainer(changed(ALONE, algorithm=CQLConfig()), data(20.0))
    assert trainer.return_scale is not None
    assert not [note for note in trainer.notes if "returns" in note]


def test_returns_of_zero_are_not_divided_by_zero():
    assert OfflineTrainer(ALONE, data(0.0)).return_scale == 1


@pytest.mark.parametrize("factor", [1e20, 1e-20])
def test_returns_whose_square_overflows_are_refused(factor):
    with pytest.raises(ValueError, match="whose square is no float32: scale the rewards"):
        _ = OfflineTrainer(ALONE, data(factor)).return_scale


def test_normalizers_can_be_turned_off():
    trainer = OfflineTrainer(changed(ALONE, data__normalize=False), data(20.0))
    assert all("return_normalizer" in name for name in trainer.measure_statistics())


def embedding(scale, dtype=None):
    space = FLAT.observation
    encoder = make_encoder(space, "auto")
    return TrajectoryEmbedding(encoder, action_spec(FLAT.action), 4, scale, dtype)


def observe(module, params, returns):
    observation = jnp.zeros((*returns.shape, 2), jnp.float32)
    return module.apply({"params": params}, returns, observation, method="observe")[..., 0, :]


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_measured_scale_is_that_which_is_given(dtype):
    scale = 1234.5
    returns = jnp.asarray(np.linspace(-1300, 1300, 53), jnp.float32)
    zeros = jnp.zeros((2,), jnp.float32)
    key = jax.random.key(0)
    given, chosen = embedding(scale, dtype), embedding(None, dtype)
    params = chosen.init(key, returns[0], zeros, method="observe")["params"]
    flat = return_statistics(params, scale)
    params["return_normalizer"] = {name.rpartition("/")[2]: value for name, value in flat.items()}
    without = {name: child for name, child in params.items() if name != "return_normalizer"}
    expected = observe(given, without, returns)
    np.testing.assert_allclose(
        np.float32(observe(chosen, params, returns)), np.float32(expected), rtol=1e-6, atol=1e-7
    )


def test_returns_are_scaled_before_they_are_rounded():
    """1,001 is 1,000 in bfloat16, where they differ once they are divided by this scale."""
    module = embedding(1000.5 / (0.75 + 2.0**-9), jnp.bfloat16)
    returns = jnp.array([1001.0, 1000.0], jnp.float32)
    assert len(set(returns.astype(jnp.bfloat16).tolist())) == 1
    zeros = jnp.zeros((2,), jnp.float32)
    params = module.init(jax.random.key(0), returns[0], zeros, method="observe")["params"]
    tokens = observe(module, params, returns)
    assert (tokens[0] != tokens[1]).any()


def test_default_of_all_models_with_returns():
    for name in ("rate", "dt", "dt-gpt", "elmur", "dmamba"):
        assert model_config(name).return_scale is None
