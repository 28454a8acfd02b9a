"""The interface of sequence models, the settings of all of them, and their registry.

    memory = model.apply(params, batch_size, method="initial_memory")
    memory, policy = model.apply(params, memory, segment)                   learning: a segment

    state = model.apply(params, batch_size, method="start")                 acting: step by step
    seen = return_to_go_B, observation, first_B
    state, policy = model.apply(params, state, *seen, method="decode")
    state = model.apply(params, state, action_B, method="observe_action")

Both return the same policies. Where `first_B`, an episode begins, which sees nothing of the one
before. A model may also have

  - `encode(observation)`, through which its encoder's normalizers get the statistics of the data;
  - `memory_metrics(before, after)`, scalars about the memories before and after a segment;
  - `memory_vectors(memory)`, the vectors `[B, G, M, D]` of a memory, or of that which an acting
    state has from the segment before: M vectors in each of G memories;
  - an attribute `head`, which maps features to the policy, and `features(memory, segment)`, as
    `__call__` but with those of each step in place of the policy. They depend on the history up to
    the step's observation, not on its action. Algorithms with critics need both.
"""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from gtrxl_jax.custom import (
    describe_part,
    is_custom,
    require_returned,
    require_same_shapes,
    wrap_errors,
)
from gtrxl_jax.nn.core import DTYPES
from gtrxl_jax.nn.encoders import make_encoder, require_encoders
from gtrxl_jax.ops.imitation import action_loss
from gtrxl_jax.plugins import Registry
from gtrxl_jax.segments import Segments
from gtrxl_jax.specs import IMAGE_AXES
from gtrxl_jax.validation import choice, number


@dataclasses.dataclass(frozen=True)
class ModelConfig(abc.ABC):
    """Settings of every sequence model. The config of a model adds its own, and creates it."""

    name: str = ""
    """rate, rmt, trxl, elmur, dt, dt-gpt, dmamba, core, bc-mlp, bc-lstm, another registered name,
    or package.module:Name, the config of a custom model."""
    layers: int = 2
    """Number of layers."""
    width: int = 64
    """Width of the layers, D."""
    dropout: float = number(0.0, at_least=0, below=1)
    """Dropout rate of the activations."""
    encoder: str = "auto"
    """Observation encoder: linear, mlp, conv, nature, resnet, another registered name, a custom
    package.module:Name, or auto, by shape: nature for images, as in RATE's paper, conv for images
    below 36 x 36, such as grids of cells, otherwise linear."""
    encoders: dict[str, str] = dataclasses.field(default_factory=dict)
    """Encoders of single keys of a dict, or of a tuple by number, as key name pairs."""
    image_axes: str = choice("auto", IMAGE_AXES)
    """Where the channels of images are: hwc (last), chw (first), or auto, by the shape."""
    dtype: str = choice("float32", DTYPES)
    """Dtype of the activations: float32 or bfloat16. Parameters stay float32."""

    reads_returns: ClassVar[bool] = True
    """Whether returns-to-go may be inputs."""

    @property
    def is_recurrent(self) -> bool:
        """Whether segments are connected; if not, the model sees its whole context at once."""
        return False

    def check(self) -> None:
        """Raise ValueError if names are unknown, or the model's is another config's."""
        require_encoders("model", self.encoder, self.encoders)
        if type(self) is not (kind := self.named(self.name)):
            raise ValueError(
                f"model.name {self.name!r} is a {kind.__name__}, but this is a "
                f"{type(self).__name__}: create it with model_config"
            )

    def require_divisible_width(self, heads: str) -> None:
        """Raise ValueError if the number of heads in a field does not divide the width."""
        if self.width % getattr(self, heads):
            raise ValueError(
                f"model.width {self.width} does not divide into model.{heads} "
                f"{getattr(self, heads)}: change one of them"
            )

    @staticmethod
    def named(name: str = "rate") -> type["ModelConfig"]:
        """Return the config class of a model's name; see `Registry.find`."""
        return MODELS.find(name)

    @abc.abstractmethod
    def make(
        self, observation_space: Any, action_space: Any, context: int, param_dtype: Any
    ) -> nn.Module:
        """Build the model.

        Args:
          observation_space: see `gtrxl_jax.specs.observation_spec`.
          action_space: see `gtrxl_jax.specs.action_spec`.
          context: the number of steps that the model sees at once, in a segment or a sliding
            window.
          param_dtype: dtype of the parameters.
        """

    def precision(self, param_dtype: Any) -> dict[str, Any]:
        """Return the dtypes of the model's modules."""
        dtype = None if self.dtype == "float32" else jnp.dtype(self.dtype)
        return {"dtype": dtype, "param_dtype": param_dtype}

    def make_encoder(self, observation_space: Any, param_dtype: Any) -> nn.Module:
        """Build the observation encoder."""
        return make_encoder(
            observation_space,
            self.encoder,
            self.encoders,
            width=self.width,
            vectors="linear",
            images="nature",
            image_axes=self.image_axes,
            **self.precision(param_dtype),
        )


class SequenceModel(nn.Module):
    """A model whose policy is its `head` of the features of each step."""

    def __call__(self: Any, memory: Any, segment: Segments, deterministic: bool = True) -> Any:
        """Run a segment `[B, T]`; return the memory after it and the policy at each step."""
        memory, y_BTD = self.features(memory, segment, deterministic)
        return memory, self.head(y_BTD)

    def memory_metrics(self: Any, before: Any, after: Any) -> dict[str, Float[Array, ""]]:
        """Return root mean squares of the memory's vectors and of their change over a segment."""
        if not hasattr(self, "memory_vectors"):
            return {}
        old, new = (jax.lax.stop_gradient(self.memory_vectors(one)) for one in (before, after))
        if not new.size:
            return {}
        return {
            "memory/size": jnp.sqrt(jnp.mean(jnp.square(new))),
            "memory/change": jnp.sqrt(jnp.mean(jnp.square(new - old))),
        }


MODELS = Registry("model.name", ModelConfig)
"""The config of each registered model."""


def register_model(name: str, config: type[ModelConfig]) -> None:
    """Add a model by its config, for `make_model` and the command line; see `Registry.register`."""
    MODELS.register(name, config)


def require_consistent_model(model: Any, params: Any, segment: Segments) -> None:
    """Check that a custom model keeps the shapes of its states. Compiles nothing.

    Args:
      model: the model; only custom ones are checked.
      params: its parameters, or their shapes.
      segment: a segment `[B, T]`.

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
        require_same_shapes(describe_part("model", model, method), method, name, before, after)

    def learning(params: Any, segment: Segments) -> None:
        batch = len(segment.mask)
        memory = apply(params, batch, method="initial_memory")
        returned = apply(params, memory, segment)
        require_returned("model", model, "__call__", returned, ("memory", "policy"))
        same("__call__", memory, returned[0])
        action_loss(returned[1], segment.actions)

    def acting(params: Any, segment: Segments) -> None:
        state = apply(params, len(segment.mask), method="start")
        asked_B, observation, action = jax.tree.map(
            lambda x: x[:, 0], (segment.returns_to_go, segment.observations, segment.actions)
        )
        seen = asked_B, observation, jnp.ones(asked_B.shape, bool)
        returned = apply(params, state, *seen, method="decode")
        require_returned("model", model, "decode", returned, ("state", "policy"))
        following = apply(params, returned[0], action, method="observe_action")
        same("observe_action", state, following)

    with wrap_errors("model", model):
        for form in (learning, acting):
            jax.eval_shape(form, params, segment)
