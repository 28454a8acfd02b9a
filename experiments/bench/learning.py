"""Learning: a learner step's rate of useful operations against that of a matrix product.

    python experiments/bench/learning.py

The learner step is the forward pass, backward pass and Adam update of GTrXL (GRU) at the paper's
size, with unroll 95 and memory 512, in one program. Useful operations are those of the necessary
matrix products, with two operations per multiplication and addition. With B rows, T steps, M
memories, S = M + T keys and N = M + 1 keys in each query's window, a layer's forward pass has

    on the T steps:  W_Q, W_O, f (2 matrices), the gates (12)     16 products of B T x D x D
    on the S keys:   W_K and W_V                                    2 products of B S x D x D
    positions:       W_R on N encodings                             1 product  of   N x D x D
    attention:       content, positions and values                  3 x B T N D

and the backward pass twice as many, except that there are no gradients for the memory's inputs (the
M memories in W_K and W_V) and the encodings. Masked and rematerialized work is not counted. The
upper bound is the rate of a product of two square matrices in the same run.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from acting import full_memory, initial_params
from timing import Row, interleaved, matmul, show

from gtrxl_jax.nn.cores.registry import make_core


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to time."""

    preset: str = "paper"
    batch: int = 2
    unroll: int = 95
    matmul_size: int = 2048
    rounds: int = 5
    keep: bool = True
    """Write the table to results/bench."""


def useful_operations(core: Any, batch: int, unroll: int) -> float:
    """Count the operations of a learner step, see above, with a feed-forward width of D."""
    width, window, keys = core.width, core.config.memory_size + 1, core.config.memory_size + unroll
    square = 2.0 * width * width
    on_steps = 16 * batch * unroll * square
    on_keys = 2 * batch * keys * square
    on_keys_backward = on_keys + 2 * batch * unroll * square
    positions = window * square
    attention = 3 * 2.0 * batch * unroll * window * width
    forward = on_steps + on_keys + positions + attention
    backward = 2 * on_steps + on_keys_backward + positions + 2 * attention
    return core.config.layers * (forward + backward)


def learner(core: Any, batch: int, unroll: int) -> tuple[Any, Any]:
    """Return a learner step on random data, for repeated calls, and its compiled program."""
    memory = full_memory(core, batch)
    rng = np.random.default_rng(1)
    x_BTD = jnp.asarray(rng.standard_normal((batch, unroll, core.width)), jnp.float32)
    first_BT = jnp.zeros((batch, unroll), bool)
    # Passed as arguments, since XLA could preprocess constants at compile time.
    data = (memory, x_BTD, first_BT)
    optimizer = optax.adam(1e-4)
    params = initial_params(core)
    state = [(params, optimizer.init(params))]

    def loss(params: Any, *data: Any) -> Any:
        return jnp.mean(jnp.square(core.apply(params, *data)[1].astype(float)))

    def step(params: Any, moments: Any, *data: Any) -> Any:
        updates, moments = optimizer.update(jax.grad(loss)(params, *data), moments)
        return optax.apply_updates(params, updates), moments

    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(*state[0], *data).compile()

    def call() -> Any:
        state[0] = compiled(*state[0], *data)
        return state[0]

    return call, compiled


def main(settings: Settings) -> None:
    """Time all forms, interleaved."""
    forms: dict[str, dict[str, Any]] = {
        "float32": {},
        "float32, rematerialized": {"remat": True},
        "bfloat16": {"dtype": "bfloat16"},
    }
    cores = {name: make_core("gtrxl", settings.preset, **form) for name, form in forms.items()}
    product, operations = matmul(settings.matmul_size)
    learners = {n: learner(c, settings.batch, settings.unroll) for n, c in cores.items()}
    calls = {name: call for name, (call, _) in learners.items()}
    seconds = interleaved({**calls, "product": product}, settings.rounds)
    useful = useful_operations(cores["float32"], settings.batch, settings.unroll)
    ceiling = operations / seconds["product"]
    costs: Any = learners["float32"][1].cost_analysis()
    rows = [
        Row("useful operations of a step", useful / 1e9, "GFLOP"),
        Row("XLA's count of its operations", costs["flops"] / 1e9, "GFLOP"),
        Row(
            f"product of {settings.matmul_size} x {settings.matmul_size}", ceiling / 1e9, "GFLOP/s"
        ),
    ]
    for name in forms:
        rate = useful / seconds[name]
        rows += [
            Row(f"{name}: step", 1e3 * seconds[name], "ms"),
            Row(f"{name}: rate", rate / 1e9, "GFLOP/s"),
            Row(f"{name}: fraction of the product's rate", rate / ceiling, ""),
        ]
    show(
        "learning",
        f"Learner step, GTrXL (GRU) {settings.preset}, batch {settings.batch}, unroll "
        f"{settings.unroll}",
        rows,
        keep=settings.keep,
    )


if __name__ == "__main__":
    main(tyro.cli(Settings))
