"""Check environments before they enter a program, whose errors would not name them."""

from typing import Any

from gtrxl_jax.custom import (
    describe_array,
    describe_part,
    first_difference,
    leaves_by_name,
    require_scalars,
    wrap_errors,
)
from gtrxl_jax.envs.adapters import inner
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.specs import observation_spec


def require_consistent_env(stream: Stream) -> Stream:
    """Return a stream whose environment keeps its shapes. Compiles nothing.

    Raises:
      ValueError: naming the class of the environment, its file and line, and the first leaf of the
        observation or of the state that a step returns with another shape or dtype than a reset, or
        the observation space has with another shape; or a reward, an end or a success that is not
        a scalar; or an error in its methods.
    """
    env = inner(stream.env)
    shapes = stream.shapes
    reset, step = (_leaves(*pair) for pair in (shapes.reset, shapes.step))
    if found := first_difference(reset, step):
        leaf, of_reset, of_step = found
        raise ValueError(
            f"{describe_part('environment', env, 'step_env')}: "
            f"{leaf} is {of_reset} after reset_env and {of_step} after step_env: "
            "return the same shapes and dtypes from both"
        )
    for name, leaf in shapes.outcome.items():
        method = "is_truncated" if name == "is_truncated" else "step_env"
        where = describe_part("environment", env, method)
        require_scalars(where, {name: leaf}, "x[0] or jnp.any(x)")
    with wrap_errors("environment", env):
        space = stream.observation_space
    expected = _leaves(observation_spec(space))
    observed = _leaves(shapes.reset[0])
    for leaf in {**expected, **observed}:
        if _shape(observed.get(leaf)) != _shape(expected.get(leaf)):
            raise ValueError(
                f"{describe_part('environment', env, 'observation_space')}: "
                f"{leaf} is {describe_array(observed.get(leaf))}, but "
                f"{describe_array(expected.get(leaf))} in observation_space: declare what is "
                "returned"
            )
    return stream


def _leaves(observation: Any, state: Any = None) -> dict[str, Any]:
    return leaves_by_name(observation=observation, state=state)


def _shape(leaf: Any) -> list[int] | None:
    return None if leaf is None else list(leaf.shape)
