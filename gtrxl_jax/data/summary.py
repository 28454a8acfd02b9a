"""A summary of a dataset: its spaces, how its episodes ended, and what is wrong with it."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from gtrxl_jax.data.datasets import BadEpisodeError, DatasetReader
from gtrxl_jax.data.outcomes import Outcomes
from gtrxl_jax.ops.moments import ROUNDING
from gtrxl_jax.specs.observation import observation_spec
from gtrxl_jax.specs.spaces import Leaf, describe, kind_of, leaves_of

BINS = 10
"""The number of bins of the histogram of the returns."""


@dataclasses.dataclass(frozen=True)
class Range:
    """The least, the mean and the greatest of some numbers."""

    least: float
    mean: float
    greatest: float

    @classmethod
    def of(cls, values: np.ndarray) -> "Range":
        """Return the range of numbers, of which there is at least one."""
        return cls(float(values.min()), float(values.mean()), float(values.max()))


@dataclasses.dataclass(frozen=True)
class Fault:
    """A bad episode.

    Attributes:
      episode: its number.
      reason: what is wrong with it.
    """

    episode: int
    reason: str


@dataclasses.dataclass(frozen=True)
class Summary:
    """A summary of a dataset; returns, lengths and steps are those of its sound episodes.

    Attributes:
      path: its folder or file.
      format: what it is.
      environment, policy: where they come from, as far as the files say so.
      spaces: the space of each array of an observation and of an action, by name, and what a
        network gets of it.
      episodes: the number of episodes.
      steps: the number of actions.
      terminated: how many episodes terminated; the others were truncated.
      cut: how many were truncated before the time limit that the others suggest.
      lengths: the numbers of actions; None if no episode is sound.
      returns: the sums of the rewards.
      histogram: how many returns are between each two successive `edges`.
      edges: the bounds of the bins.
      target_return: what `train-offline` asks for by default, see `Outcomes.best_tenth`.
      missing: what the files lack, such as last observations.
      faults: the bad episodes.
    """

    path: str
    format: str
    environment: str
    policy: str
    spaces: dict[str, str]
    episodes: int
    steps: int
    terminated: int
    cut: int
    lengths: Range | None
    returns: Range | None
    histogram: list[int]
    edges: list[float]
    target_return: float | None
    missing: list[str]
    faults: list[Fault]

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a dict for JSON."""
        return dataclasses.asdict(self)


def summarize(reader: DatasetReader) -> Summary:
    """Read all of a dataset, one episode after the other, and summarize it."""
    faults: list[Fault] = []
    parts: list[Outcomes] = []
    for e in range(reader.num_episodes):
        try:
            parts.append(Outcomes.of(reader.checked_episode(e)))
        except BadEpisodeError as error:
            faults.append(Fault(error.number, str(error).removeprefix(f"{reader.path}: ")))
    outcomes = Outcomes(*map(np.concatenate, zip(*parts, strict=True))) if parts else None
    histogram, edges = np.histogram(_binned(outcomes.returns_E) if outcomes else [], BINS)
    spaces = {
        name: f"{describe(leaf)}: {use(leaf)}"
        for field, use in (("observation", _input), ("action", _output))
        for name, leaf in leaves_of(getattr(reader.spaces, field), field)
    }
    return Summary(
        path=str(reader.path),
        format=reader.format.name,
        environment=reader.metadata.env_name,
        policy=reader.metadata.policy,
        spaces=spaces,
        episodes=reader.num_episodes,
        steps=int(outcomes.length_E.sum()) if outcomes else 0,
        terminated=int(outcomes.terminated_E.sum()) if outcomes else 0,
        cut=int(np.sum(~outcomes.is_whole_E)) if outcomes else 0,
        lengths=Range.of(outcomes.length_E) if outcomes else None,
        returns=Range.of(outcomes.returns_E) if outcomes else None,
        histogram=histogram.tolist() if outcomes else [],
        edges=edges.tolist() if outcomes else [],
        target_return=outcomes.best_tenth if outcomes else None,
        missing=reader.describe_missing(),
        faults=faults,
    )


def _binned(returns_E: Float[np.ndarray, " E"]) -> Float[np.ndarray, " E"]:
    """Return returns for a histogram, which has no bins for those that differ by rounding only."""
    is_one = np.allclose(returns_E, returns_E[0], rtol=ROUNDING, atol=0)
    return np.full_like(returns_E, returns_E[0]) if is_one else returns_E


def _input(leaf: Leaf) -> str:
    """Return what a network gets of an observation, in the words of docs/environments/spaces.md."""
    try:
        spec = observation_spec(leaf)
    except ValueError:
        return "too many categories"
    if spec.is_image:
        axes = " ".join((spec.axes or "hwc"[: len(spec.shape)]).upper())
        return f"an image [{axes}], normalized by channel"
    if spec.has_flags:
        return "0 or 1"
    if spec.categories is None:
        return "numbers, normalized"
    has_numbers = isinstance(spec.categories, tuple) and None in spec.categories
    return "one-hot or normalized by entry" if has_numbers else "one-hot"


def _output(leaf: Leaf) -> str:
    """Return what a policy has for an action, in the same words."""
    if kind_of(leaf) == "box":
        return "one Gaussian for each number"
    return "a choice" if kind_of(leaf) == "discrete" else "a choice for each entry"
