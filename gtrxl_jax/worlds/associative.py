"""Action Associative Retrieval: repeat the first action after a delay.

The task is from RATE (arXiv 2306.09459, appendix B). It requires memory, of the
agent's own action rather than of an observation, if the policy imitates data in which both first
actions are equally frequent: without memory it succeeds in half of the episodes. Online, an agent
without memory succeeds in all by always leaving with the same action, so `chance` is not declared.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Float, Int, UInt8

from gtrxl_jax.worlds.base import Cue, DiscreteActions, Step, TimeLimit
from gtrxl_jax.worlds.cells import Cell, draw_cells, progress_bar
from gtrxl_jax.worlds.noise import draw_noise

STAY = 2
"""The action that waits; 0 and 1 are the two moves."""


@struct.dataclass
class AssociativeState(environment.EnvState):
    """The state of Action Associative Retrieval.

    Attributes:
      time: number of actions taken so far.
      away: whether the agent has left the initial state.
      goal: the action with which it left (0 before that).
      waited: number of waits since then.
      preference: the action with which the oracle leaves, drawn at reset. It is never observed and
        affects nothing else; it balances the oracle's episodes over the two actions.
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
      wait_steps: number of waits between the two moves.
    """

    max_steps_in_episode: int | None = None
    wait_steps: int = 7


class AssociativeRetrieval(
    DiscreteActions, TimeLimit, environment.Environment[AssociativeState, AssociativeParams]
):
    """Leave the initial state with action 0 or 1, wait, and return with the same action.

    Observation `[state, flag, noise]`, float32: `state` is 0 initially and 1 once the agent has
    left, `flag` is 1 when the wait is over and the next action decides, `noise` is uniform in
    {-1, 0, 1}.

    In the initial state, actions 0 and 1 leave it and 2 does nothing. Action 2 must then be taken
    `wait_steps` times. Once the flag is set, the action with which the agent left earns 1, any
    other earns 0 (-1 in the paper's text), and the episode ends; a solution thus takes
    `wait_steps + 2` actions. Moving before the flag is set ends the episode with reward 0. The
    paper leaves this case open, but if early moves were ignored, repeating the previous action
    would solve the task without memory. `info["success"]` is true for the correct return.
    """

    cue, cue_at_start = Cue("goal", (0, 1)), True
    default_params = AssociativeParams()
    """With 7 waits, a solution spans 10 time steps."""
    num_actions = 3

    def default_time_limit(self, params: AssociativeParams) -> int | Array:
        return params.wait_steps + 3

    def params_of_length(self, length: int) -> AssociativeParams:
        """Return RATE's task: a solution has `length` observations including the final one.

        There are thus length - 3 waits. The time limit is `length` actions.

        Raises:
          ValueError: if the length leaves no wait.
        """
        if length < 4:
            raise ValueError(f"length must be at least 4, got {length}")
        return AssociativeParams(wait_steps=length - 3, max_steps_in_episode=length)

    def reset_env(
        self, key: jax.Array, params: AssociativeParams
    ) -> tuple[Float[Array, "3"], AssociativeState]:
        """Return the first observation and the initial state."""
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
    ) -> Step[Float[Array, "3"], AssociativeState]:
        """Take one action: leave, wait or return."""
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
        """Return `[state, flag, noise]`, with the noise drawn from `key`."""
        flag = self._wait_is_over(state, params)
        noise = draw_noise(key)
        return jnp.stack([state.away.astype(jnp.int32), flag.astype(jnp.int32), noise]).astype(
            jnp.float32
        )

    def oracle_action(self, state: AssociativeState, params: AssociativeParams) -> Int[Array, ""]:
        """Return the action of a solution; the first one is `state.preference`."""
        afterwards = jnp.where(self._wait_is_over(state, params), state.goal, STAY)
        return jnp.where(state.away, afterwards, state.preference).astype(jnp.int32)

    def observation_space(self, params: AssociativeParams | None = None) -> spaces.Box:
        """Return the space: `state` and `flag` lie in [0, 1], the noise in [-1, 1]."""
        return spaces.Box(np.array([0.0, 0.0, -1.0], np.float32), 1.0, (3,), jnp.float32)

    def shows_cue(
        self, state: AssociativeState, params: AssociativeParams
    ) -> Bool[Array | np.ndarray, "*batch"]:
        """Return whether the first action, which is to be repeated, has just been taken."""
        return state.time == 1

    def render(
        self, state: AssociativeState, params: AssociativeParams
    ) -> UInt8[np.ndarray, "H W 3"]:
        """Draw the two states, the path taken and the elapsed wait, on the host.

        From left to right: the initial state, the path between the states (blue for action 1,
        orange for action 0, grey before the first move), the other state, and the flag. The bar
        below shows the wait.
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
