"""Tests for custom cores: `check_core(core)` checks the contract of `MemoryCore`."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from gtrxl_jax.nn.core import MemoryCore

STEPS = 11


def check_core(core: MemoryCore, *, seed: int = 0, tolerance: float = 1e-4) -> None:
    """Check the six points of `MemoryCore` for random parameters and inputs.

    Args:
      core: the core. Use a small one, since its programs are compiled, with a memory of fewer than
        11 steps.
      seed: seed of the parameters and inputs.
      tolerance: largest absolute difference between outputs, which are of order 1. With
        `jax.enable_x64` and `param_dtype=jnp.float64`, it can be 1e-9.

    Raises:
      AssertionError: if the core violates the contract; the message starts with the number of the
        point.
    """
    check = _Check(core, np.random.default_rng(seed), tolerance)
    check.acting_equals_learning()
    check.episodes_are_separate()
    check.causality()
    check.fresh_memory()
    check.cost_of_a_step()
    check.gradients()
    check.transformations()


class _Check:
    def __init__(self, core: MemoryCore, rng: np.random.Generator, tolerance: float):
        self.core, self.rng, self.tolerance = core, rng, tolerance
        self.params = self._random_params()

    def _random_params(self) -> Any:
        """Sample all parameters, since those initialized to 0 or 1 could hide errors."""
        x_BTD, first_BT = self.inputs(1, 1)
        memory = self.core.initial_memory(1)
        shapes = jax.eval_shape(self.core.init, jax.random.key(0), memory, x_BTD, first_BT)

        def leaf(shape: jax.ShapeDtypeStruct) -> jax.Array:
            spread = 0.5 if len(shape.shape) < 2 else shape.shape[0] ** -0.5
            return jnp.asarray(spread * self.rng.standard_normal(shape.shape), shape.dtype)

        return {"params": jax.tree.map(leaf, shapes.get("params", {}))}

    def inputs(self, batch: int, steps: int) -> tuple[jax.Array, jax.Array]:
        """Return features `[B, T, D]`, and `first` without any start of an episode."""
        x_BTD = self.rng.standard_normal((batch, steps, self.core.width))
        return jnp.asarray(x_BTD, self.core.param_dtype), jnp.zeros((batch, steps), bool)

    def learn(self, memory: Any, x_BTD: Any, first_BT: Any, params: Any = None) -> Any:
        return _learn(self.core, params or self.params, memory, x_BTD, first_BT)

    def act(self, memory: Any, x_BTD: Any, first_BT: Any) -> Any:
        return _act(self.core, self.params, memory, x_BTD, first_BT)

    def require_equal(self, actual: Any, expected: Any, point: str) -> None:
        for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
            difference = np.max(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)))
            assert difference <= self.tolerance, f"{point} (difference: {difference:.2g})"

    def acting_equals_learning(self) -> None:
        x_BTD, _ = self.inputs(3, 2 * STEPS)
        first_BT = jnp.asarray(self.rng.random((3, 2 * STEPS)) < 1 / 6)
        memory = self.core.initial_memory(3)
        after, whole_BTD = self.learn(memory, x_BTD, first_BT)
        probe = self.inputs(3, 1)
        # Compare memories by their effect on outputs; they may contain unused values.
        _, expected_BTD = self.learn(after, *probe)
        for form in (self.learn, self.act):
            name = "a segment" if form == self.learn else "acting"
            for cut in (1, STEPS, 2 * STEPS):
                between, head_BTD = form(memory, x_BTD[:, :cut], first_BT[:, :cut])
                parts, end = [head_BTD], between
                if cut < 2 * STEPS:
                    end, tail_BTD = form(between, x_BTD[:, cut:], first_BT[:, cut:])
                    parts.append(tail_BTD)
                point = f"1: {name} cut after {cut} steps and the whole segment give different %s"
                self.require_equal(jnp.concatenate(parts, axis=1), whole_BTD, point % "outputs")
                self.require_equal(self.learn(end, *probe)[1], expected_BTD, point % "memory")

    def episodes_are_separate(self) -> None:
        x_BTD, none_BT = self.inputs(2, STEPS)
        begin = STEPS // 2
        first_BT = none_BT.at[:, begin].set(True)
        memory, _ = self.learn(self.core.initial_memory(2), *self.inputs(2, STEPS))
        _, y_BTD = self.learn(memory, x_BTD, first_BT)
        fresh = self.core.initial_memory(2)
        _, fresh_BTD = self.learn(fresh, x_BTD[:, begin:], first_BT[:, begin:])
        point = "2: outputs of a new episode depend on the previous one"
        self.require_equal(y_BTD[:, begin:], fresh_BTD, point)

        def later(x_BTD: jax.Array) -> jax.Array:
            return jnp.sum(self.learn(memory, x_BTD, first_BT)[1][:, begin:] ** 2)

        gradient_BTD = jax.grad(later)(x_BTD)
        assert np.all(gradient_BTD[:, :begin] == 0), "2: a gradient enters the previous episode"

        _, both_BTD = self.learn(memory, x_BTD, none_BT.at[1, begin].set(True))
        alone = jax.tree.map(lambda z: z[:1], memory), x_BTD[:1], none_BT[:1]
        point = "2: outputs depend on other rows of the batch"
        self.require_equal(self.learn(*alone)[1], both_BTD[:1], point)

    def causality(self) -> None:
        x_BTD, first_BT = self.inputs(1, STEPS)
        memory, _ = self.learn(self.core.initial_memory(1), *self.inputs(1, STEPS))

        def outputs(x_TD: jax.Array) -> jax.Array:
            return self.learn(memory, x_TD[None], first_BT)[1][0]

        jacobian_TDTD = jax.jacobian(outputs)(x_BTD[0])
        influence_TT = np.any(np.asarray(jacobian_TDTD) != 0, axis=(1, 3))
        assert not np.any(np.triu(influence_TT, 1)), "3: an output depends on a later input"
        assert np.all(np.diag(influence_TT)), "3: an output does not depend on its own input"

        # JAX differentiates floats only.
        floats = jax.tree.map(
            lambda x: x if jnp.issubdtype(x.dtype, jnp.floating) else None, memory
        )

        def loss(floats: Any) -> jax.Array:
            joined = jax.tree.map(lambda x, f: x if f is None else f, memory, floats)
            return jnp.sum(self.learn(joined, x_BTD, first_BT)[1] ** 2)

        zero = all(np.all(g == 0) for g in jax.tree.leaves(jax.grad(loss)(floats)))
        assert zero, "3: a gradient enters the incoming memory"

    def fresh_memory(self) -> None:
        x_BTD, first_BT = self.inputs(2, STEPS)
        fresh = self.core.initial_memory(2)
        _, y_BTD = self.learn(fresh, x_BTD, first_BT)
        _, begun_BTD = self.learn(fresh, x_BTD, first_BT.at[:, 0].set(True))
        point = "4: a fresh memory and the start of an episode give different outputs"
        self.require_equal(y_BTD, begun_BTD, point)

    def cost_of_a_step(self) -> None:
        batch = 2
        cache = _start(self.core, self.params, self.core.initial_memory(batch))
        x_BTD, first_BT = self.inputs(batch, 1)

        def step(params: Any, cache: Any, x_BD: Any, first_B: Any) -> Any:
            return _step(self.core, params, cache, x_BD, first_B)

        arguments = self.params, cache, x_BTD[:, 0], first_BT[:, 0]
        jaxpr = jax.make_jaxpr(step)(*arguments).jaxpr
        from_params = dict.fromkeys(jaxpr.invars[: len(jax.tree.leaves(self.params))], True)
        for rows in _rows_of_products(jaxpr, from_params):
            assert rows <= batch, (
                f"5: a step multiplies {rows} rows by a parameter, for a batch of {batch}: "
                "project the memory in `start`"
            )

    def gradients(self) -> None:
        x_BTD, none_BT = self.inputs(2, STEPS)
        first_BT = none_BT.at[1, STEPS // 2].set(True)
        memory, _ = self.learn(self.core.initial_memory(2), *self.inputs(2, STEPS))

        def gradient(form: Any, core: MemoryCore) -> Any:
            def loss(params: Any, x_BTD: jax.Array) -> jax.Array:
                return jnp.sum(form(core, params, memory, x_BTD, first_BT)[1] ** 2)

            return jax.jit(jax.grad(loss, argnums=(0, 1)))(self.params, x_BTD)

        plain = gradient(_learn, self.core.clone(remat=False))
        scale = max(1.0, *(float(jnp.max(jnp.abs(g))) for g in jax.tree.leaves(plain)))
        for other, point in (
            (gradient(_act, self.core), "1: acting and a segment have different gradients"),
            (gradient(_learn, self.core.clone(remat=True)), "6: remat changes the gradient"),
        ):
            self.require_equal(
                jax.tree.map(lambda g: g / scale, other),
                jax.tree.map(lambda g: g / scale, plain),
                point,
            )

    def transformations(self) -> None:
        x_BTD, first_BT = self.inputs(2, STEPS)
        memory = self.core.initial_memory(2)
        stacked = jax.tree.map(lambda p: jnp.stack([p, -p]), self.params)
        over_params = jax.vmap(lambda params: self.learn(memory, x_BTD, first_BT, params)[1])
        _, y_BTD = self.learn(memory, x_BTD, first_BT)
        self.require_equal(over_params(stacked)[0], y_BTD, "6: vmap changes the outputs")

        low = self.core.clone(dtype=jnp.bfloat16)
        params = jax.tree.map(lambda p: p.astype(jnp.float32), self.params)
        x_low_BTD = x_BTD.astype(jnp.float32)
        _, low_BTD = _learn(low, params, low.initial_memory(2), x_low_BTD, first_BT)
        _, acted_BTD = _act(low, params, low.initial_memory(2), x_low_BTD, first_BT)
        for name, y in (("a segment", low_BTD), ("acting", acted_BTD)):
            assert y.dtype == jnp.bfloat16, f"6: with dtype bfloat16, {name} returns {y.dtype}"
            spread, error = np.std(y_BTD), np.std(np.asarray(y, np.float64) - y_BTD)
            assert error < 0.1 * spread, f"6: bfloat16 changes the outputs of {name}"

        if jax.device_count() > 1:
            mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
            placed = jax.device_put(
                (memory, x_BTD, first_BT), NamedSharding(mesh, PartitionSpec("data"))
            )
            self.require_equal(self.learn(*placed)[1], y_BTD, "6: a sharded batch changes outputs")


@functools.partial(jax.jit, static_argnums=0)
def _learn(core: Any, params: Any, memory: Any, x_BTD: Any, first_BT: Any) -> Any:
    return core.apply(params, memory, x_BTD, first_BT)


def _start(core: Any, params: Any, memory: Any, num_steps: int | None = None) -> Any:
    return core.apply(params, memory, num_steps, method="start")


def _step(core: Any, params: Any, cache: Any, x_BD: Any, first_B: Any) -> Any:
    return core.apply(params, cache, x_BD, first_B, method="step")


@functools.partial(jax.jit, static_argnums=0)
def _act(core: Any, params: Any, memory: Any, x_BTD: Any, first_BT: Any) -> Any:
    cache = _start(core, params, memory, x_BTD.shape[1])

    def step(cache: Any, inputs: Any) -> Any:
        return _step(core, params, cache, *inputs)

    cache, y_TBD = jax.lax.scan(step, cache, (x_BTD.swapaxes(0, 1), first_BT.T))
    return core.apply(params, cache, method="finish"), y_TBD.swapaxes(0, 1)


def _rows_of_products(jaxpr: Any, fixed: dict[Any, bool]) -> Iterator[int]:
    """Yield, for each product with a parameter, the number of rows multiplied by it.

    Args:
      jaxpr: a program.
      fixed: the variables that depend only on parameters and constants, and whether they depend on
        a parameter.
    """
    fixed = dict.fromkeys(jaxpr.constvars, False) | fixed
    for equation in jaxpr.eqns:
        known = [
            False if isinstance(v, jax.extend.core.Literal) else fixed.get(v)
            for v in equation.invars
        ]
        if equation.primitive.name == "dot_general" and None in known and True in known:
            side = known.index(None)
            contracted, batched = equation.params["dimension_numbers"]
            shape = equation.invars[side].aval.shape
            rest = set(range(len(shape))) - {*contracted[side], *batched[side]}
            yield int(np.prod([shape[axis] for axis in rest]))
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            if len(inner.invars) == len(known):
                pairs = zip(inner.invars, known, strict=True)
                yield from _rows_of_products(inner, {v: k for v, k in pairs if k is not None})
        if None not in known:
            fixed |= dict.fromkeys(equation.outvars, any(known))
