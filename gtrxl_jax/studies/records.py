"""The records of a study: one line of JSON for each run, in one file.

A record is a dict with

    labels, seed                      what it is a sample of, see `Cell`
    command, commit, device, date, cores    its provenance, and the number of cores used
    scores                            means over the episodes of the last evaluation, by name

and for a trained agent also

    settings                          those that differ from the defaults, by dotted name
    steps, seconds                    including start and compilation
    curve                             for each metric, its "step" and "value" lists, see `thinned`
    goal                              a "score", the "value" to reach, and the "steps" and "seconds"
                                      taken to reach it, or null

Functions that return a dict of results may add others. Numbers that JSON lacks are strings, "NaN".
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gtrxl_jax.files import append_line
from gtrxl_jax.runs.logging.writers import json_value

Record = dict[str, Any]
Curve = dict[str, dict[str, Any]]

POINTS = 60
"""Number of points of a learning curve that are stored."""
KEPT = [f"{kind}/{s}" for kind in ("episode", "evaluation") for s in ("success", "return")]
KEPT_OFFLINE = ["loss", "accuracy/last_step"]


def key_of(record: Mapping[str, Any]) -> str:
    """Return what tells a record from the records of other runs: its labels and its seed."""
    return json.dumps(json_value([record["labels"], record["seed"]]))


def append(path: str | os.PathLike[str], record: Record) -> None:
    """Add a record to a file, atomically; it replaces earlier ones of the same labels and seed."""
    append_line(path, json.dumps(json_value(record), allow_nan=False))


def read_all(path: str | os.PathLike[str]) -> list[Record]:
    """Return the records in a file in their order, with those that others replace; [] without it.

    An incomplete last line, which a killed process leaves, is ignored; the next record replaces it.

    Raises:
      ValueError: if another line is damaged.
    """
    if not Path(path).exists():
        return []
    *lines, _ = Path(path).read_text("utf-8").split("\n")
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
            key_of(records[-1])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}, line {number}, is not a record: {line[:80]!r}") from None
    return records


def read(path: str | os.PathLike[str], labels: Sequence[Mapping[str, Any]] = ()) -> list[Record]:
    """Return the records in a file, the last one of each run, sorted by labels and seed.

    Args:
      path: the file; there are no records if it does not exist.
      labels: those that come first, in this order.
    """
    known = list(enumerate(map(json_value, labels)))
    order = {json.dumps(of_cell): n for n, of_cell in reversed(known)}

    def place(record: Record) -> Any:
        labels = json.dumps(record["labels"])
        return order.get(labels, len(order)), labels, record["seed"]

    return sorted({key_of(record): record for record in read_all(path)}.values(), key=place)


def curves_of(metrics: Mapping[str, np.ndarray], seed: int = 0) -> Curve:
    """Return the finite values of each metric of a seed, with their steps.

    Args:
      metrics: the return value of `read_metrics`, `[N]`, or `[N, S]` with several seeds.
      seed: the place of the seed among the S.
    """
    curves = {}
    for name in metrics.keys() - {"step", "time"}:
        value_N = metrics[name] if metrics[name].ndim == 1 else metrics[name][:, seed]
        known_N = np.isfinite(value_N)
        if known_N.any():
            curves[name] = {"step": metrics["step"][known_N], "value": value_N[known_N]}
    return curves


def thinned(curves: Curve) -> Curve:
    """Return the success and the return with `POINTS` points; offline the loss and the accuracy."""
    kept = KEPT if any(name in curves for name in KEPT) else KEPT_OFFLINE
    thin = {}
    for name in curves.keys() & kept:
        points = curves[name]
        count = len(points["step"])
        places = np.linspace(0, count - 1, min(count, POINTS)).round().astype(int)
        thin[name] = {
            "step": [int(points["step"][place]) for place in places],
            "value": [float(f"{points['value'][place]:.4g}") for place in places],
        }
    return thin


def goal_of(curves: Curve, score: str, value: float) -> Record:
    """Return a goal, and the steps at which training or an evaluation first reached it, or None."""
    steps = [
        points["step"][reached_N][0]
        for kind in ("episode", "evaluation")
        if (points := curves.get(f"{kind}/{score}"))
        and (reached_N := np.asarray(points["value"]) >= value).any()
    ]
    return {"score": score, "value": value, "steps": int(min(steps)) if steps else None}


def by_cell(records: Sequence[Record], *names: str) -> dict[Any, list[Record]]:
    """Group records by some of their labels; keys are the values of one, or tuples of several."""
    cells: dict[Any, list[Record]] = {}
    for record in records:
        values = tuple(record["labels"].get(name) for name in names)
        cells.setdefault(values if len(names) > 1 else values[0], []).append(record)
    return cells


def scores(records: Sequence[Record], score: str = "success") -> np.ndarray:
    """Return one score of each record, `[S]`; NaN for diverged runs."""
    return np.array([float(record["scores"][score]) for record in records])


def to_goal(records: Sequence[Record], field: str = "steps") -> np.ndarray:
    """Return the `steps` or `seconds` of each record to its goal, `[S]`; NaN if not reached."""
    return np.array([record["goal"].get(field) or np.nan for record in records], np.float64)
