"""How hard XLA works on a program of a run."""

import os

import jax


def compiler_options(*, runs_once: bool = False) -> dict[str, int] | None:
    """Options for `jax.jit` that let a run start sooner.

    On CPU most of a compilation is LLVM's work on small kernels. For a program that runs once, such
    as a run's initialisation, that is wasted: without it, compilation takes half the time. In a
    program that runs often the time goes into matrix products, which are compiled already: at
    level 2 instead of 3, compilation takes five sixths of the time and the program runs as fast.

    Args:
      runs_once: whether the program runs but once.

    Returns:
      None, which is XLA's defaults, on accelerators and where XLA_FLAGS gives the level.
    """
    name = "xla_backend_optimization_level"
    if jax.default_backend() != "cpu" or name in os.environ.get("XLA_FLAGS", ""):
        return None
    return {name: 0 if runs_once else 2}
