"""`check_core` passes sound cores, and catches one broken in each way."""

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from gtrxl_jax.nn.core import MemoryCore
from gtrxl_jax.testing import check_core
from tests.nn.cores import small_core

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("x64")]


class Window(MemoryCore):
    """Attend to the last M inputs with fixed weights: h_t = sum_d decay^d tanh(W x_{t-d})."""

    memory_size: int = 3

    def setup(self):
        precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.project = nn.Dense(self.width, **precision)
        self.output = nn.Dense(self.width, **precision)

    def initial_memory(self, batch_size):
        dtype = self.dtype or self.param_dtype
        return jnp.zeros((batch_size, self.memory_size, self.width), dtype)

    def step(self, cache, x_BD, first_B):
        cache = self.reset(cache, first_B)
        cache = jnp.concatenate([cache[:, 1:], self.read(x_BD)[:, None]], axis=1)
        decay_M = 0.5 ** jnp.arange(self.memory_size, dtype=cache.dtype)
        return cache, self.output(jnp.einsum("bmd,m->bd", cache, decay_M[::-1]))

    def reset(self, cache, first_B):
        return jnp.where(first_B[:, None, None], jnp.zeros_like(cache), cache)

    def read(self, x_BD):
        return jnp.tanh(self.project(x_BD))


class OtherSegment(Window):
    def __call__(self, memory, x_BTD, first_BT):
        memory, y_BTD = super().__call__(memory, x_BTD, first_BT)
        return memory, 1.001 * y_BTD


class OtherMemory(Window):
    def __call__(self, memory, x_BTD, first_BT):
        memory, y_BTD = super().__call__(memory, x_BTD, first_BT)
        return 1.001 * memory, y_BTD


class OtherGradient(Window):
    """The segment form adds nothing to the outputs, but to their gradient."""

    def __call__(self, memory, x_BTD, first_BT):
        memory, y_BTD = super().__call__(memory, x_BTD, first_BT)
        return memory, 1.001 * y_BTD - jax.lax.stop_gradient(0.001 * y_BTD)


class DetachesItsSteps(Window):
    """The segment form has no gradient from an output to earlier steps."""

    def __call__(self, memory, x_BTD, first_BT):
        outputs = []
        for t in range(x_BTD.shape[1]):
            memory = jax.lax.stop_gradient(memory)
            memory, y_BD = self.step(memory, x_BTD[:, t], first_BT[:, t])
            outputs.append(y_BD)
        return memory, jnp.stack(outputs, axis=1)


class MixesRows(Window):
    def step(self, cache, x_BD, first_B):
        cache, y_BD = super().step(cache, x_BD, first_B)
        return cache, y_BD + 1e-3 * y_BD.mean(axis=0, keepdims=True)


class KeepsTheOldEpisode(Window):
    def reset(self, cache, first_B):
        return jnp.where(first_B[:, None, None], 1e-3 * cache, cache)


class TrainsTheMemory(Window):
    def __call__(self, memory, x_BTD, first_BT):
        outputs = []
        for t in range(x_BTD.shape[1]):
            memory, y_BD = self.step(memory, x_BTD[:, t], first_BT[:, t])
            outputs.append(y_BD)
        return memory, jnp.stack(outputs, axis=1)


class FreshMemoryCounts(Window):
    def initial_memory(self, batch_size):
        return super().initial_memory(batch_size) + 0.1


class ProjectsTheMemory(Window):
    """The memory holds inputs, and each step projects all of them."""

    def step(self, cache, x_BD, first_B):
        x_BD = x_BD.astype(self.dtype or x_BD.dtype)
        cache = self.reset(cache, first_B)
        cache = jnp.concatenate([cache[:, 1:], x_BD[:, None]], axis=1)
        return cache, self.output(jnp.tanh(self.project(cache)).mean(axis=1))


class IgnoresItsPrecision(Window):
    def step(self, cache, x_BD, first_B):
        cache, y_BD = super().step(cache, x_BD, first_B)
        return cache, y_BD.astype(self.param_dtype)


def make(kind, **settings):
    return kind(width=6, param_dtype=jnp.float64, **settings)


# tests/nn/test_contract.py tests the same points.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm", "gtrxl/gru"])
def test_core_passes(name):
    check_core(small_core(name), tolerance=1e-9)


def test_a_scan_of_steps_is_a_core():
    check_core(make(Window), tolerance=1e-9)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (OtherSegment, "1: acting cut after .* different outputs"),
        pytest.param(OtherMemory, "1: .* different outputs", marks=pytest.mark.slow),
        (OtherGradient, "1: acting and a segment have different gradients"),
        pytest.param(
            DetachesItsSteps,
            "1: acting and a segment have different gradients",
            marks=pytest.mark.slow,
        ),
        (MixesRows, "2: outputs depend on other rows of the batch"),
        (KeepsTheOldEpisode, "2: outputs of a new episode depend on the previous one"),
        (TrainsTheMemory, "3: a gradient enters the incoming memory"),
        pytest.param(
            FreshMemoryCounts,
            "4: a fresh memory and the start of an episode give different outputs",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ProjectsTheMemory, "5: a step multiplies 6 rows by a parameter", marks=pytest.mark.slow
        ),
        pytest.param(
            IgnoresItsPrecision,
            "6: with dtype bfloat16, a segment returns float64",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_broken_core_is_caught(kind, message):
    with pytest.raises(AssertionError, match=message):
        check_core(make(kind), tolerance=1e-9)


@pytest.mark.slow  # cores are checked in float64
def test_float32_has_its_own_tolerance():
    with jax.enable_x64(False):
        check_core(Window(width=6))
