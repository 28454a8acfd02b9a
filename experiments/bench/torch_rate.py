"""RATE as computed by its authors' PyTorch code, for benchmarks only.

This reimplementation, written from the description of that code, has the same cost: a post-norm
Transformer-XL over [memory tokens | segment | memory tokens] with a few cached hidden states; the
memory is detached and an optimizer step taken at every segment; acting recomputes the whole segment
at every step.
"""

import math

import torch
from torch import nn


class Layer(nn.Module):
    """Relative attention and a feed-forward network, each with a residual and a norm."""

    def __init__(self, width: int, heads: int, head_width: int, dropout: float):
        super().__init__()
        self.heads, self.head_width = heads, head_width
        self.qkv = nn.Linear(width, 3 * heads * head_width, bias=False)
        self.position = nn.Linear(width, heads * head_width, bias=False)
        self.output = nn.Linear(heads * head_width, width, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(heads, head_width))
        self.position_bias = nn.Parameter(torch.zeros(heads, head_width))
        self.attention_norm, self.feedforward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.feedforward = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, width)
        )

    def forward(
        self, x: torch.Tensor, cache: torch.Tensor, phi: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        batch, queries, _ = x.shape
        stream = torch.cat([cache, x], dim=1)
        q, k, v = self.qkv(stream).chunk(3, dim=-1)
        q = q[:, -queries:].view(batch, queries, self.heads, self.head_width)
        k, v = (z.view(batch, -1, self.heads, self.head_width) for z in (k, v))
        r = self.position(phi).view(-1, self.heads, self.head_width)
        content = torch.einsum("bihd,bjhd->bhij", q + self.content_bias, k)
        position = torch.einsum("bihd,jhd->bhij", q + self.position_bias, r)
        # The relative shift of Transformer-XL.
        zeros = position.new_zeros(*position.shape[:3], 1)
        padded = torch.cat([zeros, position], dim=-1)
        keys = position.shape[-1]
        position = padded.view(batch, self.heads, keys + 1, queries)[:, :, 1:].reshape(
            batch, self.heads, queries, keys
        )
        scores = (content + position) / math.sqrt(self.head_width)
        weights = scores.masked_fill(mask, -1e9).softmax(dim=-1)
        attended = torch.einsum("bhij,bjhd->bihd", weights, v).reshape(batch, queries, -1)
        x = self.attention_norm(x + self.dropout(self.output(attended)))
        return self.feedforward_norm(x + self.dropout(self.feedforward(x)))


class TorchRATE(nn.Module):
    """RATE: token embeddings, layers, action head, and the CA-2 valve."""

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int,
        head_width: int,
        memory_tokens: int,
        cache_size: int,
        dropout: float,
    ):
        super().__init__()
        self.width, self.memory_tokens, self.cache_size = width, memory_tokens, cache_size
        self.embed_return = nn.Linear(1, width)
        self.embed_observation = nn.Linear(4, width)
        self.embed_action = nn.Embedding(4, width)
        self.layers = nn.ModuleList(Layer(width, heads, head_width, dropout) for _ in range(layers))
        self.head = nn.Linear(width, 4)
        self.tokens = nn.Parameter(torch.randn(memory_tokens, width))
        self.valve = nn.MultiheadAttention(width, 2, bias=False, batch_first=True)
        self.dropout = nn.Dropout(dropout)

    def start(self, batch: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the initial memory tokens and empty caches."""
        cache = torch.zeros(batch, self.cache_size, self.width)
        return self.tokens.expand(batch, -1, -1), [cache] * len(self.layers)

    def forward(
        self,
        memory: torch.Tensor,
        caches: list[torch.Tensor],
        returns: torch.Tensor,
        observations: torch.Tensor,
        actions: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """Process a segment; returns logits at the observations, new memory tokens and caches."""
        parts = [
            self.embed_return(returns[..., None]),
            self.embed_observation(observations),
            self.embed_action(actions),
        ]
        batch, steps = actions.shape
        tokens = torch.stack(parts, dim=2).view(batch, 3 * steps, self.width)
        x = self.dropout(torch.cat([memory, tokens, memory], dim=1))
        queries, m = x.shape[1], self.memory_tokens
        keys = queries + self.cache_size
        mask = torch.triu(torch.ones(queries, keys, dtype=torch.bool), 1 + self.cache_size)
        mask[:m, self.cache_size : self.cache_size + m] = False
        mask[-m:, -m:] = False
        distance = torch.arange(keys - 1, -1, -1.0)
        rates = 10000 ** (-torch.arange(0, self.width, 2.0) / self.width)
        angles = distance[:, None] * rates
        phi = torch.cat([angles.sin(), angles.cos()], dim=-1)
        following = []
        for layer, cache in zip(self.layers, caches, strict=True):
            following.append(torch.cat([cache, x], dim=1)[:, -self.cache_size :].detach())
            x = layer(x, cache, phi, mask)
        written = torch.relu(x[:, -m:])
        memory, _ = self.valve(memory, written, written, need_weights=False)
        return self.head(x[:, m + 1 : -m : 3]), memory, following


def training_batch(
    model: TorchRATE, optimizer: torch.optim.Optimizer, batch: int, context: int, segments: int
) -> None:
    """Train on a batch of complete trajectories, with an update for each segment."""
    memory, caches = model.start(batch)
    for _ in range(segments):
        observations, actions = torch.randn(batch, context, 4), torch.randint(4, (batch, context))
        logits, new, caches = model(
            memory, caches, torch.ones(batch, context), observations, actions
        )
        loss = nn.functional.cross_entropy(logits.reshape(-1, 4), actions.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        memory = new.detach()


@torch.no_grad()
def acting_step(model: TorchRATE, context: int) -> None:
    """Act at a late step of a segment in one environment, recomputing the whole segment."""
    memory, caches = model.start(1)
    actions = torch.zeros(1, context, dtype=torch.long)
    model(memory, caches, torch.ones(1, context), torch.randn(1, context, 4), actions)
