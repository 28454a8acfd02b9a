"""Action Associative Retrieval: repeat at the end the action with which you began.

The task of RATE (arXiv 2306.09459, appendix B). It asks for memory of the agent's own action, not
of an observation.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Float, Int, UInt8

from gtrxl_jax.envs.cells import Cell, draw_cells, progress_bar
from gtrxl_jax.envs.noise import draw_noise

STAY = 2
"""The action that waits; 0 and 1 are the two that move."""


@struct.dataclass
class AssociativeState(environment.EnvState):
    """The state of Action Associative Retrieval.

    Attributes:
      time: actions taken so far.
      away: whether the agent has left the initial state.
      goal: the action with which it left (0 before).
      waited: waits since then.
      preference: the action with which the oracle leaves, drawn at reset. It is never observed and
        decides nothing else; with it the oracle's episodes are balanced over the two actions.
    """

    away: Bool[Array, ""]
    goal: Int[Array, ""]
    waited: Int[Array, ""]
    preference: Int[Array, ""]


@struct.dataclass
class AssociativeParams(environment.EnvParams):
    """Parameters of Action Associative Retrieval; each may be an array.

    Attributes:
      max_steps_in_episode: time limit in actions. None: `wait_steps + 3`, one more than a solution.
      wait_steps: how many times the agent has to wait between the two moves.
    """

    max_steps_in_episode: int | None = None
    wait_steps: int = 7


def rate_params(segments: int, context: int) -> AssociativeParams:
    """The task of RATE's training length N*K, for N = `segments` of K = `context` steps.

    There are N*K - 3 waits, so that a solution, N*K - 1 actions and N*K observations with the final
    one, fills the N segments. The time limit is N*K actions.

    Raises:
      ValueError: if N*K is below 4, which leaves no wait.
    """
    length = segments * context
    if length < 4:
        raise ValueError(f"segments * context must be at least 4, got {segments} * {context}")
    return AssociativeParams(wait_steps=length - 3, max_steps_in_episode=length)


class AssociativeRetrieval(environment.Environment[AssociativeState, AssociativeParams]):
    """Leave the initial state by action 0 or 1, wait, and return by the same action.

    Observation `[state, flag, noise]`, float32: `state` is 0 at first and 1 once the agent has
    left, `flag` is 1 when the wait is over and the next action decides, `noise` is uniform in
    {-1, 0, 1}.

    In the initial state, actions 0 and 1 leave it and 2 does nothing. Then 2 waits, `wait_steps`
    times. On the flag the action with which the agent left earns 1 and any other 0 (the paper's
    text has -1), and the episode ends; so a solution is `wait_steps + 2` actions. Moving before the
    flag ends the episode with 0: the paper leaves this open, but were it ignored, then repeating
    one's previous action would solve the task without a memory. `info["success"]` is true for the
    right return.
    """

    @property
    def default_params(self) -> AssociativeParams:
        """Seven waits: ten time steps."""
        return AssociativeParams()

    def time_limit(self, params: AssociativeParams) -> int | Array:
        """Number of actions after which an episode is truncated."""
        if params.max_steps_in_episode is not None:
            return params.max_steps_in_episode
        return params.wait_steps + 3

    def reset_env(
        self, key: jax.Array, params: AssociativeParams
    ) -> tuple[Float[Array, "3"], AssociativeState]:
        """Put the agent into the initial state."""
        key_preference, key_noise = jax.random.split(key)
        zero = jnp.zeros((), jnp.int32)
        state = AssociativeState(
            time=zero,
            away=jnp.zeros((), jnp.bool_),
            goal=zero,
            waited=zero,
            preference=jax.random.bernoulli(key_preference).astype(jnp.int32),
        )
        return self.observe(key_noise, state, None, params), state

    def step_env(
        self, key: jax.Array, state: AssociativeState, action: Any, params: AssociativeParams
    ) -> tuple[
        Float[Array, "3"],
        AssociativeState,
        Float[Array, ""],
        Bool[Array, ""],
        dict[str, Bool[Array, ""]],
    ]:
        """Leave, wait, or return."""
        action = jnp.asarray(action, jnp.int32)
        moves = action != STAY
        decides = self._wait_is_over(state, params)
        leaves = moves & ~state.away
        waits = ~moves & state.away & ~decides
        terminated = decides | (moves & state.away)
        success = decides & (action == state.goal)
        state = state.replace(
            time=state.time + 1,
            away=leaves | (state.away & ~(terminated & moves)),
            goal=jnp.where(leaves, action, state.goal),
            waited=state.waited + waits.astype(jnp.int32),
        )
        observation = self.observe(key, state, action, params)
        return observation, state, success.astype(jnp.float32), terminated, {"success": success}

    def observe(
        self, key: jax.Array, state: AssociativeState, action: Any, params: AssociativeParams
    ) -> Float[Array, "3"]:
        """`[state, flag, noise]`; the noise is drawn from `key`."""
        del action
        flag = self._wait_is_over(state, params)
        noise = draw_noise(key)
        return jnp.stack([state.away.astype(jnp.int32), flag.astype(jnp.int32), noise]).astype(
            jnp.float32
        )

    def is_truncated(self, state: AssociativeState, params: AssociativeParams) -> Bool[Array, ""]:
        """Whether the time limit is reached."""
        return state.time >= self.time_limit(params)

    def oracle_action(self, state: AssociativeState, params: AssociativeParams) -> Int[Array, ""]:
        """The action of a solution; the first one follows `state.preference`."""
        afterwards = jnp.where(self._wait_is_over(state, params), state.goal, STAY)
        return jnp.where(state.away, afterwards, state.preference).astype(jnp.int32)

    @property
    def num_actions(self) -> int:
        """Two moves and the wait."""
        return 3

    def action_space(self, params: AssociativeParams | None = None) -> spaces.Discrete:
        """Two moves and the wait."""
        return spaces.Discrete(3)

    def observation_space(self, params: AssociativeParams | None = None) -> spaces.Box:
        """`state` and `flag` lie in [0, 1], the noise in [-1, 1]."""
        return spaces.Box(np.array([0.0, 0.0, -1.0], np.float32), 1.0, (3,), jnp.float32)

    def shows_cue(
        self, state: AssociativeState, params: AssociativeParams
    ) -> Bool[Array, "*batch"]:
        """Whether the first action, which is to be repeated, has just been taken."""
        return state.time == 1

    def render(
        self, state: AssociativeState, params: AssociativeParams
    ) -> UInt8[np.ndarray, "H W 3"]:
        """Draw the two states, the way that the agent took, and the wait, on the host.

        From left to right: the initial state, the way between the two (blue for action 1, orange
        for 0, grey before the first move), the other state, and the flag. The bar below is the
        wait.
        """
        away, goal = bool(state.away), int(state.goal)
        cells = np.full((5, 12), Cell.WALL)
        cells[1, [1, 5]] = Cell.FLOOR
        cells[1, 2:5] = (Cell.UP if goal else Cell.DOWN) if away else Cell.FLOOR
        cells[1, 5 if away else 1] = Cell.AGENT
        cells[1, 10] = Cell.LIT if bool(self._wait_is_over(state, params)) else Cell.FLOOR
        cells[3, 1:11] = progress_bar(int(state.waited) / int(params.wait_steps), columns=10)
        return draw_cells(cells, pixels=16)

    def _wait_is_over(self, state: AssociativeState, params: AssociativeParams) -> Bool[Array, ""]:
        return state.away & (state.waited >= params.wait_steps)
