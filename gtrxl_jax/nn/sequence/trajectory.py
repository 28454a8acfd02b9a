"""Token embeddings, action head and window, shared by the sequence models.

A step of a trajectory is three tokens, as in Chen et al. 2021, "Decision Transformer": the
return-to-go R, the observation o and the action a. The action is predicted at the o token.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.nn.layers import Dense
from gtrxl_jax.nn.normalizer import Normalizer, normalizer_statistics
from gtrxl_jax.nn.sequence.model import ModelConfig, SequenceModel
from gtrxl_jax.ops.distributions import ActionDistribution, Categorical, Gaussian, Hybrid
from gtrxl_jax.segments import Segments
from gtrxl_jax.specs import ActionSpec, action_spec
from gtrxl_jax.validation import number


@dataclasses.dataclass(frozen=True)
class TrajectoryModelConfig(ModelConfig):
    """Settings of every model that reads returns-to-go, observations and actions."""

    return_scale: float | None = number(None)
    """Divisor of the returns-to-go; by default the largest of the data, without its sign."""

    def make_embedding(
        self, observation_space: Any, action_space: Any, param_dtype: Any
    ) -> "TrajectoryEmbedding":
        """Build the embedding of the steps."""
        return TrajectoryEmbedding(
            self.make_encoder(observation_space, param_dtype),
            action_spec(action_space),
            self.width,
            self.return_scale,
            **self.precision(param_dtype),
        )


class TrajectoryModel(SequenceModel):
    """A model that reads the tokens of the steps, of a `TrajectoryEmbedding`."""

    embedding: Any

    def encode(self, observation: Any) -> Array:
        """Encode observations, see `nn.normalizer.update_normalizers`."""
        return self.embedding.observation(observation)


class TrajectoryEmbedding(nn.Module):
    """Linear embeddings of return-to-go, observation features and action (Chen et al. 2021).

    Attributes:
      observation: the observation's encoder, to features `[..., F]`.
      action: the layout of the actions.
      width: D, the width of a token.
      return_scale: divisor of the returns-to-go. None: their deviation in a normalizer, which the
        trainer sets, see `return_statistics`.
      dtype: computation dtype; None for `param_dtype`.
      param_dtype: dtype of the parameters.
    """

    observation: nn.Module
    action: ActionSpec
    width: int
    return_scale: float | None = None
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.return_projection = Dense(self.width, **precision)
        self.observation_projection = Dense(self.width, **precision)
        self.action_projection = Dense(self.width, **precision)
        if self.return_scale is None:
            self.return_normalizer = Normalizer()

    def observe(self, returns_to_go: Float[Array, "..."], observation: Any) -> Array:
        """Return the R and o tokens, `[..., 2, D]`."""
        # Scaled before they are rounded to the computation's dtype.
        if self.return_scale is None:
            scaled = self.return_normalizer(returns_to_go.astype(self.param_dtype))
        else:
            scaled = returns_to_go / self.return_scale
        scaled = scaled.astype(self.dtype or self.param_dtype)
        features = self.observation(observation)
        return jnp.stack(
            [self.return_projection(scaled[..., None]), self.observation_projection(features)],
            axis=-2,
        )

    def act(self, action: Any) -> Float[Array, "... D"]:
        """Return the a token, `[..., D]`."""
        return self.action_projection(self.action.features(action, self.dtype or self.param_dtype))

    def __call__(self, segment: Segments) -> Float[Array, "B T 3 D"]:
        """Return the R, o and a tokens of each step of a segment `[B, T]`."""
        observed = self.observe(segment.returns_to_go, segment.observations)
        return jnp.concatenate([observed, self.act(segment.actions)[..., None, :]], axis=-2)


def return_statistics(params: Any, scale: float) -> dict[str, Array]:
    """Return the statistics, by path, with which a model divides returns-to-go by a scale."""
    found = normalizer_statistics(params)
    values = {"count": 1.0, "mean": 0.0, "variance": scale**2}
    return {
        path: jnp.asarray(values[path.rpartition("/")[2]], array.dtype)
        for path, array in found.items()
        if "return_normalizer" in path.split("/")
    }


class ActionHead(nn.Module):
    """A linear layer to a policy: `Categorical` for discrete, `Gaussian` for continuous dimensions.

    The Gaussian's mean is the predicted action, mapped into the action's range by a tanh where that
    is bounded (Chen et al. 2021). Its scale is not learned: it is the half-width of the range, or 1
    where that is unbounded.

    Attributes:
      action: the layout of the actions.
      param_dtype: dtype of the parameters, the computation and the outputs.
    """

    action: ActionSpec
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> ActionDistribution:
        sizes, num_continuous = self.action.discrete, self.action.num_continuous
        output = Dense(self.action.num_features, param_dtype=self.param_dtype, name="output")
        starts = [num_continuous + sum(sizes[:k]) for k in range(len(sizes))]
        raw, *logits = jnp.split(output(x.astype(self.param_dtype)), starts, axis=-1)
        gaussian = self._gaussian(raw) if num_continuous else None
        categoricals = tuple(Categorical(z) for z in logits)
        if self.action.is_hybrid:
            return Hybrid(gaussian, categoricals)
        return gaussian if gaussian is not None else categoricals[0]

    def _gaussian(self, raw: Float[Array, "... C"]) -> Gaussian:
        bounded = jnp.isfinite(jnp.asarray(self.action.continuous, raw.dtype)).all(axis=-1)
        bounded = bounded.reshape(*(1,) * (raw.ndim - 1), -1)
        mean = jnp.where(bounded, jnp.tanh(raw), raw)
        center, half = self.action.range_of(raw)
        return Gaussian(mean=center + half * mean, scale=jnp.broadcast_to(half, raw.shape))


@struct.dataclass
class TokenWindow:
    """The tokens of the last T steps, for models that process all of them again at each step.

    Attributes:
      tokens: oldest step first; entries after the current step are unspecified.
      index: the position of the current step in the window.
      timestep: the index of the current step in its episode.
    """

    tokens: Float[Array, "B T 3 D"]
    index: Int[Array, " B"]
    timestep: Int[Array, " B"]


def empty_window(batch_size: int, context: int, width: int, dtype: DTypeLike) -> TokenWindow:
    """Return the window of T = `context` steps at the start of an episode."""
    zero_B = jnp.zeros(batch_size, jnp.int32)
    return TokenWindow(jnp.zeros((batch_size, context, 3, width), dtype), zero_B, zero_B)


def begin_in_window(window: TokenWindow, first_B: Bool[Array, " B"]) -> TokenWindow:
    """Forget all steps where an episode begins."""
    return TokenWindow(
        window.tokens,
        jnp.where(first_B, 0, window.index),
        jnp.where(first_B, 0, window.timestep),
    )


def observe_in_window(window: TokenWindow, tokens_B2D: Float[Array, "B 2 D"]) -> TokenWindow:
    """Write the R and o tokens of the current step into the window, which slides if it is full."""
    context = window.tokens.shape[1]
    full_B111 = (window.index == context)[:, None, None, None]
    tokens = jnp.where(full_B111, jnp.roll(window.tokens, -1, axis=1), window.tokens)
    index = jnp.minimum(window.index, context - 1)
    return TokenWindow(_put(tokens, tokens_B2D, index, 0), index, window.timestep)


def act_in_window(window: TokenWindow, token_BD: Float[Array, "B D"]) -> TokenWindow:
    """Write the a token of the current step into the window and advance to the next step."""
    tokens = _put(window.tokens, token_BD[:, None], window.index, 2)
    return TokenWindow(tokens, window.index + 1, window.timestep + 1)


def at_index(x_BSD: Float[Array, "B S D"], index_B: Int[Array, " B"]) -> Float[Array, "B 1 D"]:
    """Return the entry of each row at its index."""
    return jnp.take_along_axis(x_BSD, index_B[:, None, None], axis=1)


def rows_where(choose_B: Bool[Array, " B"], new: Any, old: Any) -> Any:
    """Take the chosen rows of a pytree `[B, ...]` from another one."""

    def rows(new: Array, old: Array) -> Array:
        return jnp.where(choose_B.reshape(-1, *(1 for _ in new.shape[1:])), new, old)

    return jax.tree.map(rows, new, old)


def change_segments(
    model: nn.Module, state: Any, changes_B: Bool[Array, " B"], change: Callable[[Any, Any], Any]
) -> Any:
    """Return `change(model, state)` if a row changes, otherwise the state.

    Args:
      model: the model, which is bound.
      state: a state of acting, whose field `weights` does not change.
      changes_B: which rows change.
      change: a function of the bound model and the state.
    """
    if model.is_initializing():
        return change(model, state)

    # A cond copies what its branches return, so leave out the weights, which may be most of it.
    def without_weights(state: Any) -> Any:
        return dataclasses.replace(state, weights=())

    changed = nn.cond(
        jnp.any(changes_B),
        lambda model, state: without_weights(change(model, state)),
        lambda model, state: without_weights(state),
        model,
        state,
    )
    return dataclasses.replace(changed, weights=state.weights)


def _put(
    tokens: Float[Array, "B T 3 D"],
    new_BND: Float[Array, "B N D"],
    index_B: Int[Array, " B"],
    token: int,
) -> Float[Array, "B T 3 D"]:
    """Write N tokens of a step of each row, from number `token` of the step on."""

    def put(old: Array, new_ND: Array, index: Array) -> Array:
        zero = jnp.zeros((), jnp.int32)
        return jax.lax.dynamic_update_slice(old, new_ND[None], (index, zero + token, zero))

    return jax.vmap(put)(tokens, new_BND, index_B)
