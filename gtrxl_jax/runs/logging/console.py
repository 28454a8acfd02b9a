"""Console output of a run: progress, speed, remaining time and scores."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from gtrxl_jax.files import printable
from gtrxl_jax.formatting import format_number
from gtrxl_jax.runs.logging.writers import Metrics, MetricWriter, as_arrays


class ConsoleWriter(MetricWriter):
    """Shows a progress bar in a terminal, and plain lines elsewhere (a file, a batch system's log).

    A metric is shown under the last part of its name, after any "/", with its latest finite value,
    averaged over seeds. The speed is the metric "steps_per_second", or else that of the second half
    of the run so far, or of the last minute if that is longer, from which the remaining time is
    estimated: with its evaluations, but without compilation.

    Args:
      total_steps: the step at which the run ends.
      show: names of the metrics to show, in this order.
      title: description of the run, printed when it starts.
      console: where to write; by default standard error, so that standard output can be piped.
      clock: a monotonic clock, in seconds.
      unit: name of what is counted.
    """

    def __init__(
        self,
        total_steps: int,
        show: Sequence[str] = ("episode/return", "episode/success"),
        *,
        title: str = "",
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        unit: str = "step",
    ):
        self._total = total_steps
        self._show = tuple(show)
        self._clock = clock
        self._unit = unit
        self._latest: dict[str, float] = {}
        self._title = title
        self._console = console or Console(stderr=True)
        self._speed = math.nan
        self._phase = ""
        self._compile_start = math.nan
        self._started = clock()
        self._recent = deque([(0, self._started)])
        self._bar: Progress | None = None

    def start(self, step: int) -> None:
        if self._title:
            start = f", from {self._unit} {step:,}" if step else ""
            self._print(f"{self._title}{start}")
        self._started = self._clock()
        self._recent = deque([(step, self._started)])
        if self._console.is_terminal:
            self._bar = Progress(
                BarColumn(bar_width=16),
                TextColumn("{task.completed:,}/{task.total:,}"),
                _Status(),
                console=self._console,
            )
            self._task = self._bar.add_task("", total=self._total, completed=step, status="")
            self._bar.start()

    def write(self, step: int | np.integer, metrics: Metrics) -> None:
        step = int(step)
        now = self._clock()
        self._recent.append((step, now))
        since = now - max(_WINDOW, (now - self._started) / 2)
        while len(self._recent) > 2 and self._recent[1][1] <= since:
            self._recent.popleft()
        for name, value in as_arrays(metrics).items():
            finite = value[np.isfinite(value)]
            if name in self._show and finite.size:
                self._latest[name] = float(np.mean(finite, dtype=np.float64))
            elif name == f"{self._unit}s_per_second":
                self._speed = float(np.mean(value))
        if self._bar:
            self._update()
        else:
            share = f"{step / self._total:.0%}" if self._total else "100%"
            status = "  ".join(self._status())
            line = f"{share:>4}  {self._unit} {step:,}/{self._total:,}  {status}".rstrip()
            self._print(line)

    def phase(self, name: str) -> None:
        changed, previous, self._phase = name != self._phase, self._phase, name
        if changed and name == "compiling":
            self._compile_start = self._clock()
        if changed and previous == "compiling":
            lost = self._clock() - self._compile_start
            self._started += lost
            self._recent = deque((step, seconds + lost) for step, seconds in self._recent)
        if self._bar:
            self._update()
        elif changed and name:
            self._print(f"      {name}")

    def close(self) -> None:
        if self._bar:
            self._bar.stop()

    def _print(self, line: str) -> None:
        line = printable(line)
        self._console.print(line, soft_wrap=True, markup=False, highlight=False, emoji=False)

    def _update(self) -> None:
        assert self._bar is not None
        status = [*([self._phase] if self._phase else []), *self._status()]
        step, _ = self._recent[-1]
        self._bar.update(self._task, completed=step, status="  ".join(status))

    def _status(self) -> list[str]:
        (first_step, first_time), (last_step, last_time) = self._recent[0], self._recent[-1]
        parts = []
        if last_step > first_step and last_time > first_time:
            pace = (last_step - first_step) / (last_time - first_time)
            speed = pace if math.isnan(self._speed) else self._speed
            parts.append(f"{_significant(speed)} {self._unit}s/s")
            if last_step < self._total:
                parts.append(f"{_duration((self._total - last_step) / pace)} left")
        names = [name for name in self._show if name in self._latest]
        return parts + [
            f"{name.rpartition('/')[2]} {format_number(self._latest[name])}" for name in names
        ]


_WINDOW = 60.0
"""Seconds of the writes from which the remaining time is estimated."""


class _Status(ProgressColumn):
    """The text after the bar; truncated, not wrapped, in a narrow terminal."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["status"], style="cyan", no_wrap=True, overflow="ellipsis")


def _significant(number: float) -> str:
    """Format with three digits and thousands separators: 0.123, 12.3, 123, 12,300."""
    digits = 2 - math.floor(math.log10(number))
    return f"{round(number, digits):,.{max(digits, 0)}f}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
