"""The T-Maze: a cue at the start of a corridor tells which way to turn at its end.

The task is due to Bakker (2001), and serves as a unit test of memory in Ni et al. (2023), "When Do
Transformers Shine in RL?". The observations follow RATE (arXiv 2306.09459, appendix A).

    cells (x, y):                          (junction, +1)
          cue . start . . . . . . . . . . . junction
                                           (junction, -1)
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Float, Int, UInt8

from gtrxl_jax.worlds.base import Cue, DiscreteActions, Step, TimeLimit, require_choice
from gtrxl_jax.worlds.cells import Cell, draw_cells
from gtrxl_jax.worlds.noise import draw_noise

RIGHT, UP, LEFT, DOWN = range(4)
"""The actions. Moving into a wall has no effect."""

PENALTIES = ("progress", "behind")
"""The rules by which actions are penalized, see `TMazeParams`."""


@struct.dataclass
class TMazeState(environment.EnvState):
    """The state of the T-Maze.

    Attributes:
      time: number of actions taken so far.
      x: the agent's cell along the corridor; the cue is at 0.
      y: -1, 0 or 1; nonzero only after the turn.
      hint: the cue, +1 for up and -1 for down.
      seen: whether an observation of this episode has shown the cue.
    """

    x: Int[Array, ""]
    y: Int[Array, ""]
    hint: Int[Array, ""]
    seen: Bool[Array, ""]


@struct.dataclass
class TMazeParams(environment.EnvParams):
    """Parameters of the T-Maze; each number may be an array.

    The "progress" penalty applies to every action that does not bring the agent closer to the end
    of the shortest solution from its current state: in the corridor every action but the move
    forward, at the junction every action but a turn. "behind" is the penalty of Ni et al. (2023):
    it applies to every action after which x < t, where t is the number of actions so far. In their
    task, an agent is behind for the rest of the episode after its first wrong step, so that all
    actions cost the same and the penalty carries no further information. "progress" continues to
    distinguish good actions from bad ones. With "behind", set `max_steps_in_episode` to L + 1, as
    they do: with more time, an agent that falls behind for one of the two cues sees by its previous
    reward at the junction which it was, without memory.

    Attributes:
      max_steps_in_episode: time limit in actions. None: twice the shortest solution.
      corridor_length: L, the number of moves from the start to the junction.
      step_penalty: coefficient c: a penalized action has the reward -c / L, so that standing still
        for L steps costs c. It is 1 in Ni et al.; without a penalty (0) a random walk never reaches
        the end of a long corridor.
      penalty: "progress" or "behind". The turn, right or wrong, is never penalized.

    Raises:
      ValueError: if the penalty is unknown.
    """

    max_steps_in_episode: int | None = None
    corridor_length: int = 10
    step_penalty: float = struct.field(default=1.0, metadata={"minimum": 0.0})
    penalty: str = struct.field(default="progress", pytree_node=False)

    def __post_init__(self) -> None:
        require_choice("penalty", self.penalty, PENALTIES)


@struct.dataclass
class ActiveTMazeParams(TMazeParams):
    """Parameters of the active T-Maze: `TMazeParams` and the position of the cue.

    Attributes:
      cue_distance: o, the number of moves to the left from the start to the cue.
    """

    cue_distance: int = 1


class PassiveTMaze(DiscreteActions, TimeLimit, environment.Environment[TMazeState, TMazeParams]):
    """The T-Maze in which the cue is part of the first observation.

    The start is at x = 0 and the junction at x = L, so the shortest solution takes L + 1 actions: L
    moves to the right and the turn. Observation `[y, hint, flag, noise]`, float32: `hint` is the
    cue in the first observation and 0 afterwards, `flag` is 1 while the agent is at the junction,
    `noise` is uniform in {-1, 0, 1}. The turn ends the episode, with reward 1 if it follows the cue
    and 0 otherwise; `info["success"]` tells which. Every other action earns 0, or -c / L if it is
    penalized (see `TMazeParams`).

    The time limit terminates the episode, like the horizon of Ni et al.: a learner does not
    bootstrap there, so waiting at the junction has no value. It differs from the task of Ni et
    al. in three ways, so that it tests memory rather than exploration: the turn ends the episode
    (theirs runs for L + 1 steps), the default penalty is "progress", and the default time limit is
    twice the shortest solution. With their limit, L + 1, only an agent that makes almost no
    mistakes reaches the junction, where it has a single action left: it has learned to walk right
    before it can learn to turn. Here it reaches the junction early and is penalized for each step
    that it waits there.
    """

    cue, cue_at_start, chance = Cue("hint", (-1, 1)), True, 0.5
    default_params = TMazeParams()
    num_actions = 4
    action_names = ("right", "up", "left", "down")

    def default_time_limit(self, params: TMazeParams) -> int | Array:
        return 2 * (params.corridor_length + 2 * self._cue_distance(params) + 1)

    def params_of_length(self, length: int) -> TMazeParams:
        """Return RATE's T-Maze, whose "corridor length" is the number of observations.

        A solution has `length` observations including the final one, so L = length - 2 in the
        passive T-Maze. The time limit is `length` actions and there is no penalty.

        Raises:
          ValueError: if the length leaves no corridor.
        """
        params = self.default_params
        corridor = length - 2 - 2 * int(self._cue_distance(params))
        if corridor < 1:
            raise ValueError(f"length must be at least {length - corridor + 1}, got {length}")
        return params.replace(
            corridor_length=corridor, step_penalty=0.0, max_steps_in_episode=length
        )

    def reset_env(
        self, key: jax.Array, params: TMazeParams
    ) -> tuple[Float[Array, "4"], TMazeState]:
        """Place the agent at the start and draw the cue."""
        key_hint, key_noise = jax.random.split(key)
        zero = jnp.zeros((), jnp.int32)
        state = TMazeState(
            time=zero,
            x=jnp.asarray(self._cue_distance(params), jnp.int32),
            y=zero,
            hint=2 * jax.random.bernoulli(key_hint).astype(jnp.int32) - 1,
            seen=jnp.zeros((), jnp.bool_),
        )
        state = state.replace(seen=self.shows_cue(state, params))
        return self.observe(key_noise, state, None, params), state

    def step_env(
        self, key: jax.Array, state: TMazeState, action: Any, params: TMazeParams
    ) -> Step[Float[Array, "4"], TMazeState]:
        """Move the agent and compute the reward."""
        action = jnp.asarray(action, jnp.int32)
        before = state
        junction = self._junction(params)
        in_corridor = state.y == 0
        at_junction = in_corridor & (state.x == junction)
        forward = (action == RIGHT) & in_corridor & (state.x < junction)
        backward = (action == LEFT) & in_corridor & (state.x > 0)
        up = (action == UP) & at_junction
        down = (action == DOWN) & at_junction
        state = state.replace(
            time=state.time + 1,
            x=state.x + forward.astype(jnp.int32) - backward.astype(jnp.int32),
            y=state.y + up.astype(jnp.int32) - down.astype(jnp.int32),
        )
        state = state.replace(seen=state.seen | self.shows_cue(state, params))
        success = state.y == state.hint
        penalty, length = (
            jnp.asarray(x, jnp.float32) for x in (params.step_penalty, params.corridor_length)
        )
        penalized = self._is_penalized(before, state, params)
        reward = success.astype(jnp.float32) - jnp.where(penalized, penalty / length, 0)
        observation = self.observe(key, state, action, params)
        terminated = self.is_terminated(state, params)
        return observation, state, reward, terminated, {"success": success}

    def observe(
        self, key: jax.Array, state: TMazeState, action: Any, params: TMazeParams
    ) -> Float[Array, "4"]:
        """Return `[y, hint, flag, noise]`, with the noise drawn from `key`."""
        hint = jnp.where(self.shows_cue(state, params), state.hint, 0)
        flag = (state.y == 0) & (state.x == self._junction(params))
        noise = draw_noise(key)
        return jnp.stack([state.y, hint, flag.astype(jnp.int32), noise]).astype(jnp.float32)

    def is_truncated(self, state: TMazeState, params: TMazeParams) -> Bool[Array, ""]:
        """Return False: the time limit terminates episodes instead."""
        return jnp.zeros((), jnp.bool_)

    def is_terminated(self, state: TMazeState, params: TMazeParams) -> Bool[Array, ""]:
        """Return whether the agent has turned or the time limit is reached."""
        return (state.y != 0) | (state.time >= self.time_limit(params))

    def remaining(self, state: TMazeState, params: TMazeParams) -> Int[Array, ""]:
        """Return the number of actions of the shortest solution from this state; 0 after a turn.

        The solution leads to the cue if it has not been seen, to the junction, and into an arm.
        """
        junction = self._junction(params)
        to_junction = jnp.where(state.seen, junction - state.x, state.x + junction)
        return jnp.where(state.y == 0, to_junction + 1, 0)

    def oracle_action(self, state: TMazeState, params: TMazeParams) -> Int[Array, ""]:
        """Return the shortest solution's action: visit the cue, walk to the junction, then turn."""
        turn = jnp.where(state.hint > 0, UP, DOWN)
        onward = jnp.where(state.x == self._junction(params), turn, RIGHT)
        return jnp.where(state.seen, onward, LEFT).astype(jnp.int32)

    def observation_space(self, params: TMazeParams | None = None) -> spaces.Box:
        """Return the space: all four components lie in [-1, 1]."""
        return spaces.Box(-1.0, 1.0, (4,), jnp.float32)

    def shows_cue(
        self, state: TMazeState, params: TMazeParams
    ) -> Bool[Array | np.ndarray, "*batch"]:
        """Return whether the observation of this state shows the cue."""
        return state.time == 0

    def render(self, state: TMazeState, params: TMazeParams) -> UInt8[np.ndarray, "H W 3"]:
        """Draw the maze from above, on the host.

        The cue and the arm that it indicates are blue (up) or orange (down); the agent is red. A
        corridor of more than 40 cells is wrapped into rows, read like lines of text.
        """
        x, y, hint = int(state.x), int(state.y), int(state.hint)
        junction = int(self._junction(params))
        cue = Cell.UP if hint > 0 else Cell.DOWN
        columns = min(junction + 1, max(40, math.isqrt(3 * junction)))
        rows = math.ceil((junction + 1) / columns)
        cells = np.full((3 * rows + 2, columns + 2), Cell.WALL)

        def place(x: int, y: int) -> tuple[int, int]:
            row, column = divmod(x, columns)
            return 3 * row + 2 - y, column + 1

        for step in range(junction + 1):
            cells[place(step, 0)] = Cell.FLOOR
        cells[place(0, 0)] = cells[place(junction, hint)] = cue
        cells[place(junction, -hint)] = Cell.FLOOR
        cells[place(x, y)] = Cell.AGENT
        return draw_cells(cells, pixels=max(2, min(16, 512 // cells.shape[1])))

    def _is_penalized(
        self, before: TMazeState, state: TMazeState, params: TMazeParams
    ) -> Bool[Array, ""]:
        if params.penalty == "behind":
            return (state.y == 0) & (state.x < state.time - self._cue_distance(params))
        return self.remaining(state, params) >= self.remaining(before, params)

    def _cue_distance(self, params: TMazeParams) -> int | Array:
        return 0

    def _junction(self, params: TMazeParams) -> int | Array:
        return self._cue_distance(params) + params.corridor_length


class ActiveTMaze(PassiveTMaze):
    """The T-Maze in which the agent must walk to the cue.

    The cue is at x = 0, the start at x = o (`cue_distance`) and the junction at x = o + L, so the
    shortest solution takes L + 2o + 1 actions: o to the left, o + L to the right, and the turn. The
    observation shows the cue only while the agent is on its cell. For the "progress" penalty, the
    shortest solution leads to the cue until it has been seen. The "behind" penalty applies where
    x < t - o: it starts when a straight walk to the cue would have ended. The shortest solution
    incurs neither penalty. Everything else is as in `PassiveTMaze`.

    With o = 1 this is the Active T-Maze of Ni et al. (2023), except that their cue is shown only on
    the first visit to its cell.
    """

    default_params = ActiveTMazeParams()

    def _cue_distance(self, params: TMazeParams) -> int | Array:
        return params.cue_distance

    def shows_cue(
        self, state: TMazeState, params: TMazeParams
    ) -> Bool[Array | np.ndarray, "*batch"]:
        return state.x == 0
