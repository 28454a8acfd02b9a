"""The external memory of MERLIN (Wayne et al. 2018), a differentiable neural computer."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float

from gtrxl_jax.nn.core import CoreConfig, MemoryCore, require_inputs
from gtrxl_jax.nn.cores.recurrent import Carry, LSTMCell
from gtrxl_jax.nn.layers import Dense
from gtrxl_jax.ops.losses import masked_mean
from gtrxl_jax.ops.promotion import at_least_float32
from gtrxl_jax.validation import choice, number

USAGE_DECAY = 0.95
"""Factor by which a step reduces the usage of every row, as in Santoro et al. 2016."""


@dataclasses.dataclass(frozen=True)
class DNCConfig(CoreConfig):
    """Settings of the DNC."""

    name: str = choice("dnc", ("dnc",))
    """dnc."""
    layers: int = 2
    """Number of LSTM layers of the controller, L."""
    slots: int = 64
    """Number of rows of the memory, S; each remembers a step."""
    heads: int = 3
    """Number of read heads, K."""
    retroactive_decay: float = number(0.95, at_least=0, below=1)
    """Discount per step, gamma, of what a row remembers of the steps after its own."""
    prediction_cost: float = number(0.0, at_least=0)
    """Weight of the auxiliary loss of predicting the next input; 0: none."""

    def make(self) -> "DNCCore":
        return DNCCore(config=self, **self.shared)


@struct.dataclass
class DNCMemory:
    """The memory of a `DNCCore`.

    Attributes:
      rows: M, the input of a step in each row, and a discounted sum of the inputs after it.
      usage: u, the recent reads and writes of each row; -1 if the row has not been written.
      retroactive: v, the weight with which the next input is added to the sum of each row.
      reads: m, what the heads read at the previous step.
      carries: the carry of each layer of the controller.
    """

    rows: Float[Array, "B S W"]
    usage: Float[Array, "B S"]
    retroactive: Float[Array, "B S"]
    reads: Float[Array, "B R"]
    carries: tuple[Carry, ...]


class DNCCore(MemoryCore):
    """A recurrent controller with an external memory, read by content (Wayne et al. 2018, MERLIN).

    The memory M has S rows of width W = 2 D. At each step a controller, a deep LSTM with L layers,
    produces a key k and a strength beta for each of K read heads; every row has the weight w:

        h^l = LSTM^l([x, m_{t-1}, h^{l-1}]),   h = [h^1, ..., h^L],   k, b = W_h h
        w = softmax_j(beta cos(k, M_j)),   beta = softplus(b),   m_t = [sum_j w_j M_j for each head]
        y = W_y [h, m_t]

    Then the input itself is written, into the first half of a row of its own; the second halves of
    the rows of earlier steps gather, retroactively, what followed them:

        M_t = M_{t-1} + new_t [x, 0]^T + v_t [0, x]^T,   v_t = gamma v_{t-1} + (1 - gamma) new_{t-1}

    where new is one-hot. Rows are written in order, until none is free. From then on the row with
    the lowest usage is erased first, and its v is set to zero.

    From the memory-based predictor of MERLIN (the paper's methods; Graves et al. 2016 for content
    addressing and the deep LSTM), these parts are included: the controller, reading, writing, and
    retroactive updates. x takes the place of MERLIN's state variable z; it contains the previous
    action and reward. Differences:

      - Only rows that have been written are read; in the paper, empty rows share the weight.
      - The usage, u_t = 0.95 u_{t-1} + sum of the heads' w, decays and counts the write as 1, as in
        Santoro et al. 2016. In the paper it does neither, so that the newer of two rows, which has
        been read less, is erased first. This makes no difference while rows are free.
      - gamma is an option; in the paper it is the discount factor of the task.
      - Policy and value read y. In the paper, the policy has its own LSTM and read head.
      - There is no variational inference of z, nor are observations, rewards and returns
        reconstructed. `prediction_cost` c instead adds a simple predictive loss,
        c mean(1 - cos(W_p y_t, x_{t+1})) over steps within an episode, without a gradient to
        x_{t+1}. It cannot depend on the action of the step, which only x_{t+1} contains.

    Of the differentiable neural computer (Graves et al. 2016), MERLIN itself leaves out writing by
    content, erase vectors, free gates and allocation gates, and temporal links.

    Attributes:
      config: the settings. To keep every step's information, there must be as many rows as there
        are steps until its use.
    """

    config: DNCConfig

    def setup(self) -> None:
        precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.controller = [LSTMCell(self.width, **precision) for _ in range(self.config.layers)]
        self.query = Dense(self.config.heads * (2 * self.width + 1), **precision)
        self.output = Dense(self.width, **precision)
        self.predictor = Dense(self.width, **precision)

    def initial_memory(self, batch_size: int) -> DNCMemory:
        """Return a memory without rows, and carries of zero."""
        dtype = self.dtype or self.param_dtype
        wide = at_least_float32(dtype)
        zeros_BD = jnp.zeros((batch_size, self.width), dtype)
        slots, heads = self.config.slots, self.config.heads
        return DNCMemory(
            rows=jnp.zeros((batch_size, slots, 2 * self.width), dtype),
            usage=jnp.full((batch_size, slots), -1, wide),
            retroactive=jnp.zeros((batch_size, slots), wide),
            reads=jnp.zeros((batch_size, heads * 2 * self.width), dtype),
            carries=((zeros_BD, zeros_BD),) * self.config.layers,
        )

    def __call__(
        self, memory: DNCMemory, x_BTD: Float[Array, "B T D"], first_BT: Bool[Array, "B T"]
    ) -> tuple[DNCMemory, Float[Array, "B T D"]]:
        """Run a segment, as in learning, with the predictive loss."""
        memory, y_BTD = super().__call__(memory, x_BTD, first_BT)
        if self.config.prediction_cost:
            predicted_BTD, next_BTD = self.predictor(y_BTD[:, :-1]), x_BTD[:, 1:]
            target_BTD = jax.lax.stop_gradient(next_BTD).astype(predicted_BTD.dtype)
            products_BT = jnp.einsum("btd,btd->bt", predicted_BTD, target_BTD)
            scale_BT = _inverse_norm(predicted_BTD) * _inverse_norm(target_BTD)
            error_BT = 1 - products_BT.astype(scale_BT.dtype) * scale_BT
            loss = self.config.prediction_cost * masked_mean(error_BT, ~first_BT[:, 1:])
            if not self.is_initializing():
                self.sow("losses", "prediction", loss)
        return memory, y_BTD

    def step(
        self, cache: DNCMemory, x_BD: Float[Array, "B D"], first_B: Bool[Array, " B"]
    ) -> tuple[DNCMemory, Float[Array, "B D"]]:
        """Run the controller on the input and the previous reads, read, then write the input."""
        require_inputs(x_BD, first_B, len(cache.usage), self.width, "B D")
        # The memory has this dtype, and keeps it whatever the dtype of the inputs.
        x_BD = x_BD.astype(self.dtype or self.param_dtype)

        def reset(fresh: Array, old: Array) -> Array:
            return jnp.where(first_B.reshape(-1, *(1,) * (old.ndim - 1)), fresh, old)

        memory = jax.tree.map(reset, self.initial_memory(len(first_B)), cache)
        carries: list[Carry] = []
        layers: list[Array] = []
        for cell, carry in zip(self.controller, memory.carries, strict=True):
            inputs = jnp.concatenate([x_BD, memory.reads, *layers[-1:]], axis=-1)
            carry, h_BD = cell(carry, inputs)
            carries.append(carry)
            layers.append(h_BD)
        h_BH = jnp.concatenate(layers, axis=-1)
        weights_BKS = self._weights(h_BH, memory)
        reads_BKW = jnp.einsum("bks,bsw->bkw", weights_BKS.astype(x_BD.dtype), memory.rows)
        reads_BR = reads_BKW.reshape(len(x_BD), -1)
        memory = self._write(memory, x_BD, weights_BKS)
        memory = dataclasses.replace(memory, reads=reads_BR, carries=tuple(carries))
        return memory, self.output(jnp.concatenate([h_BH, reads_BR], axis=-1))

    def _weights(self, h_BH: Float[Array, "B H"], memory: DNCMemory) -> Float[Array, "B K S"]:
        """Return the weights of the rows for each read head; all zero if none has been written."""
        queries_BKQ = self.query(h_BH).reshape(len(h_BH), self.config.heads, -1)
        keys_BKW, strength_BK = queries_BKQ[..., :-1], queries_BKQ[..., -1]
        products_BKS = jnp.einsum("bkw,bsw->bks", keys_BKW, memory.rows).astype(memory.usage.dtype)
        scale_BKS = _inverse_norm(keys_BKW)[..., None] * _inverse_norm(memory.rows)[:, None]
        strength_BK = nn.softplus(strength_BK.astype(memory.usage.dtype))
        scores_BKS = strength_BK[..., None] * products_BKS * scale_BKS
        written_BKS = memory.usage[:, None] >= 0
        scores_BKS = jnp.where(written_BKS, scores_BKS, jnp.finfo(scores_BKS.dtype).min)
        weights_BKS = jnp.where(written_BKS, jax.nn.softmax(scores_BKS, axis=-1), 0)
        if not self.is_initializing():
            self.sow("metrics", "strength", jnp.mean(strength_BK).astype(jnp.float32))
            largest_BK = jnp.max(weights_BKS, axis=-1)
            self.sow("metrics", "focus", jnp.mean(largest_BK).astype(jnp.float32))
        return weights_BKS

    def _write(
        self,
        memory: DNCMemory,
        x_BD: Float[Array, "B D"],
        weights_BKS: Float[Array, "B K S"],
    ) -> DNCMemory:
        """Write the input to a row, free or least used."""
        reads_BS = jax.lax.stop_gradient(jnp.sum(weights_BKS, axis=1))
        # The usage of free rows, -1, is the lowest.
        usage_BS = jnp.where(memory.usage < 0, -1, USAGE_DECAY * memory.usage + reads_BS)
        new_BS = jax.nn.one_hot(jnp.argmin(usage_BS, axis=-1), self.config.slots, dtype=bool)
        v_BS1 = memory.retroactive[..., None].astype(x_BD.dtype)
        zeros_BD = jnp.zeros_like(x_BD)
        own_B1W = jnp.concatenate([x_BD, zeros_BD], axis=-1)[:, None]
        later_B1W = jnp.concatenate([zeros_BD, x_BD], axis=-1)[:, None]
        decay = self.config.retroactive_decay
        return dataclasses.replace(
            memory,
            rows=jnp.where(new_BS[..., None], own_B1W, memory.rows + v_BS1 * later_B1W),
            usage=jnp.where(new_BS, 1, usage_BS),
            retroactive=jnp.where(new_BS, 1 - decay, decay * memory.retroactive),
        )


def _inverse_norm(x: Float[Array, "... D"]) -> Float[Array, "..."]:
    """Return 1 / |x| over the last axis in float32 or wider, finite for vectors of zeros."""
    wide = x.astype(at_least_float32(x.dtype))
    return jax.lax.rsqrt(jnp.sum(wide * wide, axis=-1) + 1e-6)
