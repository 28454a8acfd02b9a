import jax
import pytest

from gtrxl_jax.envs.faults import FaultError
from gtrxl_jax.parallel import hosts
from gtrxl_jax.runs.programs import compiler_options
from tests.runs.counter import Counter


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


@pytest.mark.parametrize("is_here", [True, False])
def test_a_fault_in_one_process_ends_all(is_here, monkeypatch):
    """Of simulators that are not deterministic; all processes save before they end."""

    def evaluate(self, params, key):
        if is_here:
            raise FaultError("the reward is not finite")
        return {}

    monkeypatch.setattr(Counter, "on_host", True)
    monkeypatch.setattr(Counter, "evaluate", evaluate)
    monkeypatch.setattr(hosts, "all_max", lambda number: 1)
    programs = Counter().programs()
    message = "the reward is not finite" if is_here else "in another process of the run"
    with pytest.raises(FaultError, match=message):
        programs.evaluate(programs.init().params, 1)
