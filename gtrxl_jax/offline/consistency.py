"""A check of custom models before they enter a program, whose errors would not name them."""

from typing import Any

import jax
import jax.numpy as jnp

from gtrxl_jax.custom import first_difference, leaves, named, naming_part, require_values
from gtrxl_jax.offline.metrics import last_steps, step_sums
from gtrxl_jax.segments import Segments


def require_consistent_model(model: Any, params: Any, segment: Segments) -> None:
    """Check that a custom model of trajectories keeps the shapes of its states. Compiles nothing.

    Args:
      model: the model.
      params: its parameters, or their shapes.
      segment: a segment `[B, K]`.

    Raises:
      ValueError: naming the class of the model, its file and line, and what it returns with another
        shape or dtype than it should; or an error in its methods.
    """

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
        step_sums(returned[1], segment, last_steps(segment.mask[:, None])[:, 0])

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


def zero_segment(timestep: Any) -> Segments:
    """Return a segment `[B, K]` for time steps `[B, K]` of zeros."""
    return Segments(
        observations=timestep.observation,
        actions=timestep.action,
        returns_to_go=timestep.reward,
        timesteps=timestep.reward.astype(jnp.int32),
        mask=timestep.first,
    )
