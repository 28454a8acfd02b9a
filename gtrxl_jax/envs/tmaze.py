"""The T-Maze: a cue at the start of a corridor says which way to turn at its end.

The task is Bakker's (2001), as unit test of memory by Ni et al. (2023), "When Do Transformers Shine
in RL?", and with the observations of RATE (arXiv 2306.09459, appendix A).

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

from gtrxl_jax.choices import check_choice
from gtrxl_jax.envs.cells import Cell, draw_cells
from gtrxl_jax.envs.noise import draw_noise

RIGHT, UP, LEFT, DOWN = range(4)
"""The actions. A move into a wall does nothing."""

PENALTIES = ("progress", "behind")
"""What an action can be penalised for, see `TMazeParams`."""


@struct.dataclass
class TMazeState(environment.EnvState):
    """The state of the T-Maze.

    Attributes:
      time: actions taken so far.
      x: the agent's cell along the corridor, the cue's being 0.
      y: -1, 0 or 1; not 0 only after the turn.
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

    The penalty "progress" costs every action that does not bring the agent nearer to the end of the
    shortest solution from where it is: in the corridor all but the move onward, at the junction all
    but a turn. "behind" is the penalty of Ni et al. (2023): it costs every action after which
    x < t, t being the number of actions so far. After a first wrong step an agent of theirs is
    behind whatever it does, all actions cost the same, and the penalty tells a learner nothing more
    until the episode ends; that of "progress" goes on telling a good action from a bad one.

    Attributes:
      max_steps_in_episode: time limit in actions. None: twice the shortest solution.
      corridor_length: L, the number of moves from the start to the junction.
      step_penalty: coefficient c: an action that is penalised has the reward -c / L, so that
        standing still for L steps costs c. It is 1 in Ni et al.; without a penalty (0) a random
        walk never reaches the end of a long corridor.
      penalty: "progress" or "behind". The turn, right or wrong, is never penalised.

    Raises:
      ValueError: another penalty.
    """

    max_steps_in_episode: int | None = None
    corridor_length: int = 10
    step_penalty: float = struct.field(default=1.0, metadata={"minimum": 0.0})
    penalty: str = struct.field(default="progress", pytree_node=False)

    def __post_init__(self) -> None:
        check_choice("penalty", self.penalty, PENALTIES)


@struct.dataclass
class ActiveTMazeParams(TMazeParams):
    """Parameters of the active T-Maze: those of `TMazeParams`, and where the cue is.

    Attributes:
      cue_distance: o, the number of moves to the left from the start to the cue.
    """

    cue_distance: int = 1


def rate_params(segments: int, context: int) -> TMazeParams:
    """RATE's passive T-Maze of training length N*K, for N = `segments` of K = `context` steps.

    RATE counts observations and makes the corridor two cells shorter: L = N*K - 2, so that a
    solution, N*K - 1 actions and N*K observations with the final one, fills the N segments. The
    time limit is N*K actions and there is no penalty. RATE's "corridor length" in its figures is
    this N*K.

    Raises:
      ValueError: if N*K is below 3, which leaves no corridor.
    """
    length = segments * context
    if length < 3:
        raise ValueError(f"segments * context must be at least 3, got {segments} * {context}")
    return TMazeParams(corridor_length=length - 2, step_penalty=0.0, max_steps_in_episode=length)


class PassiveTMaze(environment.Environment[TMazeState, TMazeParams]):
    """The T-Maze in which the cue is part of the first observation.

    Start at x = 0, junction at x = L, so the shortest solution is L + 1 actions: L to the right and
    the turn. Observation `[y, hint, flag, noise]`, float32: `hint` is the cue on the first
    observation and 0 afterwards, `flag` is 1 while the agent stands on the junction, `noise` is
    uniform in {-1, 0, 1}. The turn ends the episode with reward 1 if it follows the cue and 0 if
    not; `info["success"]` says which. Every other action earns 0, or -c / L if it is penalised (see
    `TMazeParams`).

    The time limit terminates the episode, as the horizon of Ni et al. does: a learner does not
    bootstrap there, so that waiting at the junction is worth nothing. Three differences from Ni et
    al. are there so that the task tests memory and not exploration: the turn ends the episode
    (theirs runs for L + 1 steps), the default penalty is "progress", and the default time limit is
    twice the shortest solution. With theirs, L + 1, only an agent that hardly ever errs reaches the
    junction, where it then has a single action: it has learned to walk right before it could learn
    that it must turn. Here it meets the junction early and pays for each step that it waits there.
    """

    @property
    def default_params(self) -> TMazeParams:
        """L = 10 with a penalty for what does not lead on."""
        return TMazeParams()

    def time_limit(self, params: TMazeParams) -> int | Array:
        """Number of actions after which an episode ends without a turn."""
        if params.max_steps_in_episode is not None:
            return params.max_steps_in_episode
        return 2 * (params.corridor_length + 2 * self._cue_distance(params) + 1)

    def reset_env(
        self, key: jax.Array, params: TMazeParams
    ) -> tuple[Float[Array, "4"], TMazeState]:
        """Put the agent at the start and draw the cue."""
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
    ) -> tuple[
        Float[Array, "4"], TMazeState, Float[Array, ""], Bool[Array, ""], dict[str, Bool[Array, ""]]
    ]:
        """Move, and reward the turn."""
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
        penalised = self._is_penalised(before, state, params)
        reward = success.astype(jnp.float32) - jnp.where(penalised, penalty / length, 0)
        observation = self.observe(key, state, action, params)
        terminated = self.is_terminated(state, params)
        return observation, state, reward, terminated, {"success": success}

    def observe(
        self, key: jax.Array, state: TMazeState, action: Any, params: TMazeParams
    ) -> Float[Array, "4"]:
        """`[y, hint, flag, noise]`; the noise is drawn from `key`."""
        del action
        hint = jnp.where(self.shows_cue(state, params), state.hint, 0)
        flag = (state.y == 0) & (state.x == self._junction(params))
        noise = draw_noise(key)
        return jnp.stack([state.y, hint, flag.astype(jnp.int32), noise]).astype(jnp.float32)

    def is_truncated(self, state: TMazeState, params: TMazeParams) -> Bool[Array, ""]:
        """Never: the time limit terminates."""
        return jnp.zeros((), jnp.bool_)

    def is_terminated(self, state: TMazeState, params: TMazeParams) -> Bool[Array, ""]:
        """Whether the agent has turned, or the time limit is reached."""
        return (state.y != 0) | (state.time >= self.time_limit(params))

    def remaining(self, state: TMazeState, params: TMazeParams) -> Int[Array, ""]:
        """Number of actions of the shortest solution from this state; 0 after a turn.

        It leads to the cue, if that has not been seen, to the junction, and into an arm.
        """
        junction = self._junction(params)
        to_junction = jnp.where(state.seen, junction - state.x, state.x + junction)
        return jnp.where(state.y == 0, to_junction + 1, 0)

    def oracle_action(self, state: TMazeState, params: TMazeParams) -> Int[Array, ""]:
        """The shortest solution's action: fetch the cue, walk to the junction, turn as it said."""
        turn = jnp.where(state.hint > 0, UP, DOWN)
        onward = jnp.where(state.x == self._junction(params), turn, RIGHT)
        return jnp.where(state.seen, onward, LEFT).astype(jnp.int32)

    @property
    def num_actions(self) -> int:
        """Right, up, left, down."""
        return 4

    def action_space(self, params: TMazeParams | None = None) -> spaces.Discrete:
        """Right, up, left, down."""
        return spaces.Discrete(4)

    def observation_space(self, params: TMazeParams | None = None) -> spaces.Box:
        """All four components lie in [-1, 1]."""
        return spaces.Box(-1.0, 1.0, (4,), jnp.float32)

    def shows_cue(self, state: TMazeState, params: TMazeParams) -> Bool[Array, "*batch"]:
        """Whether the observation of this state has the cue."""
        del params
        return state.time == 0

    def render(self, state: TMazeState, params: TMazeParams) -> UInt8[np.ndarray, "H W 3"]:
        """Draw the maze from above, on the host.

        The cue and the arm that it calls for are blue (up) or orange (down), the agent is red. A
        corridor of more than 40 cells is folded into rows, read like lines of text.
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

    def _is_penalised(
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
    """The T-Maze in which the agent has to walk to the cue.

    The cue is on cell x = 0, the start at x = o (`cue_distance`), the junction at x = o + L, so the
    shortest solution is L + 2o + 1 actions: o to the left, o + L to the right, and the turn. The
    observation shows the cue while the agent stands on its cell, and only then. The way that the
    penalty "progress" asks for leads to the cue until it has been seen. The penalty "behind" is for
    x < t - o: it starts when a straight walk to the cue would have ended. The shortest solution
    pays neither. All else is as in `PassiveTMaze`.

    With o = 1 this is the Active T-Maze of Ni et al. (2023), whose cue however shows only on the
    first iteration to its cell.
    """

    @property
    def default_params(self) -> ActiveTMazeParams:
        """L = 10 and o = 1 with a penalty for what does not lead on."""
        return ActiveTMazeParams()

    def _cue_distance(self, params: TMazeParams) -> int | Array:
        return params.cue_distance

    def shows_cue(self, state: TMazeState, params: TMazeParams) -> Bool[Array, "*batch"]:
        del params
        return state.x == 0
