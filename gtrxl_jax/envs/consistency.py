"""A check of environments before they enter a program, whose errors would name no part of them."""

from typing import Any

import jax

from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.specs import observation_spec


def require_consistent(stream: Stream) -> Stream:
    """Return a stream whose environment keeps its shapes. Compiles nothing.

    Raises:
      ValueError: naming the first leaf of the observation or of the state that a step returns with
        another shape or dtype than a reset, or the observation space has with another shape.
    """
    name = type(stream.env).__name__
    reset, step = (_leaves(*pair) for pair in stream.shapes[:2])
    for leaf in {**reset, **step}:
        of_reset, of_step = (_described(leaves.get(leaf)) for leaves in (reset, step))
        if of_reset != of_step:
            raise ValueError(
                f"environment {name}: {leaf} is {of_reset} after reset_env and {of_step} after "
                "step_env: return the same shapes and dtypes from both"
            )
    expected = _leaves(observation_spec(stream.observation_space))
    found = _leaves(stream.shapes[0][0])
    for leaf in {**expected, **found}:
        if _shape(found.get(leaf)) != _shape(expected.get(leaf)):
            raise ValueError(
                f"environment {name}: {leaf} is {_described(found.get(leaf))}, but "
                f"{_described(expected.get(leaf))} in observation_space: declare what is returned"
            )
    return stream


def _leaves(observation: Any, state: Any = None) -> dict[str, Any]:
    """Return the leaves by name: `state.time`."""
    parts = {"observation": observation, "state": state}
    return {
        part + jax.tree_util.keystr(path): leaf
        for part, tree in parts.items()
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def _shape(leaf: Any) -> list[int] | None:
    return None if leaf is None else list(leaf.shape)


def _described(leaf: Any) -> str:
    return "absent" if leaf is None else f"{leaf.dtype}{_shape(leaf)}"
