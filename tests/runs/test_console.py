import io
import itertools
import re

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from gtrxl_jax.runs.logging.console import ConsoleWriter


def clock():
    return map(float, itertools.count()).__next__


@pytest.fixture
def log():
    return io.StringIO()


def plain(log, total, *args, **kwargs):
    return ConsoleWriter(total, *args, console=Console(file=log), clock=clock(), **kwargs)


def test_lines_show_progress_speed_and_scores(log):
    with plain(log, 10_000) as writer:
        writer.write(2_500, {"episode/return": 0.51234, "loss": 3.0})
        writer.write(10_000, {"episode/return": 1.0, "episode/success": jnp.array([0.5, 1.0])})
    assert log.getvalue().splitlines() == [
        " 25%  step 2,500/10,000  2,500 steps/s  0:03 left  return 0.512",
        "100%  step 10,000/10,000  5,000 steps/s  return 1.000  success 0.750",
    ]


def test_unit_of_count(log):
    with plain(log, 10, unit="episode") as writer:
        writer.write(5, {})
    assert log.getvalue() == " 50%  episode 5/10  5.00 episodes/s  0:01 left\n"


def test_latest_finite_value_is_shown(log):
    with plain(log, 4, show=("loss",)) as writer:
        writer.write(1, {"loss": 0.5})
        writer.write(2, {"loss": np.nan})
        writer.write(3, {})
        writer.write(4, {"loss": np.array([0.5, np.nan, 1.5])})
    expected = [*["loss 0.500"] * 3, "loss 1.000"]
    assert [line[-10:] for line in log.getvalue().splitlines()] == expected


def test_speed_is_that_of_metrics(log):
    with plain(log, 100) as writer:
        writer.write(50, {"steps_per_second": 1234.5})
    assert log.getvalue() == " 50%  step 50/100  1,230 steps/s  0:01 left\n"


def test_compilation_and_earlier_steps_are_excluded(log):
    times = iter([-9.0, 0.0, 0.0, 100.0, *np.arange(101.0, 221.0)])
    console = Console(file=log)
    writer = ConsoleWriter(10**6, title="a run", console=console, clock=times.__next__)
    writer.start(700)
    writer.phase("compiling")
    writer.phase("")
    assert log.getvalue() == "a run, from step 700\n      compiling\n"
    log.truncate(log.seek(0))
    for update in range(1, 100):
        writer.write(700 + 1000 * update, {})
    assert all("1,000 steps/s" in line for line in log.getvalue().splitlines())


def test_later_compilation_is_excluded_from_remaining_time(log):
    now = [0.0]
    writer = ConsoleWriter(1000, console=Console(file=log), clock=lambda: now[0])
    writer.start(0)
    for step in range(10, 60, 10):  # ten steps in a second
        now[0] += 1.0
        writer.write(step, {})
    writer.phase("compiling")
    now[0] += 30.0
    writer.phase("evaluating")
    writer.write(60, {})  # learned during compilation, and thus at once
    for step in range(70, 110, 10):
        now[0] += 1.0
        writer.write(step, {})
    assert log.getvalue().endswith("11.1 steps/s  1:21 left\n")


def test_remaining_time_is_estimated_from_second_half_of_run(log):
    times = iter([0.0, 0.0, *np.arange(1.0, 101.0), *np.arange(110.0, 1000.0, 10)])
    writer = ConsoleWriter(1000, console=Console(file=log), clock=times.__next__)
    writer.start(0)
    for step in range(1, 101):  # one step in a second, then one in ten
        writer.write(step, {"steps_per_second": 1.0})
    assert log.getvalue().endswith("1.00 steps/s  15:00 left\n")
    for step in range(101, 111):
        writer.write(step, {"steps_per_second": 1.0})
    assert log.getvalue().endswith("1.00 steps/s  2:28:20 left\n")


def test_remaining_time_has_its_share_of_long_evaluations(log):
    """It is about right after an evaluation as well as between two."""
    now = [0.0]
    writer = ConsoleWriter(1000, console=Console(file=log), clock=lambda: now[0])
    writer.start(0)
    left = []
    for step in range(10, 510, 10):  # 5 minutes of learning, 5 of evaluation, and again
        now[0] += 30.0
        if step % 100 == 0:
            writer.phase("evaluating")
            now[0] += 300.0
            writer.phase("")
        writer.write(step, {})
        *hours, minutes, seconds = re.findall(r"([\d:]+) left", log.getvalue())[-1].split(":")
        if step > 200:
            told = 3600 * int(*hours) + 60 * int(minutes) + int(seconds)
            left.append(told / ((1000 - step) * 6.0))
    assert 0.7 < min(left) < max(left) < 1.5


def test_phases_are_lines_without_terminal(log):
    with plain(log, 10) as writer:
        writer.phase("")
        for name in ("evaluating", "evaluating", "", "saving"):
            writer.phase(name)
    assert log.getvalue() == "      evaluating\n      saving\n"


def test_phase_is_shown_beside_bar(log):
    console = Console(file=log, force_terminal=True, color_system=None, width=80)
    with ConsoleWriter(10, console=console, clock=clock()) as writer:
        writer.start(0)
        writer.write(5, {"steps_per_second": 4.0})
        writer.phase("evaluating")
    assert "evaluating  4.00 steps/s" in re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", log.getvalue())


@pytest.mark.parametrize(
    ("steps", "left"), [(1, "0:01"), (60, "1:00"), (3600, "1:00:00"), (90061, "25:01:01")]
)
def test_remaining_time(log, steps, left):
    with plain(log, 1 + steps) as writer:
        writer.write(1, {})
    assert f" {left} left" in log.getvalue()


def test_lines_are_neither_wrapped_nor_markup(log):
    with plain(log, 10, show=("[red]" + "x" * 200,)) as writer:
        writer.write(1, {"[red]" + "x" * 200: 1.0})
    (line,) = log.getvalue().splitlines()
    assert line.endswith("[red]" + "x" * 200 + " 1.000")


def test_bar_fits_into_terminal(log):
    console = Console(file=log, force_terminal=True, color_system=None, width=80)
    with ConsoleWriter(500_000, console=console, clock=clock()) as writer:
        writer.start(0)
        for step in range(50_000, 500_001, 50_000):
            writer.write(step, {"episode/return": step / 500_000, "episode/success": 0.25})
    text = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", log.getvalue())
    lines = [line for line in re.split(r"[\r\n]+", text) if line.strip()]
    assert all(len(line) <= 80 for line in lines)
    assert lines[-1].split() == [
        "━" * 16, "500,000/500,000", "50,000", "steps/s", "return", "1.000", "success", "0.250",
    ]  # fmt: skip
