"""Models of trajectories by name and preset, with a common interface.

    memory = model.apply(params, batch_size, method="initial_memory")
    memory, policy = model.apply(params, memory, segment)                   learning: a segment

    state = model.apply(params, batch_size, method="start")                 acting: step by step
    seen = return_to_go_B, observation, first_B
    state, policy = model.apply(params, state, *seen, method="decode")
    state = model.apply(params, state, action_B, method="observe_action")

Both return the same policies. Where `first_B`, an episode begins, which sees nothing of the one
before.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gtrxl_jax.custom import first_difference, is_custom, leaves, named, naming_part, require_values
from gtrxl_jax.nn.core import DTYPES
from gtrxl_jax.nn.cores.gtrxl import GATES
from gtrxl_jax.nn.cores.recurrent import RecurrentCore
from gtrxl_jax.nn.encoders import check_encoders, make_encoder
from gtrxl_jax.nn.sequence.absorbed import AbsorbedBlock
from gtrxl_jax.nn.sequence.cloning import MLPCloning, RecurrentCloning
from gtrxl_jax.nn.sequence.decision_transformer import DecisionTransformer, GPTBlock
from gtrxl_jax.nn.sequence.rate import RATE
from gtrxl_jax.nn.sequence.trajectory import ActionHead, TrajectoryEmbedding
from gtrxl_jax.nn.sequence.valves import VALVES, make_valve
from gtrxl_jax.ops.imitation import action_loss
from gtrxl_jax.plugins import Registry
from gtrxl_jax.segments import Segments
from gtrxl_jax.specs import IMAGE_AXES, action_spec
from gtrxl_jax.validation import check_choice, choice, number, validate

BLOCKS = ("trxl", "trxl-i", "gtrxl")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The architecture of a model of trajectories.

    A model ignores the fields that it does not use, so that models can be swapped by name. dt is
    rate without memory tokens and cache, dt-gpt the original Decision Transformer; bc-mlp and
    bc-lstm are behavior cloning. The config of a custom model is a subclass that has its
    settings and overrides `make`; see `register_model`.
    """

    name: str = "rate"
    """rate, dt, dt-gpt, bc-mlp, bc-lstm, another registered name, or package.module:Name, the
    config of a custom model."""
    block: str = choice("trxl", BLOCKS)
    """Type of the blocks of rate and dt: trxl, trxl-i or gtrxl."""
    layers: int = 2
    """Number of layers."""
    width: int = 64
    """Width of the stream, D."""
    heads: int = 2
    """Number of attention heads, H."""
    head_width: int | None = None
    """Width of a head of rate and dt, K; the stream's width by default, as in RATE's paper. In
    dt-gpt it is width / heads."""
    feedforward_width: int | None = number(None, at_least=0)
    """Hidden width of the feed-forward network; the stream's width by default; 0 for none."""
    memory_tokens: int = number(5, at_least=0)
    """Number of memory tokens of rate, m; 0 for none."""
    cache_size: int = number(0, at_least=0)
    """Number of tokens whose hidden states rate caches for the next segment, C; 0 for none."""
    valve: str = choice("ca-2", tuple(VALVES))
    """Memory Retention Valve of rate: ca-2, ca-1, g, gru, lstm or none."""
    valve_heads: int = 2
    """Number of attention heads of the valves ca-2 and ca-1."""
    gate: str = choice("gru", tuple(GATES))
    """Gate of gtrxl: input, output, highway, sigtanh or gru."""
    gate_bias: float | None = number(None, at_least=-math.inf)
    """b of the gated identity initialization; the paper's value by default (gru 2, others 1)."""
    dropout: float = number(0.0, at_least=0, below=1)
    """Dropout rate of the activations."""
    attention_dropout: float = number(0.0, at_least=0, below=1)
    """Dropout rate of the attention weights."""
    encoder: str = "auto"
    """Observation encoder: linear, mlp, conv, nature, resnet, another registered name, a custom
    package.module:Name, or auto, by shape: nature for images, as in RATE's paper, conv for images
    below 36 x 36, such as grids of cells, otherwise linear."""
    encoders: dict[str, str] = dataclasses.field(default_factory=dict)
    """Encoders of single keys of a dict, or of a tuple by number, as key name pairs."""
    image_axes: str = choice("auto", IMAGE_AXES)
    """Where the channels of images are: hwc (last), chw (first), or auto, by the shape."""
    return_scale: float = 1.0
    """Divisor of the returns-to-go."""
    max_timestep: int = 1000
    """Timesteps of dt-gpt from this one on share an embedding."""
    dtype: str = choice("float32", DTYPES)
    """Dtype of the activations: float32 or bfloat16. Parameters stay float32."""

    @property
    def is_recurrent(self) -> bool:
        """Whether segments are connected; if not, the model sees its whole context at once."""
        return self.name == "rate" and bool(self.memory_tokens or self.cache_size)

    def check(self) -> None:
        """Raise ValueError if names are unknown or another config's, or heads do not fit."""
        check_encoders("model", self.encoder, self.encoders)
        if type(self) is not (kind := self.named(self.name)):
            raise ValueError(
                f"model.name {self.name!r} is a {kind.__name__}, but this is a "
                f"{type(self).__name__}: create it with model_config"
            )
        attends = self.name == "rate" and self.memory_tokens and self.valve.startswith("ca")
        for heads, used in (("heads", self.name == "dt-gpt"), ("valve_heads", attends)):
            if used and self.width % getattr(self, heads):
                raise ValueError(
                    f"model.width {self.width} does not divide into model.{heads} "
                    f"{getattr(self, heads)}: change one of them"
                )

    @staticmethod
    def named(name: str = "rate") -> type["ModelConfig"]:
        """Return the config class of a model's name; see `Registry.find`."""
        return MODELS.find(name)

    def make(
        self, observation_space: Any, action_space: Any, context: int, param_dtype: Any
    ) -> nn.Module:
        """Build the model; see `make_model`."""
        action = action_spec(action_space)
        precision: dict[str, Any] = {
            "dtype": None if self.dtype == "float32" else jnp.dtype(self.dtype),
            "param_dtype": param_dtype,
        }
        encoder = make_encoder(
            observation_space,
            self.encoder,
            self.encoders,
            width=self.width,
            vectors="linear",
            images="nature",
            image_axes=self.image_axes,
            **precision,
        )
        head = ActionHead(action, param_dtype)
        if self.name == "bc-mlp":
            return MLPCloning(encoder, head, (self.width,) * self.layers, self.dropout, **precision)
        if self.name == "bc-lstm":
            core = RecurrentCore("lstm", self.layers, width=self.width, **precision)
            return RecurrentCloning(encoder, core, head, self.dropout)
        embedding = TrajectoryEmbedding(encoder, action, self.width, self.return_scale, **precision)
        rates: dict[str, Any] = {
            "dropout_rate": self.dropout,
            "attention_dropout_rate": self.attention_dropout,
        }
        if self.name == "dt-gpt":
            return DecisionTransformer(
                embedding,
                head,
                tuple(
                    GPTBlock(self.width, self.heads, **rates, **precision)
                    for _ in range(self.layers)
                ),
                context,
                self.max_timestep,
                self.dropout,
            )
        feedforward_width = self.feedforward_width
        if feedforward_width is None:
            feedforward_width = self.width
        return RATE(
            embedding=embedding,
            head=head,
            valve=make_valve(self.valve, self.valve_heads, **precision),
            blocks=tuple(
                AbsorbedBlock(
                    width=self.width,
                    heads=self.heads,
                    head_width=self.head_width or self.width,
                    feedforward_width=feedforward_width,
                    norm_first=self.block != "trxl",
                    gate=self.gate if self.block == "gtrxl" else None,
                    gate_bias=self.gate_bias,
                    **rates,
                    **precision,
                )
                for _ in range(self.layers)
            ),
            context=context,
            memory_tokens=self.memory_tokens if self.name == "rate" else 0,
            cache_size=self.cache_size if self.name == "rate" else 0,
            dropout_rate=self.dropout,
        )


MODELS = Registry("model.name", ModelConfig)
"""The config of each registered model."""


def register_model(name: str, config: type[ModelConfig]) -> None:
    """Add a model by its config, for `make_model` and the command line; see `Registry.register`."""
    MODELS.register(name, config)


for _name in ("rate", "dt", "dt-gpt", "bc-mlp", "bc-lstm"):
    register_model(_name, ModelConfig)

PRESETS: dict[str, dict[str, Any]] = {
    "small": dict(),
    "debug": dict(layers=1, width=16, heads=2, head_width=8, memory_tokens=2),
    # RATE's table 5 and the configurations that its authors published.
    "tmaze": dict(layers=8, heads=10, cache_size=2, dropout=0.05),
    "aar": dict(layers=6, heads=8, cache_size=2, dropout=0.1, attention_dropout=0.05),
    "vizdoom": dict(layers=6, width=128, heads=8, dropout=0.2, attention_dropout=0.05),
    "minigrid": dict(layers=8, heads=10, dropout=0.2, attention_dropout=0.05),
    "memory-maze": dict(
        layers=6, heads=8, memory_tokens=15, valve_heads=4, dropout=0.5, attention_dropout=0.2
    ),
    "atari": dict(
        layers=6, width=128, heads=8, memory_tokens=15, dropout=0.2, attention_dropout=0.05
    ),
    "mujoco": dict(layers=3, width=128, heads=1, dropout=0.2, attention_dropout=0.05),
}


def model_config(name: str = "rate", preset: str = "small", **overrides: Any) -> ModelConfig:
    """Return the config of a model: a preset with fields overridden.

    Args:
      name: see `ModelConfig.name`.
      preset: "small" (minutes on a laptop), "debug" (seconds), or the paper's for a task: "tmaze",
        "aar", "vizdoom", "minigrid", "memory-maze", "atari", "mujoco".
      overrides: fields of `ModelConfig`.

    Raises:
      ValueError: if a name, preset or field is unknown, or a value is invalid.
    """
    check_choice("preset of models", preset, PRESETS)
    kind = ModelConfig.named(name)
    fields = [field.name for field in dataclasses.fields(kind)]
    for field in overrides:
        check_choice("model setting", field, fields)
    config = kind(**{"name": name, **PRESETS[preset], **overrides})
    validate(config, "model.")
    return config


def make_model(
    config: ModelConfig,
    observation_space: Any,
    action_space: Any,
    context: int,
    param_dtype: Any = jnp.float32,
) -> nn.Module:
    """Build a model for an environment's spaces.

    Args:
      config: the architecture.
      observation_space: see `gtrxl_jax.specs.observation_spec`.
      action_space: see `gtrxl_jax.specs.action_spec`.
      context: the number of steps that the model sees at once, in a segment or a sliding window.
      param_dtype: dtype of the parameters.

    Raises:
      ValueError: if the config is invalid or the encoder does not fit the observations.
      TypeError: if a space is not supported.
    """
    validate(config, "model.")
    return config.make(observation_space, action_space, context, param_dtype)


def require_consistent_model(model: Any, params: Any, segment: Segments) -> None:
    """Check that a custom model keeps the shapes of its states. Compiles nothing.

    Args:
      model: the model; only custom ones are checked.
      params: its parameters, or their shapes.
      segment: a segment `[B, K]`.

    Raises:
      ValueError: naming the class of the model, its file and line, and what it returns with another
        shape or dtype than it should; or an error in its methods.
    """
    if not is_custom(model):
        return

    def apply(params: Any, *arguments: Any, method: str = "__call__") -> Any:
        return model.apply({"params": params}, *arguments, method=method)

    def same(method: str, before: Any, after: Any) -> None:
        name = "memory" if method == "__call__" else "state"
        if found := first_difference(leaves(**{name: before}), leaves(**{name: after})):
            leaf, there, here = found
            raise ValueError(
                f"{named('model', model, method)}: {leaf} is {there} before {method} and {here} "
                "after it: return the same shapes and dtypes"
            )

    def learning(params: Any, segment: Segments) -> None:
        batch = len(segment.mask)
        memory = apply(params, batch, method="initial_memory")
        returned = apply(params, memory, segment)
        require_values("model", model, "__call__", returned, ("memory", "policy"))
        same("__call__", memory, returned[0])
        action_loss(returned[1], segment.actions)

    def acting(params: Any, segment: Segments) -> None:
        state = apply(params, len(segment.mask), method="start")
        asked_B, observation, action = jax.tree.map(
            lambda x: x[:, 0], (segment.returns_to_go, segment.observations, segment.actions)
        )
        seen = asked_B, observation, jnp.ones(asked_B.shape, bool)
        returned = apply(params, state, *seen, method="decode")
        require_values("model", model, "decode", returned, ("state", "policy"))
        following = apply(params, returned[0], action, method="observe_action")
        same("observe_action", state, following)

    with naming_part("model", model):
        for form in (learning, acting):
            jax.eval_shape(form, params, segment)
