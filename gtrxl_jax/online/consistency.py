"""A check of custom algorithms before they enter a program, whose errors would not name them."""

import contextlib
from typing import Any

import jax

from gtrxl_jax.custom import (
    describe_array,
    describe_part,
    first_difference,
    is_custom,
    leaves,
    naming_part,
    require_values,
)
from gtrxl_jax.online.algorithm import Algorithm


def require_consistent_update(trainer: Any) -> None:
    """Check that a custom algorithm keeps the shapes of its state. Compiles nothing.

    Args:
      trainer: an `OnlineTrainer`.

    Raises:
      ValueError: naming the class of the algorithm, its file and line, and what an update returns
        with another shape or dtype than it should; or an error in its methods.
    """
    algorithm: Algorithm = trainer.algorithm
    if not is_custom(algorithm):
        return

    def learn(method: str, state: Any) -> Any:
        key = jax.random.key(0)
        state, experience, _ = trainer.rollout(state, key)
        if method == "update":
            returned = algorithm.update(state.learner, experience, key)
        else:
            learner, experience = algorithm.prepare(state.learner, experience)
            loss = algorithm.loss(learner.trainable, learner, experience)
            _require_loss(algorithm, loss)
            returned = algorithm.step(learner, experience)
        require_values("algorithm", algorithm, method, returned, ("state", "metrics"))
        return state.learner, returned

    with naming_part("algorithm", algorithm):
        state = jax.eval_shape(trainer.init, 0)
        try:
            before, (after, metrics) = jax.eval_shape(lambda state: learn("update", state), state)
        except Exception:
            # An update scans steps, and a step differentiates the loss: what of them is wrong?
            with contextlib.suppress(TypeError):
                before, (after, _) = jax.eval_shape(lambda state: learn("step", state), state)
                _require_same(algorithm, before, after)
            raise
        _require_same(algorithm, before, after)
    for name, value in metrics.items():
        if getattr(value, "shape", None) != ():
            raise ValueError(
                f"{describe_part('algorithm', algorithm, 'loss')}: the metric {name} is "
                f"{describe_array(value)}: return scalars, for example by jnp.mean"
            )


_CHANGE_STATE = ("after_step", "prepare", "rescaled", "step", "update")


def _require_loss(algorithm: Algorithm, returned: Any) -> None:
    values = "loss", "(metrics, statistics)"
    require_values("algorithm", algorithm, "loss", returned, values)
    loss, auxiliary = returned
    require_values("algorithm", algorithm, "loss", auxiliary, ("metrics", "statistics"))
    if getattr(loss, "shape", None) != ():
        raise ValueError(
            f"{describe_part('algorithm', algorithm, 'loss')}: "
            f"the loss is {describe_array(loss)}: return a scalar, for example by jnp.mean"
        )


def _require_same(algorithm: Algorithm, before: Any, after: Any) -> None:
    if found := first_difference(leaves(state=before), leaves(state=after)):
        leaf, there, here = found
        methods = [m for m in _CHANGE_STATE if getattr(type(algorithm), m) != getattr(Algorithm, m)]
        raise ValueError(
            f"{describe_part('algorithm', algorithm, *methods[:1])}: "
            f"{leaf} is {there} before an update and {here} after it: "
            "return the same shapes and dtypes"
        )
