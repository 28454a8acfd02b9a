import jax
import pytest

from gtrxl_jax.runs.programs import compiler_options


@pytest.mark.parametrize("runs_once", [True, False])
def test_options_are_valid_and_preserve_results(runs_once, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    options = compiler_options(runs_once=runs_once)
    assert options is not None

    def function(x):
        return jax.numpy.sin(x) + 1.0

    actual = jax.jit(function, compiler_options=options)(0.5)
    assert actual == pytest.approx(float(function(0.5)), rel=1e-6)


def test_xla_flags_take_precedence(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=1")
    assert compiler_options(runs_once=True) is None


def test_accelerators_use_defaults(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    monkeypatch.setenv("XLA_FLAGS", "")
    assert compiler_options() is None
