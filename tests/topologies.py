"""Tests that compile for devices that are not here."""

import importlib.util

import pytest

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu, the compiler for TPUs, is missing"
)

needs_cuda = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None, reason="JAX's plugin for CUDA is missing"
)
