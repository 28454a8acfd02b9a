"""Cores, encoders, algorithms and models of one's own that return what does not fit."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn
from flax import struct
from gymnax.environments import spaces

from gtrxl_jax import make_agent, zero_timestep
from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.nn.core import CoreConfig, MemoryCore
from gtrxl_jax.nn.encoders import Encoder
from gtrxl_jax.nn.sequence.model import ModelConfig
from gtrxl_jax.nn.sequence.registry import make_model, model_config
from gtrxl_jax.nn.sequence.trajectory import ActionHead
from gtrxl_jax.offline.algorithm import OfflineAlgorithm, OfflineAlgorithmConfig
from gtrxl_jax.offline.config import preset as offline_preset
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online.config import preset
from gtrxl_jax.online.on_policy import OnPolicy, OnPolicyConfig
from gtrxl_jax.online.r2d2 import R2D2, R2D2Config
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.specs import action_spec
from tests.data.sets import make_set
from tests.jobs import changed

PLACE = r"\(tests/bad_inputs/test_custom_parts.py, line \d+"
BOX, CHOICE = spaces.Box(-1.0, 1.0, (3,), jnp.float32), spaces.Discrete(2)


class Core(MemoryCore):
    """A moving average, of which each variant breaks one thing."""

    def initial_memory(self, batch_size):
        return {"mean": jnp.zeros((batch_size, self.width))}

    def step(self, cache, x_BD, first_B):
        mean_BD = jnp.where(first_B[:, None], 0.0, cache["mean"]) + x_BD
        return {"mean": mean_BD}, mean_BD


def with_condition(self, cache, x_BD, first_B):
    if first_B.any():
        return cache, x_BD
    return Core.step(self, cache, x_BD, first_B)


CORES = {
    "sound": ({}, None),
    "no memory": (
        dict(
            initial_memory=lambda self, batch_size: (),
            step=lambda self, cache, x, first: (cache, x),
        ),
        None,
    ),
    "memory": (
        dict(step=lambda self, cache, x, first: ({"mean": x[:, :1]}, x)),
        r"cache\['mean'\] is float32\[2, 8\] before step and float32\[2, 1\] after it",
    ),
    "dtype": (
        dict(step=lambda self, cache, x, first: ({"mean": x.astype(jnp.int32)}, x)),
        r"cache\['mean'\] is float32\[2, 8\] before step and int32\[2, 8\] after it",
    ),
    "lost part": (
        dict(step=lambda self, cache, x, first: ({}, x)),
        r"cache\['mean'\] is float32\[2, 8\] before step and absent after it",
    ),
    "outputs": (
        dict(step=lambda self, cache, x, first: (cache, x[:, :1])),
        r"the outputs are float32\[2, 1\] for inputs \[2, 8\]: return one vector",
    ),
    "one value": (
        dict(step=lambda self, cache, x, first: x),
        "step returns one value: return 2, cache, outputs",
    ),
    "batch": (
        dict(initial_memory=lambda self, batch_size: {"mean": jnp.zeros(self.width)}),
        r"memory\['mean'\] of initial_memory\(2\) is float32\[8\]: begin with the axis of the b",
    ),
    "segment": (
        {"__call__": lambda self, memory, x, first: (memory, x[:, 0])},
        r"the outputs are float32\[2, 8\] for inputs \[2, 3, 8\]",
    ),
    "code": (dict(step=with_condition), "a Python condition depends on .*: use jnp.where"),
}


@pytest.mark.parametrize("name", CORES)
def test_cores(name):
    methods, message = CORES[name]
    core = type("Broken", (Core,), methods)(width=8)
    if message is None:
        make_agent(core, BOX, CHOICE)
        return
    with pytest.raises(ValueError, match=f"^core Broken {PLACE}.*: {message}"):
        make_agent(core, BOX, CHOICE)


@dataclasses.dataclass(frozen=True)
class CoreOfWrongWidth(CoreConfig):
    name: str = f"{__name__}:CoreOfWrongWidth"

    def make(self):
        outputs = dict(step=lambda self, cache, x, first: (cache, x[:, :1]))
        return type("Broken", (Core,), outputs)(width=self.width)


def test_core_of_a_run():
    config = changed(preset("debug"), core=CoreOfWrongWidth())
    with pytest.raises(ValueError, match="^core Broken .*: the outputs are float32"):
        OnlineTrainer(config)


class Flat(nn.Module):
    """An encoder without features."""

    @nn.compact
    def __call__(self, observation):
        return observation.sum(axis=-1)


class Conditional(nn.Module):
    @nn.compact
    def __call__(self, observation):
        return observation if observation.sum() > 0 else -observation


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (Flat(), r"^encoder Flat .*: it returns float32\[4, 5\] for time steps \[4, 5\]: return a"),
        (Conditional(), r"^encoder Conditional .*, in __call__\): a Python condition depends on"),
    ],
)
def test_encoders(encoder, message):
    agent = make_agent(Core(width=8), BOX, CHOICE, encoder=encoder)
    timesteps = zero_timestep(BOX, CHOICE, 4, 5)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(agent.init, jax.random.key(0), agent.initial_memory(4), timesteps)


class FlatFeatures(Encoder):
    @nn.compact
    def __call__(self, observation):
        return self.normalize(observation).sum(axis=-1)


class ConditionalFeatures(Encoder):
    def __call__(self, observation):
        return observation if observation.sum() > 0 else -observation


NAMED = {
    Flat: r"^encoder Flat .*: got an unexpected keyword .*: it is created as Flat\(spec, width=",
    FlatFeatures: r"^encoder FlatFeatures .*: it returns float32\[2, 3\] for observations \[2, 3, ",
    ConditionalFeatures: (
        r"^encoder ConditionalFeatures .*, in __call__\): a Python condition depends on"
    ),
}


@pytest.mark.parametrize("kind", NAMED)
@pytest.mark.parametrize("space", [BOX, spaces.Dict({"a": BOX, "b": CHOICE})])
def test_encoders_by_name(space, kind):
    name = f"{__name__}:{kind.__name__}"
    with pytest.raises(ValueError, match=NAMED[kind]):
        make_agent(Core(width=8), space, CHOICE, encoder=name)
    with pytest.raises(ValueError, match=NAMED[kind]):
        make_model(model_config("rate", "debug", encoder=name), space, CHOICE, 2)


class Constant(OnPolicy):
    """Decays the parameters; each variant breaks one thing."""

    def init(self, params, hyperparameters, experience, **_):
        return super().init(params, hyperparameters, experience, own={"count": jnp.zeros(())})

    def loss(self, trainable, state, experience):
        loss = optax.tree.norm(trainable["params"])
        return loss, ({"loss/norm": loss}, state.popart)


@dataclasses.dataclass(frozen=True)
class ConstantConfig(OnPolicyConfig):
    name: str = f"{__name__}:ConstantConfig"
    variant: str = "sound"
    epochs: int = 2

    def make(self, setup):
        return type("Broken", (Constant,), ALGORITHMS[self.variant][0])(self, setup)


def vector(self, trainable, state, experience):
    return jnp.zeros(3), ({}, state.popart)


def metric(self, trainable, state, experience):
    loss, _ = Constant.loss(self, trainable, state, experience)
    return loss, ({"loss/each": experience.timesteps.reward}, state.popart)


def grown(self, state, batch):
    after, metrics = OnPolicy.step(self, state, batch)
    return dataclasses.replace(after, algorithm={"count": jnp.zeros(2)}), metrics


def lost(self, trainable, state, experience):
    return trainable["parameters"], ({}, state.popart)


def forgetful(self, learner, experience, key):
    return OnPolicy.update(self, learner, experience, key)[0]


def many(self, learner, experience, key):
    learner, metrics = OnPolicy.update(self, learner, experience, key)
    return learner, metrics | {"each": experience.timesteps.reward}


ALGORITHMS = {
    "sound": ({}, None),
    "vector": (dict(loss=vector), r"the loss is float32\[3\]: return a scalar"),
    "no statistics": (
        dict(loss=lambda *_: (jnp.zeros(()), {})),
        r"loss returns one value: return 2, metrics, statistics",
    ),
    "metric": (dict(loss=metric), r"the metric loss/each is float32.*: return a scalar"),
    "state": (
        dict(step=grown),
        r"state.algorithm\['count'\] is float32\[\] before an update and float32\[2\] after it",
    ),
    "code": (dict(loss=lost), "KeyError: 'parameters'"),
    "no metrics": (dict(update=forgetful), r"update returns .*: return 2, learner, metrics"),
    "metric of an update": (dict(update=many), r"the metric each is float32.*: return a scalar"),
}


@pytest.mark.integration
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms(name):
    config = changed(preset("debug"), algorithm=ConstantConfig(variant=name))
    message = ALGORITHMS[name][1]
    if message is None:
        OnlineTrainer(config)
        return
    with pytest.raises(ValueError, match=rf"^algorithm Broken \(tests/.*\): {message}"):
        OnlineTrainer(config)


class Replayed(R2D2):
    """R2D2 as it is."""


@dataclasses.dataclass(frozen=True)
class ReplayedConfig(R2D2Config):
    name: str = f"{__name__}:ReplayedConfig"

    def make(self, setup):
        return Replayed(self, setup)


def test_algorithm_with_a_replay_and_a_bonus():
    """Its replay has a place for the bonus."""
    OnlineTrainer(changed(preset("debug"), algorithm=ReplayedConfig(), agent__rnd=0.1))


class Model(nn.Module):
    """Clones behavior from the last observation; each variant breaks one thing."""

    head: nn.Module

    def initial_memory(self, batch_size):
        return jnp.zeros(batch_size)

    def __call__(self, memory, segment, deterministic=True):
        return memory, self.head(segment.observations)

    def start(self, batch_size):
        return {"steps": jnp.zeros(batch_size)}

    def decode(self, state, return_to_go_B, observation, first_B):
        return state, self.head(observation)

    def observe_action(self, state, action_B):
        return {"steps": state["steps"] + 1}


@dataclasses.dataclass(frozen=True)
class BrokenModel(ModelConfig):
    name: str = f"{__name__}:BrokenModel"
    variant: str = "sound"

    def make(self, observation_space, action_space, context, param_dtype):
        head = ActionHead(action_spec(action_space), param_dtype=param_dtype)
        return type("Broken", (Model,), MODELS[self.variant][0])(head)


MODELS: dict[str, tuple[Any, str | None]] = {
    "sound": ({}, None),
    "memory": (
        {"__call__": lambda self, m, segment, *_: (m[:, None], self.head(segment.observations))},
        r"memory is float32\[2\] before __call__ and float32\[2, 1\] after it",
    ),
    "one value": (
        {"__call__": lambda self, memory, segment, *_: self.head(segment.observations)},
        "__call__ returns one value: return 2, memory, policy",
    ),
    "state": (
        dict(observe_action=lambda self, state, action_B: {"steps": jnp.zeros(1)}),
        r"state\['steps'\] is float32\[2\] before observe_action and float32\[1\] after it",
    ),
    "code": (
        {"__call__": lambda self, memory, segment, *_: self.missing(memory)},
        "AttributeError: .*missing",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    config = changed(
        offline_preset("debug"),
        env__name="",
        evaluation__lengths=(),
        model=BrokenModel(variant=name),
    )
    message = MODELS[name][1]
    if message is None:
        OfflineTrainer(config, make_set())
        return
    with pytest.raises(ValueError, match=rf"^model Broken \(tests/.*\): {message}"):
        OfflineTrainer(config, make_set())


@struct.dataclass
class Decayed:
    """What `Decay` learns with."""

    params: Any
    count: jax.Array


class Decay(OfflineAlgorithm):
    """Decays the parameters; each variant breaks one thing."""

    def init(self, params, key):
        return Decayed(params, jnp.zeros(()))

    def update(self, learner, batch, key):
        params = jax.tree.map(lambda x: 0.9 * x, learner.params)
        return Decayed(params, learner.count + 1), {"steps": batch.mask.sum()}


class Still(Policy):
    """A policy that does not know what it needs."""

    def init(self, params, batch_size):
        return ()

    def act(self, params, state, timestep, key):
        return (), self.missing, ()


@dataclasses.dataclass(frozen=True)
class DecayConfig(OfflineAlgorithmConfig):
    name: str = f"{__name__}:DecayConfig"
    variant: str = "sound"

    def make(self, setup):
        return type("Broken", (Decay,), OFFLINE[self.variant][0])(self, setup)


def all_of_batch(self, learner, batch, key):
    return learner, {"returns": batch.returns_to_go}


OFFLINE: dict[str, tuple[Any, str | None]] = {
    "sound": ({}, None),
    "no params": (
        dict(init=lambda self, params, key: {"params": params}),
        "init returns a dict without params: return a flax.struct dataclass",
    ),
    "one value": (
        dict(update=lambda self, learner, batch, key: learner),
        "update returns one value: return 2, learner, metrics",
    ),
    "learner": (
        dict(update=lambda self, learner, *_: (learner.replace(count=jnp.zeros(2)), {})),
        r"learner.count is float32\[\] before an update and float32\[2\] after it",
    ),
    "metric": (
        dict(update=all_of_batch),
        r"the metric returns is float32\[2, 2, 4\]: return a scalar",
    ),
    "code": (
        dict(update=lambda self, learner, batch, key: learner.momentum),
        "AttributeError: .*momentum",
    ),
}


@pytest.mark.parametrize("name", OFFLINE)
def test_offline_algorithms(name):
    config = changed(
        offline_preset("debug"),
        env__name="",
        evaluation__lengths=(),
        algorithm=DecayConfig(variant=name),
    )
    message = OFFLINE[name][1]
    if message is None:
        OfflineTrainer(config, make_set())
        return
    with pytest.raises(ValueError, match=rf"^algorithm Broken \(tests/.*\): {message}"):
        OfflineTrainer(config, make_set())


@pytest.mark.parametrize(
    "policy", [lambda self, target_return: self.missing, lambda self, target_return: Still()]
)
def test_policies_of_offline_algorithms(policy, monkeypatch):
    monkeypatch.setattr(Decay, "policy", policy)
    config = changed(offline_preset("debug"), algorithm=DecayConfig(), evaluation__lengths=(8,))
    trainer = OfflineTrainer(changed(config, evaluation__target_return=1.0))
    params = jax.eval_shape(trainer.init, 0).params
    with pytest.raises(ValueError, match="^algorithm Broken .*: AttributeError: .*missing"):
        jax.eval_shape(trainer.evaluate, params, jax.random.key(0))


def test_offline_algorithm_that_cannot_be_made(monkeypatch):
    monkeypatch.setattr(DecayConfig, "make", lambda self, setup: setup.missing)
    config = changed(offline_preset("debug"), algorithm=DecayConfig())
    with pytest.raises(ValueError, match="^algorithm DecayConfig .*: AttributeError: .*missing"):
        OfflineTrainer(config)
