"""Online configs: serialization, validation and derived sizes."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from gtrxl_jax.online.config import (
    PRESETS,
    EnvConfig,
    OnlineConfig,
    OptimizerConfig,
    from_json,
    preset,
    to_json,
)
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.online.trainer import sample_hyperparameters
from gtrxl_jax.online.vmpo import VMPOConfig
from gtrxl_jax.validation import field_names, validate
from tests.jobs import changed

TASKS = ({"corridor_length": 3}, {"corridor_length": 5, "step_penalty": 0.5, "penalty": "behind"})


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_are_valid_and_round_trip(name):
    config = preset(name)
    validate(config)
    assert from_json(to_json(config)) == config


def test_every_field_type_round_trips():
    config = changed(
        preset("debug"),
        env__params={"corridor_length": 3, "penalty": "behind"},
        env__tasks=TASKS,
        sweep={"learning_rate": (1e-4, 1e-3)},
        agent__normalize=False,
        algorithm__popart=False,
        core__head_width=3,
        core__gate_bias=-1.5,
        optimizer__clip_norm=None,
    )
    read = from_json(to_json(config))
    assert read == config
    assert isinstance(read.env.tasks, tuple)
    assert isinstance(read.sweep["learning_rate"], tuple)
    assert json.loads(to_json(config))["kind"] == "online"


def test_omitted_fields_have_defaults():
    assert from_json('{"kind": "online", "seed": 7}') == OnlineConfig(seed=7)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{", ValueError, "the config is not JSON: "),
        ("[]", ValueError, 'its "kind" is not "online"'),
        ('{"kind": "offline"}', ValueError, 'its "kind" is not "online"'),
        ('{"kind": "online", "sead": 1}', ValueError, "config field 'sead': did you mean 'seed'"),
        (
            '{"kind": "online", "env": {"num_env": 1}}',
            ValueError,
            "config field 'env.num_env': did you mean 'env.num_envs'",
        ),
        ('{"kind": "online", "env": 3}', TypeError, "env must have fields, not be 3"),
        ('{"kind": "online", "unroll": "8"}', TypeError, "unroll must be a whole number, not '8'"),
        ('{"kind": "online", "unroll": 0}', ValueError, "unroll must be at least 1, not 0"),
    ],
)
def test_invalid_json_raises(text, error, message):
    with pytest.raises(error, match=message) as caught:
        from_json(text)
    assert "\n" not in str(caught.value)


POSITIVE = [
    "env.num_envs", "env.trial", "agent.encoder_width", "agent.head_width", "agent.initial_scale",
    "agent.max_scale", "algorithm.clip_epsilon", "algorithm.value_clip",
    *(f"algorithm.{name}" for name in (
        "popart_rate", "gamma", "target_period", "epsilon_eta", "epsilon_alpha", "epsilon_mean",
        "epsilon_covariance", "multiplier_rate", "value_cost", "initial_eta", "initial_alpha",
        "initial_alpha_mean", "initial_alpha_covariance", "epochs", "minibatches",
    )),
    "optimizer.learning_rate", "evaluation.episodes", "checkpoint.keep", "total_steps", "unroll",
    "segments", "updates_per_iteration", "num_seeds", "parameter_shards", "actors.count",
    "actors.timeout",
]  # fmt: skip
OPTIONAL = ["algorithm.value_clip", "optimizer.clip_norm"]
MAY_BE_ZERO = [
    "optimizer.beta_2", "optimizer.warmup", "optimizer.final", "optimizer.horizon",
    "evaluation.interval", "checkpoint.interval", "seed", "devices", "algorithm.gae_lambda",
    "algorithm.entropy_cost", "algorithm.entropy_final", "algorithm.min_advantage_std",
    "agent.reconstruction", "agent.pixel_control", "agent.rnd", "actors.lag", "actors.restarts",
    "core.recency",
]  # fmt: skip
CORE_SIZES = [
    "core.layers", "core.width", "core.heads", "core.head_width", "core.memory_size",
    "core.feedforward_width",
]  # fmt: skip


def base(field):
    """Return a config that has the field: of PPO, or of V-MPO for the settings of V-MPO alone."""
    config = preset("debug")
    name, _, inner = field.rpartition(".")
    if name == "algorithm" and not hasattr(config.algorithm, inner):
        config = changed(config, algorithm=VMPOConfig())
    return config


def with_field(field, value):
    return changed(base(field), **{field.replace(".", "__"): value})


def whole(field):
    name, _, inner = field.rpartition(".")
    owner = getattr(base(field), name) if name else base(field)
    return isinstance(getattr(owner, inner), int)


@pytest.mark.parametrize("field", POSITIVE + OPTIONAL + MAY_BE_ZERO)
def test_numbers_out_of_range_raise(field):
    zero = field in MAY_BE_ZERO
    lowest = "at least 0" if zero else "at least 1" if whole(field) else "above 0"
    values = [-1] if zero else [-1, 0]
    if not whole(field):
        lowest += " and finite"
        values = [*map(float, values), float("nan"), float("inf")]
    for value in values:
        with pytest.raises(ValueError, match=f"^{field} must be {lowest}, not {value}$"):
            validate(with_field(field, value))
    if field in MAY_BE_ZERO:
        validate(with_field(field, 0))
    if field in OPTIONAL:
        validate(with_field(field, None))


def test_range_of_every_number_is_tested():
    configs = OnlineConfig(), OnlineConfig(algorithm=VMPOConfig())
    fields = {
        name for config in configs for name, kind in field_names(config) if kind in (int, float)
    }
    assert fields <= {*POSITIVE, *MAY_BE_ZERO, *CORE_SIZES}


def test_best_checkpoint_with_sweep_over_seeds_raises():
    sweep = {"clip_epsilon": (0.1, 0.3)}
    config = changed(preset("debug"), sweep=sweep, checkpoint__best="evaluation/return")
    validate(config)
    with pytest.raises(
        ValueError, match=r"^checkpoint.best evaluation/return .* sweep.clip_epsilon"
    ):
        validate(changed(config, num_seeds=2))


@pytest.mark.parametrize(
    "bounds", [(1e-3, 1e-3), (1e-2, 1e-3), (0.0, 1.0), (0.1,), 0.1, ("a", "b"), (0.1, float("inf"))]
)
def test_sweep_without_positive_interval_raises(bounds):
    message = r"^sweep.learning_rate must be \(low, high\) with 0 < low < high"
    with pytest.raises(ValueError, match=message):
        validate(changed(preset("debug"), sweep={"learning_rate": bounds}))


@pytest.mark.parametrize("name", ["gamma", "gae_lambda", "clip_epsilon"])
def test_sweep_beyond_the_range_of_a_field_raises(name):
    with pytest.raises(ValueError, match=rf"^sweep.{name} must be (at most|below) 1, not 1.5"):
        validate(changed(preset("debug"), sweep={name: (0.5, 1.5)}))


def test_sweep_of_a_fixed_learning_rate_raises():
    config = changed(preset("debug"), sweep={"learning_rate": (1e-4, 1e-3)})
    validate(config)
    message = r"^sweep.learning_rate and optimizer.learning_rate are both set: omit one of them"
    with pytest.raises(ValueError, match=message):
        validate(changed(config, optimizer__learning_rate=1e-3))


def test_initial_scale_not_below_the_maximum_raises():
    with pytest.raises(ValueError, match=r"^agent.initial_scale 1.5 is not below agent.max_scale"):
        validate(changed(preset("debug"), agent__initial_scale=1.5))


def test_sweep_of_other_fields_raises():
    with pytest.raises(ValueError, match="hyperparameter in sweep 'multipliers'"):
        validate(changed(preset("debug"), sweep={"multipliers": (0.1, 1.0)}))


def test_minibatches_must_divide_environments():
    with pytest.raises(
        ValueError, match=r"num_envs \* segments, 8, is not divisible by algorithm.minib"
    ):
        validate(changed(preset("debug"), algorithm__minibatches=3))
    validate(changed(preset("debug"), algorithm__minibatches=3, segments=3))


@pytest.mark.parametrize("field", CORE_SIZES)
@pytest.mark.parametrize("value", [0, -3])
def test_core_sizes_out_of_range_raise(field, value):
    with pytest.raises(ValueError, match=f"^{field} must be at least 1, not {value}$"):
        validate(with_field(field, value))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("algorithm.gamma", 1.5, "algorithm.gamma must be at most 1, not 1.5"),
        ("algorithm.gae_lambda", 1.5, "algorithm.gae_lambda must be at most 1, not 1.5"),
        ("algorithm.multipliers", "sgd", "unknown algorithm.multipliers 'sgd'"),
        ("evaluation.actions", "best", "unknown evaluation.actions 'best'"),
        ("evaluation.actions", "", "unknown evaluation.actions ''"),
        ("algorithm.alpha_bounds", (1.0, 0.1), "algorithm.alpha_bounds must be .low, high."),
        (
            "algorithm.initial_alpha",
            100.0,
            "algorithm.initial_alpha 100 is outside algorithm.alpha_bounds 0.01 to 10",
        ),
        ("algorithm.popart_rate", 1.0, "algorithm.popart_rate must be below 1, not 1.0"),
        ("optimizer.warmup", 2.0, "optimizer.warmup must be at most 1"),
        ("optimizer.final", 1.1, "optimizer.final must be at most 1"),
        ("core.name", "gtrlx", "unknown core.name 'gtrlx': did you mean 'gtrxl'"),
        ("core.gate", "gur", "unknown core.gate 'gur': did you mean 'gru'"),
        ("core.gate", "", "unknown core.gate ''"),
        ("core.gate_order", "reversed", "unknown core.gate_order 'reversed'"),
        ("core.dtype", "float16", "unknown core.dtype 'float16'"),
        ("core.gate_bias", float("inf"), "core.gate_bias must be finite, not inf"),
        ("core.heads", 3, "core.width 16 does not divide into core.heads 3"),
        ("checkpoint.best_is", "least", "unknown checkpoint.best_is 'least'"),
        ("checkpoint.best_is", "", "unknown checkpoint.best_is ''"),
        ("on_divergence", "contineu", "unknown on_divergence 'contineu': did you mean 'continue'"),
        ("env.tasks", TASKS * 3, "env.num_envs 8 is not divisible by the number of env.tasks, 6"),
        ("optimizer.horizon", 10**15, None),
        ("optimizer.horizon", 10**16, "optimizer.horizon must be at most 1000000000000000"),
        ("seed", 2**31 - 1, None),
        ("seed", 2**31, "seed must be at most 2147483647, not 2147483648"),
    ],
)
def test_other_invalid_values_raise(field, value, message):
    if message is None:
        validate(with_field(field, value))
        return
    with pytest.raises(ValueError, match=message) as caught:
        validate(with_field(field, value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_epsilon": 1.0}, "algorithm.clip_epsilon must be below 1, not 1.0"),
        ({"minibatches": 3}, "8, is not divisible by algorithm.minibatches 3: use a multiple"),
    ],
)
def test_invalid_ppo_settings_raise(settings, message):
    validate(preset("debug"))
    with pytest.raises(ValueError, match=message):
        validate(changed(preset("debug"), algorithm=PPOConfig(**settings)))


def test_sweep_of_settings_of_algorithm():
    sweep = {"clip_epsilon": (0.1, 0.3)}
    validate(changed(preset("debug"), sweep=sweep, algorithm=PPOConfig()))
    with pytest.raises(ValueError, match="hyperparameter in sweep 'clip_epsilon'"):
        validate(changed(preset("debug"), sweep=sweep, algorithm=VMPOConfig()))


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("unroll", 2.5, "a whole number"),
        ("unroll", True, "a whole number"),
        ("unroll", None, "a whole number"),
        ("algorithm.gamma", "0.9", "a number"),
        ("algorithm.gamma", False, "a number"),
        ("optimizer.clip_norm", "1", "a number"),
        ("algorithm.popart", 1, "True or False"),
        ("agent.encoder", 3, "a string"),
        ("core.width", 16.0, "a whole number"),
        ("sweep", (0.1,), "dict"),
        ("env.params", [3], "dict"),
        ("env.params", {3: 3}, "dict"),
        ("env.tasks", {"corridor_length": 3}, "tuple"),
        ("env.tasks", (3,), "tuple"),
        ("env", {"num_envs": 3}, "of type EnvConfig, not dict$"),
        ("env", "CartPole-v1", r"replace\(config.env, name='CartPole-v1'\)$"),
        ("core", "lstm", r"type CoreConfig, not 'lstm': pass with_name\(config.core, 'lstm'\) of"),
        ("algorithm", "ppo", r"pass with_name\(config.algorithm, 'ppo'\) of gtrxl_jax.plugins$"),
        ("core.dtype", jax.numpy.bfloat16, "a string, 'float32' or 'bfloat16', not <class"),
    ],
)
def test_values_of_wrong_type_raise(field, value, wanted):
    with pytest.raises(TypeError, match=f"^{field} must be .*{wanted}") as caught:
        validate(with_field(field, value))
    assert "\n" not in str(caught.value)


def test_unknown_preset_raises():
    with pytest.raises(ValueError, match="unknown preset 'papper': did you mean 'paper'"):
        preset("papper")


@pytest.mark.parametrize(
    ("total_steps", "updates"), [(1, 5), (4 * 6 * 5, 5), (4 * 6 * 5 + 1, 10), (1000, 45)]
)
def test_number_of_updates(total_steps, updates):
    config = OnlineConfig(
        env=EnvConfig(num_envs=4), unroll=6, updates_per_iteration=5, total_steps=total_steps
    )
    assert config.steps_per_update == 24
    assert config.decay_updates == updates
    assert config.num_updates == updates
    assert config.num_updates * config.steps_per_update >= total_steps


def test_decay_over_horizon():
    config = changed(preset("debug"), optimizer__horizon=601, segments=2, unroll=5)
    assert config.steps_per_update == 8 * 2 * 5
    assert config.decay_updates == 8 < config.num_updates
    assert from_json(to_json(config)) == config


def test_learning_rate_is_given_or_of_algorithm():
    ppo = preset("debug")
    vmpo = changed(ppo, algorithm=VMPOConfig())
    assert (vmpo.learning_rate, ppo.learning_rate) == (2e-3, 5e-4)
    assert changed(ppo, optimizer__learning_rate=3e-4).learning_rate == 3e-4
    for own in (vmpo, ppo):
        drawn = sample_hyperparameters(own, jax.random.key(0))
        np.testing.assert_allclose(drawn["learning_rate"], own.learning_rate, rtol=1e-6)


def test_configs_are_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        OnlineConfig().seed = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        OptimizerConfig().final = 0.5
