"""Optional extensions of gymnax's environment interface, and their defaults.

An environment can define these attributes and methods:

    time_limit(params)              see the functions below
    params_of_length(length)
    cue, cue_at_start, chance
    action_names                    of a discrete action's choices, a tuple
    oracle_action(state, params)    the action of a solution, for example for `gtrxl collect`
    explorer_memory(params)         see `acting.ExplorerPolicy`
    explorer_sight(state, params)
    explorer_action(memory, observation, params)
    legal_actions(state, params)    the choices that a policy may make in a state, see below
    shows_cue(state, params)        whether the observation of a state shows the cue
    render(state, params)           an image, uint8 [H, W, 3], drawn on the host; see `rendering`
                                    for environments of gymnax

The scalars of a step's `info`, booleans, integers or floats, are scores of episodes by their names:
evaluations report the mean of their values at the last step of episodes, and training reports
`episode/NAME`. `info["success"]` is a boolean or a number from 0 to 1. Other entries are ignored,
and so are `discount`, gymnax's own, `return`, `length`, `ended` and `normalized`.
"""

import dataclasses
from typing import Any

import jax

from gtrxl_jax.envs.rendering import RENDERERS, Renderer
from gtrxl_jax.envs.wrapper import Wrapper
from gtrxl_jax.worlds.base import Cue


def time_limit(env: Any, params: Any) -> int | jax.Array:
    """Return the number of actions after which every episode of `env` has ended.

    The default is `params.max_steps_in_episode`. If that is None, environments of this package
    derive the limit from their sizes. Evaluations raise if an episode is longer.
    """
    if hasattr(env, "time_limit"):
        return env.time_limit(params)
    return params.max_steps_in_episode


def params_of_length(env: Any, length: int) -> Any | None:
    """Return the parameters for which a solution takes `length` time steps; None by default.

    Raises:
      ValueError: if no episode is that short.
    """
    return env.params_of_length(length) if hasattr(env, "params_of_length") else None


def cue_of(env: Any) -> Cue | None:
    """Return the variable over which collected episodes are balanced; None by default."""
    return getattr(env, "cue", None)


def cue_at_start(env: Any) -> bool:
    """Return whether episodes start with the cue, so that training data must begin there."""
    return getattr(env, "cue_at_start", False)


def chance_of(env: Any) -> float | None:
    """Return the success rate of the best policy without memory; None if unknown."""
    return getattr(env, "chance", None)


def action_names(env: Any) -> tuple[str, ...] | None:
    """Return the names of the choices of a discrete action; None if they have none."""
    return getattr(env, "action_names", None)


def renderer_of(env: Any) -> Renderer | None:
    """Return how an environment is drawn, by its own `render` or by `rendering`; None if unknown.

    A wrapper without a `render` of its own is drawn as the environment in it.
    """
    if not getattr(env, "can_render", True):
        return None
    for kind in type(env).__mro__:
        if kind is Wrapper:
            return _renderer_of_inner(env)
        if kind in RENDERERS:
            return RENDERERS[kind]
        # Methods of gymnax draw figures of matplotlib instead of images.
        if "render" in vars(kind):
            return None if kind.__module__.startswith("gymnax.") else Renderer(env.render)
    return None


def _renderer_of_inner(wrapper: Wrapper) -> Renderer | None:
    if (inner := renderer_of(wrapper.env)) is None:
        return None
    return dataclasses.replace(
        inner, draw=lambda state, params: inner.draw(wrapper.inner_state(state), params)
    )


def require_renderer(env: Any) -> Renderer:
    """Return how an environment is drawn.

    Raises:
      ValueError: if it cannot be drawn.
    """
    if (renderer := renderer_of(env)) is None:
        raise ValueError(f"{env.name} cannot be drawn: give it a method `render`")
    return renderer


def restricts_actions(env: Any) -> bool:
    """Return whether an environment has `legal_actions`."""
    return hasattr(env, "legal_actions")


def legal_actions(env: Any, state: Any, params: Any) -> jax.Array | None:
    """Return which choices are legal in a state, bool `[A]`; None by default: all, always.

    The mask has the choices of each discrete dimension of an action, one after another; for a
    `Discrete(A)`, its actions. Policies of agents make no other choice. Each dimension requires a
    legal choice in every state in which the episode goes on.
    """
    return env.legal_actions(state, params) if restricts_actions(env) else None
