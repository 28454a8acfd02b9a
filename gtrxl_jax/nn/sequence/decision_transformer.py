"""The original Decision Transformer (Chen et al. 2021): GPT-2 blocks, embedded timesteps."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.nn.layers import Dense, LayerNorm
from gtrxl_jax.nn.sequence.trajectory import (
    ActionHead,
    TokenWindow,
    TrajectoryModel,
    TrajectoryModelConfig,
    act_in_window,
    at_index,
    begin_in_window,
    empty_window,
    observe_in_window,
)
from gtrxl_jax.ops.distributions import ActionDistribution
from gtrxl_jax.segments import Segments
from gtrxl_jax.specs import action_spec
from gtrxl_jax.validation import choice, number

ACTIVATIONS = ("gelu", "relu")
EPSILON = 1e-5
"""Added to the variance in layer norms, as in PyTorch."""


@dataclasses.dataclass(frozen=True)
class GPTConfig(TrajectoryModelConfig):
    """Settings of the original Decision Transformer."""

    name: str = "dt-gpt"
    heads: int = 2
    """Number of attention heads, of width D / heads."""
    attention_dropout: float = number(0.0, at_least=0, below=1)
    """Dropout rate of the attention weights."""
    activation: str = choice("gelu", ACTIVATIONS)
    """Activation of the hidden units: gelu, or relu as in the authors' models for MuJoCo."""
    max_timestep: int = 1000
    """Timesteps from this one on share an embedding."""

    def check(self) -> None:
        super().check()
        self.require_divisible_width("heads")

    def make(
        self, observation_space: Any, action_space: Any, context: int, param_dtype: Any
    ) -> "DecisionTransformer":
        """Build the model."""
        action, precision = action_spec(action_space), self.precision(param_dtype)
        rates = self.dropout, self.attention_dropout
        return DecisionTransformer(
            self.make_embedding(observation_space, action_space, param_dtype),
            ActionHead(action, param_dtype),
            tuple(
                GPTBlock(self.width, self.heads, *rates, self.activation, **precision)
                for _ in range(self.layers)
            ),
            context,
            self.max_timestep,
            self.dropout,
        )


class GPTBlock(nn.Module):
    """A GPT-2 block (Radford et al. 2019).

    Y = E + Attn(LN(E));  E' = Y + f(LN(Y)), where f has 4 D hidden units with GELU or ReLU.
    """

    width: int
    heads: int
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    activation: str = "gelu"
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, x_BSD: Float[Array, "B S D"], mask_B1SS: Array, deterministic: bool
    ) -> Float[Array, "B T D"]:
        precision: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        dropout = nn.Dropout(self.dropout_rate, deterministic=deterministic)
        attended = nn.MultiHeadDotProductAttention(
            num_heads=self.heads,
            dropout_rate=self.attention_dropout_rate,
            broadcast_dropout=False,  # a mask for each row and head, as in the other models
            **precision,
        )(
            LayerNorm(epsilon=EPSILON, **precision)(x_BSD),
            mask=mask_B1SS,
            deterministic=deterministic,
        )
        x_BSD = x_BSD + dropout(attended)
        hidden = Dense(4 * self.width, **precision)(LayerNorm(epsilon=EPSILON, **precision)(x_BSD))
        hidden = getattr(nn, self.activation)(hidden)
        return x_BSD + dropout(Dense(self.width, **precision)(hidden))


class DecisionTransformer(TrajectoryModel):
    """The model, with the interface of `gtrxl_jax.nn.sequence.model` but without memory.

    Attributes:
      embedding: maps steps to tokens.
      head: maps outputs to a policy.
      blocks: the layers.
      context: T, the number of steps that the model sees.
      max_timestep: timesteps from this one on share an embedding.
      dropout_rate: dropout rate of the tokens.
    """

    head: nn.Module
    blocks: tuple[GPTBlock, ...]
    context: int
    max_timestep: int
    dropout_rate: float = 0.0

    def setup(self) -> None:
        first = self.blocks[0]
        precision: dict[str, Any] = {"dtype": first.dtype, "param_dtype": first.param_dtype}
        self.timestep_embedding = nn.Embed(self.max_timestep + 1, first.width, **precision)
        self.input_norm = LayerNorm(epsilon=EPSILON, **precision)
        self.output_norm = LayerNorm(epsilon=EPSILON, **precision)
        self.dropout = nn.Dropout(self.dropout_rate)

    def initial_memory(self, batch_size: int) -> tuple[()]:
        """Return an empty memory: steps outside the window are forgotten."""
        return ()

    def features(
        self, memory: tuple[()], segment: Segments, deterministic: bool = True
    ) -> tuple[tuple[()], Float[Array, "B T D"]]:
        """Return the empty memory and what the head gets at each step."""
        tokens_BT3D = self._with_time(self.embedding(segment), segment.timesteps)
        return memory, self._transform(tokens_BT3D, segment.mask, deterministic)

    def start(self, batch_size: int) -> TokenWindow:
        """Start acting in B new episodes."""
        first = self.blocks[0]
        dtype = first.dtype or first.param_dtype
        return empty_window(batch_size, self.context, first.width, dtype)

    def decode(
        self,
        state: TokenWindow,
        return_to_go_B: Float[Array, " B"],
        observation: Any,
        first_B: Bool[Array, " B"],
    ) -> tuple[TokenWindow, ActionDistribution]:
        """Return the state and the policy at a step `[B]`, see `nn.sequence.model`."""
        state = begin_in_window(state, first_B)
        tokens_B2D = self.embedding.observe(return_to_go_B, observation)
        state = observe_in_window(state, self._with_time(tokens_B2D, state.timestep))
        y_BTD = self._transform(state.tokens, jnp.ones(state.tokens.shape[:2], bool), True)
        return state, self.head(at_index(y_BTD, state.index)[:, 0])

    def observe_action(self, state: TokenWindow, action: Any) -> TokenWindow:
        """Add the action `[B]` that was taken to the window."""
        token_B1D = self._with_time(self.embedding.act(action)[:, None], state.timestep)
        return act_in_window(state, token_B1D[:, 0])

    def _with_time(
        self, tokens: Float[Array, "*batch N D"], timesteps: Int[Array, "*batch"]
    ) -> Float[Array, "*batch N D"]:
        """Add the embedding of each step's timestep to its tokens."""
        embedded = self.timestep_embedding(jnp.minimum(timesteps, self.max_timestep))
        return tokens + embedded[..., None, :]

    def _transform(
        self, tokens_BT3D: Float[Array, "B T 3 D"], mask_BT: Array, deterministic: bool
    ) -> Float[Array, "B T D"]:
        batch, steps = mask_BT.shape
        x_BSD = tokens_BT3D.reshape(batch, 3 * steps, -1)
        x_BSD = self.dropout(self.input_norm(x_BSD), deterministic)
        exists_BS = jnp.repeat(mask_BT, 3, axis=1)
        causal_SS = jnp.asarray(np.tri(3 * steps, dtype=bool))
        # Padding attends to itself, so that no row of the softmax is empty.
        seen_BSS = (causal_SS[None] & exists_BS[:, None]) | jnp.eye(3 * steps, dtype=bool)[None]
        for block in self.blocks:
            x_BSD = block(x_BSD, seen_BSS[:, None], deterministic)
        return self.output_norm(x_BSD)[:, 1::3]
