"""Acting: a cached step against the same network projecting its memory again at each step.

    python experiments/bench/acting.py

The core is GTrXL (GRU) at the paper's size (12 layers, width 512, 8 heads of 64, memory 512) with 8
rows and a full memory, in float32. Both forms run in a scan with a donated carry; the second is the
segment form applied to one step at a time, as in public implementations. The cached step must read
each weight except W_R, and the ring buffers of keys and values, once. The lower bound of its time
is the number of these bytes divided by the read bandwidth, measured in the same run.

On 2026-11-21, on two CPU cores: 30.1 ms for a cached step and 448 ms for the other, a ratio of
14.9. The lower bound was 0.56 of the cached step's time; outputs differed by at most 4e-7.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from timing import Row, interleaved, read, show

from gtrxl_jax.nn.cores.registry import make_core
from gtrxl_jax.nn.layers import unstack_layers


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to time."""

    preset: str = "paper"
    batch: int = 8
    cached_steps: int = 16
    segment_steps: int = 2
    rounds: int = 7
    keep: bool = True
    """Write the table to results/bench."""


def full_memory(core: Any, batch: int) -> Any:
    """Return a memory of random steps, all of the episode that runs."""
    rng, empty = np.random.default_rng(0), core.initial_memory(batch)
    return dataclasses.replace(
        empty,
        inputs=jnp.asarray(rng.standard_normal(empty.inputs.shape), empty.inputs.dtype),
        length=jnp.full(batch, core.config.memory_size, jnp.int32),
    )


def initial_params(core: Any) -> Any:
    """Return the parameters of a core."""
    x_BTD, first_BT = jnp.zeros((1, 1, core.width)), jnp.zeros((1, 1), bool)
    return jax.jit(core.init)(jax.random.key(0), core.initial_memory(1), x_BTD, first_BT)


def carried(form: Callable[..., Any], params: Any, carry: Any) -> Callable[[], Any]:
    """Return a call of (params, carry) to carry and outputs, which goes on from its last carry."""
    held = [carry]

    def call() -> Any:
        held[0], outputs = form(params, held[0])
        return outputs

    return call


def random_steps(core: Any, batch: int, steps: int) -> tuple[Any, Any]:
    """Return inputs of the core, and that no episode begins."""
    rng = np.random.default_rng(1)
    x_TBD = jnp.asarray(rng.standard_normal((steps, batch, core.width)), jnp.float32)
    return x_TBD, jnp.zeros((steps, batch), bool)


def cached_acting(
    core: Any, batch: int, steps: int, options: dict[str, bool | int] | None = None
) -> tuple[Callable[[], Any], int]:
    """Return cached steps with a full memory, for repeated calls, and the bytes one must read.

    `options` are those of the compiler; XLA's by default.
    """
    params, inputs = initial_params(core), random_steps(core, batch, steps)
    cache = jax.jit(lambda p, m: core.apply(p, m, method="start"))(params, full_memory(core, batch))

    # Parameters are arguments, since XLA could preprocess constants at compile time.
    @functools.partial(jax.jit, donate_argnums=1, compiler_options=options)
    def cached(params: Any, cache: Any) -> Any:
        def step(cache: Any, inputs: Any) -> Any:
            return core.apply(params, cache, *inputs, method="step")

        return jax.lax.scan(step, cache, inputs)

    attention = [layer.attention for layer in unstack_layers(cache.layers)]
    used = jax.tree_util.tree_leaves_with_path((params, attention))
    must_read = sum(z.nbytes for path, z in used if "['position']" not in map(str, path))
    return carried(cached, params, cache), must_read


def reprojecting_acting(core: Any, batch: int, steps: int) -> Callable[[], Any]:
    """Return steps that project their memory again, for repeated calls."""
    inputs = random_steps(core, batch, steps)

    @functools.partial(jax.jit, donate_argnums=1)
    def reprojecting(params: Any, memory: Any) -> Any:
        def step(memory: Any, inputs: Any) -> Any:
            x_BD, first_B = inputs
            memory, y_B1D = core.apply(params, memory, x_BD[:, None], first_B[:, None])
            return memory, y_B1D[:, 0]

        return jax.lax.scan(step, memory, inputs)

    return carried(reprojecting, initial_params(core), full_memory(core, batch))


def main(settings: Settings) -> None:
    """Time both forms, interleaved."""
    core: Any = make_core("gtrxl", settings.preset)
    batch, few = settings.batch, settings.segment_steps
    cached, must_read = cached_acting(core, batch, settings.cached_steps)
    reprojecting = reprojecting_acting(core, batch, few)
    difference = jnp.max(jnp.abs(cached()[:few] - reprojecting()))
    read_all, held = read(256)
    seconds = interleaved(
        {"cached": cached, "reprojecting": reprojecting, "read": read_all}, settings.rounds
    )
    step = seconds["cached"] / settings.cached_steps
    again = seconds["reprojecting"] / few
    bandwidth = held / seconds["read"]
    show(
        "acting",
        f"Acting, GTrXL (GRU) {settings.preset}, batch {batch}, float32",
        [
            Row("cached step", 1e3 * step, "ms"),
            Row("step that projects its memory again", 1e3 * again, "ms"),
            Row("ratio", again / step, "x"),
            Row("bytes that a cached step must read", must_read / 1e6, "MB"),
            Row("bandwidth of reading", bandwidth / 1e9, "GB/s"),
            Row("floor over cached step", must_read / bandwidth / step, ""),
            Row("largest difference of the outputs", float(difference), ""),
        ],
        keep=settings.keep,
    )


if __name__ == "__main__":
    main(tyro.cli(Settings))
