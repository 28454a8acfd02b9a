"""The Endless T-Maze: a chain of corridors, each with a cue of its own, which replaces the last.

The task is due to Shchendrigin et al. (2026), "Memory Retention Is Not Enough to Master Memory
Tasks in Reinforcement Learning" (arXiv 2601.15086).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Float, Int, UInt8

from gtrxl_jax.worlds.base import DiscreteActions, Step, TimeLimit, require_choice
from gtrxl_jax.worlds.cells import Cell, draw_cells

FORWARD, LEFT, RIGHT = range(3)
"""The actions."""

LENGTHS = ("fixed", "uniform")
"""The distributions of the corridors' lengths, see `EndlessTMazeParams`."""


@struct.dataclass
class EndlessTMazeState(environment.EnvState):
    """The state of the Endless T-Maze.

    Attributes:
      time: number of actions taken so far.
      corridor: number of corridors passed so far.
      x: number of moves from the start of this corridor.
      length: moves from its start to its junction.
      cue: -1 for left and 1 for right.
    """

    corridor: Int[Array, ""]
    x: Int[Array, ""]
    length: Int[Array, ""]
    cue: Int[Array, ""]


@struct.dataclass
class EndlessTMazeParams(environment.EnvParams):
    """Parameters of the Endless T-Maze; each number may be an array.

    Attributes:
      max_steps_in_episode: time limit in actions. None: six times the longest solution.
      num_corridors: n, the number of corridors.
      corridor_length: l, the number of moves from the start of a corridor to its junction.
      lengths: "fixed", all corridors have this length; or "uniform", the length of each is drawn
        from 1 to l.
      step_penalty: the cost of every action that is not a turn at a junction.
      wrong_penalty: the cost of a wrong turn.
      wait_at_junction: whether moving forward at a junction has no effect, instead of being a wrong
        turn.

    Raises:
      ValueError: if `lengths` is unknown.
    """

    max_steps_in_episode: int | None = None
    num_corridors: int = 5
    corridor_length: int = 10
    lengths: str = struct.field(default="fixed", pytree_node=False)
    step_penalty: float = struct.field(default=0.01, metadata={"minimum": 0.0})
    wrong_penalty: float = struct.field(default=1.0, metadata={"minimum": 0.0})
    wait_at_junction: bool = False

    def __post_init__(self) -> None:
        require_choice("lengths", self.lengths, LENGTHS)


class EndlessTMaze(
    DiscreteActions, TimeLimit, environment.Environment[EndlessTMazeState, EndlessTMazeParams]
):
    """Walk through n corridors, and turn at the end of each as the cue at its start says.

    Observation, float32 `[3]`: the cue, one-hot (left, right), at the start of a corridor and 0
    after it; and the number of moves from its start as a share of its length, which is 1 at the
    junction. A right turn earns 1 and leads to the next corridor, with a new cue; the last one
    terminates the episode, and so does a wrong turn, with a reward of -1. Every other action costs
    0.01. A turn inside a corridor has no other effect. At a junction, moving forward is a wrong
    turn. The time limit truncates. `info["success"]` is whether all corridors have been passed,
    `info["corridors"]` their number.

    Rewards and cues are the paper's. It does not publish its settings, and leaves the rest open:
    the actions, the effect of each, and the time limit follow an earlier version of its authors'
    code. There, moves are told as a share of the longest length, so that junctions of corridors of
    random lengths do not look alike, which they do here.
    """

    cue_at_start = True
    default_params = EndlessTMazeParams()
    num_actions = 3
    action_names = ("forward", "left", "right")

    def default_time_limit(self, params: EndlessTMazeParams) -> int | Array:
        return 6 * (params.corridor_length + 1) * params.num_corridors

    def reset_env(
        self, key: jax.Array, params: EndlessTMazeParams
    ) -> tuple[Float[Array, "3"], EndlessTMazeState]:
        """Place the agent at the start of the first corridor."""
        zero = jnp.zeros((), jnp.int32)
        cue, length = self._draw_corridor(key, params)
        state = EndlessTMazeState(time=zero, corridor=zero, x=zero, length=length, cue=cue)
        return self.observe(key, state, None, params), state

    def step_env(
        self, key: jax.Array, state: EndlessTMazeState, action: Any, params: EndlessTMazeParams
    ) -> Step[Float[Array, "3"], EndlessTMazeState]:
        """Move the agent or turn, and compute the reward."""
        action = jnp.asarray(action, jnp.int32)
        at_junction = state.x == state.length
        turned = at_junction & ((action != FORWARD) | ~jnp.asarray(params.wait_at_junction))
        right = at_junction & (action == self._turn(state))
        wrong = turned & ~right
        corridor = state.corridor + right.astype(jnp.int32)
        success = corridor == params.num_corridors
        # The observation after the last turn is the junction's, which shows no cue.
        enters = right & ~success
        forward = (action == FORWARD) & ~at_junction
        cue, length = self._draw_corridor(key, params)
        state = EndlessTMazeState(
            time=state.time + 1,
            corridor=corridor,
            x=jnp.where(enters, 0, state.x + forward.astype(jnp.int32)),
            length=jnp.where(enters, length, state.length),
            cue=jnp.where(enters, cue, state.cue),
        )
        cost, of_wrong = (
            jnp.asarray(x, jnp.float32) for x in (params.step_penalty, params.wrong_penalty)
        )
        reward = jnp.where(turned, jnp.where(right, jnp.float32(1), -of_wrong), -cost)
        info = {"success": success, "corridors": corridor}
        return self.observe(key, state, action, params), state, reward, success | wrong, info

    def observe(
        self, key: jax.Array, state: EndlessTMazeState, action: Any, params: EndlessTMazeParams
    ) -> Float[Array, "3"]:
        """Return `[left, right, share of the corridor]`."""
        cue = jnp.where(self.shows_cue(state, params), state.cue, 0)
        share = state.x.astype(jnp.float32) / state.length.astype(jnp.float32)
        return jnp.stack([(cue < 0).astype(jnp.float32), (cue > 0).astype(jnp.float32), share])

    def oracle_action(self, state: EndlessTMazeState, params: EndlessTMazeParams) -> Int[Array, ""]:
        """Return the shortest solution's action."""
        return jnp.where(state.x == state.length, self._turn(state), FORWARD).astype(jnp.int32)

    def observation_space(self, params: EndlessTMazeParams | None = None) -> spaces.Box:
        """Return the space: all three components lie in [0, 1]."""
        return spaces.Box(0.0, 1.0, (3,), jnp.float32)

    def shows_cue(
        self, state: EndlessTMazeState, params: EndlessTMazeParams
    ) -> Bool[Array | np.ndarray, "*batch"]:
        """Return whether this is the first step of a corridor, or the agent is still there."""
        return state.x == 0

    def render(
        self, state: EndlessTMazeState, params: EndlessTMazeParams
    ) -> UInt8[np.ndarray, "H W 3"]:
        """Draw this corridor from above, on the host.

        The cue and the arm that it indicates are blue (left) or orange (right); the agent is red.
        Below it, the corridors that have been passed are green.
        """
        x, length, cue = int(state.x), int(state.length), int(state.cue)
        longest, corridors = int(params.corridor_length), int(params.num_corridors)
        columns = max(longest + 1, min(corridors, 40)) + 2
        cells = np.full((7, columns), Cell.WALL)
        cells[2, 1 : length + 2] = cells[1:4, length + 1] = Cell.FLOOR
        # The agent faces along the corridor, to the right of the image.
        cells[2, 1] = cells[2 + cue, length + 1] = Cell.UP if cue < 0 else Cell.DOWN
        cells[2, 1 + x] = Cell.AGENT
        shown = min(corridors, columns - 2)
        passed = round(int(state.corridor) * shown / corridors)
        cells[5, 1 : 1 + shown] = np.where(np.arange(shown) < passed, Cell.LIT, Cell.FLOOR)
        return draw_cells(cells, pixels=max(2, min(16, 512 // columns)))

    def _turn(self, state: EndlessTMazeState) -> Int[Array, ""]:
        return jnp.where(state.cue < 0, LEFT, RIGHT)

    def _draw_corridor(
        self, key: jax.Array, params: EndlessTMazeParams
    ) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """Draw the cue and the length of a corridor."""
        key_cue, key_length = jax.random.split(key)
        cue = 2 * jax.random.bernoulli(key_cue).astype(jnp.int32) - 1
        longest = jnp.asarray(params.corridor_length, jnp.int32)
        if params.lengths == "fixed":
            return cue, longest
        return cue, jax.random.randint(key_length, (), 1, longest + 1, jnp.int32)
