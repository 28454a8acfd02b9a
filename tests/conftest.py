"""Every test runs on eight virtual CPU devices, with strict types and no silent broadcasting."""

import os
import signal

os.environ["JAX_PLATFORMS"] = "cpu"
# Tests are small programs, many of them: compile fast rather than well.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=0",
    ]
)

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


# A shell lets its background jobs ignore Ctrl-C, and what they start; runs are asked to hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """Hundreds of compiled programs would take gigabytes."""
    yield
    jax.clear_caches()


@pytest.fixture
def x64():
    """Run the test with 64-bit types, for comparison with float64 references."""
    with jax.enable_x64(True):
        yield
