"""Run every test on eight virtual CPU devices, with strict types, shapes and rank promotion."""

import atexit
import gc
import importlib.metadata
import os
import signal
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
# Tests compile many small programs, so compilation time matters more than run time. The newer
# emitters of fused kernels, which jax 0.11 always uses, take half of it, and splitting a program
# into parts, to compile them in parallel, a quarter.
version = importlib.metadata.version("jaxlib").split(".")
older_emitters = tuple(map(int, version[:2])) < (0, 11)
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=0",
        "--xla_cpu_use_fusion_emitters=false" if older_emitters else "",
        "--xla_cpu_parallel_codegen_split_count=1",
    ]
)
# All processes of the session, xdist's workers and those that tests start, share compiled programs.
# To keep them for the next session, set the variable to a folder.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    programs = tempfile.TemporaryDirectory()
    atexit.register(programs.cleanup)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = programs.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

import jax
import jaxtyping
import pytest

import tests.typechecking  # noqa: F401, the hook names it

# Check every call against the package's annotations. The hook must precede the package's import.
jaxtyping.install_import_hook("gtrxl_jax", "tests.typechecking.checked")

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


# Background jobs of a shell, and their children, ignore SIGINT by default; runs must receive it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """Collect garbage less often: tracing allocates many objects, few of them cyclic garbage."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def free_programs():
    """Clear JAX's caches, and collect the runs, which hold programs and refer to themselves.

    Each program takes mappings of memory, of which Linux gives a process 65,530.
    """
    jax.clear_caches()
    gc.collect()


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """Free compiled programs, hundreds of which would take gigabytes, after each file."""
    yield
    free_programs()


@pytest.fixture
def unchecked():
    """Run the test without checks of annotations, for the package's own errors on bad input."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def x64():
    """Run the test with 64-bit types, for comparison with float64 references."""
    with jax.enable_x64(True):
        yield
