"""The authors' RATE, from a checkout, for benchmarks only.

This is the T-Maze model of https://github.com/AIRI-Institute/RATE, trained as in its
`train/trainer.py` and acting as in its `inference/val_tmaze.py`. Requires PyTorch.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import torch

from gtrxl_jax.nn.sequence.rate import RATEConfig

MODULE = "RATE_GTrXL.mem_transformer_v2_GTrXL"
PADDING = -10
"""The action at an episode's final observation, in the authors' data."""


def make_model(path: Path, config: RATEConfig) -> Any:
    """Create the authors' model at the size of ours.

    Raises:
      FileNotFoundError: if the path is not a checkout of their repository.
    """
    if not Path(path, *MODULE.split(".")).with_suffix(".py").exists():
        raise FileNotFoundError(f"{path} has no {MODULE}: pass a checkout of AIRI-Institute/RATE")
    sys.path.insert(0, str(path))
    try:
        module = importlib.import_module(MODULE)
    finally:
        sys.path.remove(str(path))
    model = module.MemTransformerLM(
        mode="tmaze",
        STATE_DIM=4,
        ACTION_DIM=1,
        n_token=10000,
        n_layer=config.layers,
        n_head=config.heads,
        n_head_ca=2,
        d_model=config.width,
        d_head=config.head_width or config.width,
        d_inner=config.width,
        dropout=config.dropout,
        dropatt=0.0,
        # As in the authors' config: the oldest two of the cached hidden states.
        mem_len=2,
        ext_len=1,
        tie_weight=False,
        num_mem_tokens=config.memory_tokens,
        mem_at_end=True,
    )
    torch.nn.init.xavier_uniform_(model.r_w_bias)
    torch.nn.init.xavier_uniform_(model.r_r_bias)
    return model


def start(model: Any, batch: int) -> Any:
    """Return the memory tokens before the first segment."""
    tokens = model.mem_tokens.repeat(1, batch, 1)
    model.cache = tokens.permute(1, 0, 2).detach()
    return tokens


def training_batch(model: Any, optimizer: Any, batch: int, context: int, segments: int) -> None:
    """Train on a batch of complete trajectories, with an update for each segment."""
    tokens, memory = None, ()
    for number in range(segments):
        observations = torch.randn(batch, context, 4)
        actions = torch.randint(1, 4, (batch, context, 1)).float()
        model.flag = int(number == segments - 1)
        if model.flag:
            actions[:, -1] = PADDING
        returns, mask = torch.ones(batch, context, 1), torch.ones(batch, context)
        tokens = start(model, batch) if tokens is None else tokens.detach()
        (_, _, *memory), tokens = model(
            observations, actions, returns, actions, None, *memory, mem_tokens=tokens, masks=mask
        )[:2]
        optimizer.zero_grad()
        model.loss_all.backward(retain_graph=True)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@torch.no_grad()
def acting_step(model: Any, context: int) -> None:
    """Act at a late step of a segment in one environment, recomputing the whole segment."""
    model(
        torch.randn(1, context, 4),
        torch.zeros(1, context - 1, 1),
        torch.ones(1, context, 1),
        None,
        None,
        mem_tokens=start(model, 1),
    )
