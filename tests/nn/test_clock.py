"""The clock: the step of the episode as a further input of any core."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.nn.cores.clock import with_clock
from gtrxl_jax.testing import check_core
from tests.comparison import assert_close
from tests.nn.cores import WIDTH, random_params, random_segment, small_core

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.slow  # the others are quick
@pytest.mark.parametrize("name", ["gtrxl/gru", "lstm"])
def test_contract(name):
    check_core(with_clock(small_core(name)), tolerance=1e-9)


def test_input_is_that_of_the_core_plus_the_encoded_time():
    core = small_core("gtrxl/gru")
    clocked = with_clock(core)
    params = random_params(clocked)
    x_BTD, first_BT = random_segment(np.random.default_rng(0), batch=3, steps=23, dtype=jnp.float64)
    _, y_BTD = jax.jit(clocked.apply)(params, clocked.initial_memory(3), x_BTD, first_BT)

    kernel = np.asarray(params["params"]["of_time"]["kernel"])
    rates = 10000.0 ** (-np.arange(WIDTH // 2) / (WIDTH // 2))
    with_time_BTD = np.array(x_BTD)
    for row in range(3):
        time = 0
        for t in range(23):
            time = 0 if first_BT[row, t] else time
            signal = np.concatenate([np.sin(time * rates), np.cos(time * rates)])
            with_time_BTD[row, t] += signal @ kernel
            time += 1
    inner = {"params": {k: v for k, v in params["params"].items() if k != "of_time"}}
    with_time_BTD = jnp.asarray(with_time_BTD)
    _, expected_BTD = jax.jit(core.apply)(inner, core.initial_memory(3), with_time_BTD, first_BT)
    assert_close(y_BTD, expected_BTD)


def test_time_goes_on_in_the_next_segment_and_starts_anew_with_an_episode():
    core = with_clock(small_core("lstm"))
    params = random_params(core)
    x_BTD = jnp.zeros((2, 4, WIDTH))
    first_BT = jnp.zeros((2, 4), bool).at[1, 2].set(True)
    memory = core.initial_memory(2)
    for expected_B in ([4, 2], [8, 2], [12, 2]):
        memory, _ = core.apply(params, memory, x_BTD, first_BT)
        np.testing.assert_array_equal(memory.time, expected_B)


def test_precision_is_that_of_the_whole():
    core = with_clock(small_core("gru", jnp.float32)).clone(dtype=jnp.bfloat16)
    memory = core.initial_memory(2)
    assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(memory.inner))


def test_late_steps_differ_in_bfloat16():
    core = with_clock(small_core("gru", jnp.float32)).clone(dtype=jnp.bfloat16)
    params = random_params(core)
    x_BD, first_B = jnp.zeros((2, WIDTH)), jnp.zeros(2, bool)
    memory = core.initial_memory(2).replace(time=jnp.array([600, 601]))
    cache = core.apply(params, memory, method="start")
    _, y_BD = core.apply(params, cache, x_BD, first_B, method="step")
    assert jnp.any(y_BD[0] != y_BD[1])
