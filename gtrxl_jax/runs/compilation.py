"""Compiler options for the programs of a run."""

import os

import jax


def compiler_options(*, runs_once: bool = False) -> dict[str, int] | None:
    """Return options for `jax.jit` that shorten compilation.

    On CPU, most of the compilation time is spent by LLVM on small kernels. For a program that runs
    once, such as a run's initialization, this is wasted: at level 0, compilation takes half the
    time. A program that runs often spends its time in matrix products, which are precompiled: at
    level 2 instead of 3, compilation takes five sixths of the time and the program runs as fast.

    Args:
      runs_once: whether the program runs only once.

    Returns:
      The options. None, for XLA's defaults, on accelerators and if XLA_FLAGS sets the level.
    """
    name = "xla_backend_optimization_level"
    if jax.default_backend() != "cpu" or name in os.environ.get("XLA_FLAGS", ""):
        return None
    return {name: 0 if runs_once else 2}
