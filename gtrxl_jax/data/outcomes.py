"""How the episodes of a dataset ended, and what a model may be asked for."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from gtrxl_jax.data.trajectories import Trajectories, returns_to_go


class Outcomes(NamedTuple):
    """How episodes ended.

    Attributes:
      returns_E: the sum of each episode's rewards.
      largest_E: the largest of its returns-to-go, without its sign.
      length_E: its number of actions.
      terminated_E: whether it terminated; otherwise it was truncated.
      lacks_action_E: whether it had one more action, see `Trajectories`.
    """

    returns_E: Float[np.ndarray, " E"]
    largest_E: Float[np.ndarray, " E"]
    length_E: Int[np.ndarray, " E"]
    terminated_E: Bool[np.ndarray, " E"]
    lacks_action_E: Bool[np.ndarray, " E"]

    @classmethod
    def of(cls, trajectories: Trajectories) -> "Outcomes":
        """Return the outcomes of trajectories in memory."""
        rewards_ET, length_E, terminated_E = (
            np.asarray(getattr(trajectories, name)) for name in ("rewards", "length", "terminated")
        )
        inside_ET = np.arange(rewards_ET.shape[1])[None] < length_E[:, None]
        returns_E = np.where(inside_ET, rewards_ET, 0).sum(axis=1, dtype=np.float64)
        lacks_action = trajectories.lacks_action
        lacks_action_E = np.zeros_like(terminated_E) if lacks_action is None else lacks_action
        largest_E = np.abs(returns_to_go(rewards_ET.astype(np.float64), length_E)).max(axis=1)
        return cls(returns_E, largest_E, length_E, terminated_E, np.asarray(lacks_action_E))

    @property
    def is_whole_E(self) -> Bool[np.ndarray, " E"]:
        """Whether each episode ended by itself or by a time limit, rather than being cut earlier.

        The time limit is the length of the longest episodes, with actions that are left out, if
        several of them were truncated.
        Otherwise, what was truncated after fewer steps than an episode that terminated was cut;
        and if none terminated, there is no telling.
        """
        steps_E = self.length_E + self.lacks_action_E
        longest = steps_E.max()
        if np.sum(~self.terminated_E & (steps_E == longest)) > 1:
            limit = longest
        else:
            limit = max(steps_E[self.terminated_E], default=0)
        return self.terminated_E | (steps_E >= limit)

    @property
    def return_scale(self) -> float:
        """The largest return-to-go of all steps, without its sign; 1 if all are 0."""
        return float(self.largest_E.max()) or 1.0

    @property
    def best_tenth(self) -> float:
        """The mean return of the best tenth of the whole episodes."""
        returns = self.returns_E[self.is_whole_E]
        return float(np.sort(returns)[-max(len(returns) // 10, 1) :].mean())
