"""Color-Cubes: where is the cube of this color now? Cubes move, and are seen only when they do.

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

from gtrxl_jax.worlds.base import DiscreteActions, Step, TimeLimit, require_count
from gtrxl_jax.worlds.cells import Cell, draw_cells
from gtrxl_jax.worlds.raycast.routes import FAR, distances

UP, RIGHT, DOWN, LEFT = range(4)
"""The actions."""

LEVELS: dict[str, dict[str, Any]] = {
    "Trivial": dict(size=5, num_cubes=3, num_phases=1, teleport=0.0),
    "Medium": dict(size=5, num_cubes=3, num_phases=3, teleport=0.1),
    "Extreme": dict(size=7, num_cubes=5, num_phases=5, teleport=0.1, hide_colors=True),
}
"""The arguments of `ColorCubes` for the paper's three levels."""

_MOVES = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)], np.int32)
_PALETTE = np.array(
    [(214, 69, 65), (46, 134, 193), (88, 166, 92), (230, 150, 40), (142, 84, 172), (64, 180, 180)],
    np.uint8,
)


@struct.dataclass
class ColorCubesState(environment.EnvState):
    """The state of Color-Cubes.

    Attributes:
      time: number of actions taken so far.
      place_2: the agent's row and column.
      cube_N2: row and column of the cube of each color.
      target: the color of the cube to find.
      found: number of cubes found so far.
      shown: whether the observation shows where the cubes are.
    """

    place_2: Int[Array, "2"]
    cube_N2: Int[Array, "N 2"]
    target: Int[Array, ""]
    found: Int[Array, ""]
    shown: Bool[Array, ""]


@struct.dataclass
class ColorCubesParams(environment.EnvParams):
    """Parameters of Color-Cubes; each may be an array.

    Attributes:
      max_steps_in_episode: time limit in actions. None: four times the side of the grid for each
        phase.
      step_penalty: the cost of every move that does not enter a cube's cell.
    """

    max_steps_in_episode: int | None = None
    step_penalty: float = struct.field(default=0.01, metadata={"minimum": 0.0})


class ColorCubes(
    DiscreteActions, TimeLimit, environment.Environment[ColorCubesState, ColorCubesParams]
):
    """Find the cube of a given color, K times, on a grid on which cubes teleport.

    Agent and cubes start in random cells. Entering the cell of the target earns 1; this cube then
    moves to a random free cell, and another color, drawn from the others, is the target. Entering
    the cell of another cube earns -1 and terminates the episode, as the last target does. Every
    other move costs 0.01; moves off the grid have no effect. After each of these, with a
    probability of `teleport`, a random cube that is not the target moves to a random free cell. The
    time limit truncates. `info["success"]` is whether all phases are over, `info["found"]` how many
    are.

    Observation, float32 `[2 G + N + 2 + 2 G N]`: row and column of the agent, each one-hot; the
    target, one-hot; whether cubes are shown with their colors, and whether they are shown without;
    and row and column of each cube, each one-hot. Cubes are shown at the first step, and whenever
    one of them has moved; otherwise these entries are 0. With `hide_colors`, only the first step
    shows colors; later ones list the cubes row by row, so that an agent has to infer from where
    they were which one has moved.

    The paper does not publish its settings: the sizes, the rewards, the shape of the observation
    and that entering a cell is an interaction are this package's choices.

    Args:
      size: number of rows and of columns, G.
      num_cubes: number of cubes and of colors, N.
      num_phases: number of targets, K.
      teleport: probability with which a cube moves after a move of the agent.
      hide_colors: show colors at the first step only.

    Raises:
      ValueError: if the cubes do not fit into the grid, or an argument is out of range.
    """

    cue_at_start = True
    default_params = ColorCubesParams()
    num_actions = 4
    action_names = ("up", "right", "down", "left")

    def __init__(
        self,
        size: int = 5,
        num_cubes: int = 3,
        num_phases: int = 3,
        teleport: float = 0.1,
        hide_colors: bool = False,
    ):
        super().__init__()
        if size < 2:
            raise ValueError(f"size must be at least 2, got {size}")
        if not 2 <= num_cubes <= size**2 - 2:
            raise ValueError(
                f"num_cubes must be from 2 to size^2 - 2 = {size**2 - 2}, got {num_cubes}"
            )
        require_count("num_phases", num_phases)
        if not 0 <= teleport <= 1:
            raise ValueError(f"teleport must be from 0 to 1, got {teleport}")
        self.size, self.num_cubes, self.num_phases = size, num_cubes, num_phases
        self.teleport, self.hide_colors = teleport, hide_colors

    def default_time_limit(self, params: ColorCubesParams) -> int | Array:
        return 4 * self.size * self.num_phases

    def reset_env(
        self, key: jax.Array, params: ColorCubesParams
    ) -> tuple[Float[Array, " F"], ColorCubesState]:
        """Draw the cells and the first target, and show the cubes."""
        key_cell, key_target = jax.random.split(key)
        cell_M = jax.random.permutation(key_cell, self.size**2)[: self.num_cubes + 1]
        place_M2 = self._place(cell_M)
        state = ColorCubesState(
            time=jnp.zeros((), jnp.int32),
            place_2=place_M2[0],
            cube_N2=place_M2[1:],
            target=jax.random.randint(key_target, (), 0, self.num_cubes, jnp.int32),
            found=jnp.zeros((), jnp.int32),
            shown=jnp.ones((), jnp.bool_),
        )
        return self.observe(key, state, None, params), state

    def step_env(
        self, key: jax.Array, state: ColorCubesState, action: Any, params: ColorCubesParams
    ) -> Step[Float[Array, " F"], ColorCubesState]:
        """Move the agent, then at most one cube."""
        key_any, key_other, key_cell = jax.random.split(key, 3)
        move_2 = jnp.asarray(_MOVES)[jnp.asarray(action, jnp.int32)]
        place_2 = jnp.clip(state.place_2 + move_2, 0, self.size - 1)
        entered_N = jnp.all(state.cube_N2 == place_2[None], axis=1)
        hit = entered_N[state.target]
        wrong = jnp.any(entered_N) & ~hit

        step = jax.random.randint(key_other, (), 1, self.num_cubes, jnp.int32)
        other = (state.target + step) % self.num_cubes
        teleports = jax.random.bernoulli(key_any, self.teleport) & ~wrong
        moving = jnp.where(hit, state.target, other)
        moved_N2 = state.cube_N2.at[moving].set(self._free_place(key_cell, place_2, state.cube_N2))
        shown = hit | teleports
        found = state.found + hit.astype(jnp.int32)
        success = found == self.num_phases
        state = state.replace(
            time=state.time + 1,
            place_2=place_2,
            cube_N2=jnp.where(shown, moved_N2, state.cube_N2),
            target=jnp.where(hit, other, state.target),
            found=found,
            shown=shown,
        )
        cost = jnp.asarray(params.step_penalty, jnp.float32)
        reward = jnp.where(hit, jnp.float32(1), jnp.where(wrong, jnp.float32(-1), -cost))
        info = {"success": success, "found": found}
        return self.observe(key, state, action, params), state, reward, success | wrong, info

    def observe(
        self, key: jax.Array, state: ColorCubesState, action: Any, params: ColorCubesParams
    ) -> Float[Array, " F"]:
        """Return the observation: the agent, the target and, where they are shown, the cubes."""
        has_colors = (state.time == 0) | (not self.hide_colors)
        by_row_N = jnp.argsort(self._cell(state.cube_N2))
        cube_N2 = jnp.where(has_colors, state.cube_N2, state.cube_N2[by_row_N])
        cubes = jax.nn.one_hot(cube_N2, self.size, dtype=jnp.float32).ravel()
        flag_2 = jnp.stack([has_colors, ~has_colors]) & state.shown
        return jnp.concatenate(
            [
                jax.nn.one_hot(state.place_2, self.size, dtype=jnp.float32).ravel(),
                jax.nn.one_hot(state.target, self.num_cubes, dtype=jnp.float32),
                flag_2.astype(jnp.float32),
                jnp.where(state.shown, cubes, 0),
            ]
        )

    def oracle_action(self, state: ColorCubesState, params: ColorCubesParams) -> Int[Array, ""]:
        """Return a move of the shortest way to the target past the other cubes.

        Where there is none, it stays clear of them.
        """
        row_N, column_N = state.cube_N2.T + 1
        goal_2 = state.cube_N2[state.target] + 1
        side = self.size + 2
        open_HW = jnp.zeros((side, side), jnp.bool_).at[1:-1, 1:-1].set(True)
        open_HW = open_HW.at[row_N, column_N].set(False).at[goal_2[0], goal_2[1]].set(True)
        next_42 = jnp.clip(state.place_2[None] + jnp.asarray(_MOVES), 0, self.size - 1) + 1
        row_4, column_4 = next_42.T
        distance_4 = distances(open_HW, goal_2[::-1])[row_4, column_4]
        closed_4 = jnp.where(open_HW[row_4, column_4], 0.0, FAR)
        return jnp.argmin(distance_4 + closed_4).astype(jnp.int32)

    def observation_space(self, params: ColorCubesParams | None = None) -> spaces.Box:
        """Return the space: all entries lie in [0, 1]."""
        features = 2 * self.size * (1 + self.num_cubes) + self.num_cubes + 2
        return spaces.Box(0.0, 1.0, (features,), jnp.float32)

    def shows_cue(
        self, state: ColorCubesState, params: ColorCubesParams
    ) -> Bool[Array | np.ndarray, "*batch"]:
        """Return whether the observation shows where the cubes are."""
        return state.shown

    def render(
        self, state: ColorCubesState, params: ColorCubesParams
    ) -> UInt8[np.ndarray, "H W 3"]:
        """Draw the grid, on the host: the agent is red, the bar below it has the target's color.

        Cubes are whole where the observation shows them, and otherwise frames.
        """
        pixels, side = 24, self.size + 2
        cells = np.full((side, side), Cell.WALL)
        cells[1:-1, 1:-1] = Cell.FLOOR
        image = draw_cells(cells, pixels)

        def paint(row: int, column: int, color: Any, margin: int) -> None:
            top, left = pixels * row + margin, pixels * column + margin
            image[top : top + pixels - 2 * margin, left : left + pixels - 2 * margin] = color

        colors = _PALETTE[1 + np.arange(self.num_cubes) % (len(_PALETTE) - 1)]
        for (row, column), color in zip((state.cube_N2 + 1).tolist(), colors, strict=True):
            paint(row, column, color, 4)
            if not state.shown:
                paint(row, column, draw_cells(np.full((1, 1), Cell.FLOOR), 1)[0, 0], 7)
        row, column = (state.place_2 + 1).tolist()
        paint(row, column, _PALETTE[0], 6)
        for column in range(1, side - 1):
            paint(side - 1, column, colors[int(state.target)], 4)
        return image

    def _cell(self, place_N2: Int[Array, "N 2"]) -> Int[Array, " N"]:
        return place_N2[:, 0] * self.size + place_N2[:, 1]

    def _place(self, cell: Int[Array, "*N"]) -> Int[Array, "*N 2"]:
        """Return row and column of cells, which are counted row by row."""
        return jnp.stack(jnp.divmod(cell.astype(jnp.int32), self.size), axis=-1)

    def _free_place(
        self, key: jax.Array, place_2: Int[Array, "2"], cube_N2: Int[Array, "N 2"]
    ) -> Int[Array, "2"]:
        """Draw one of the cells that have neither the agent nor a cube."""
        taken_M = self._cell(jnp.concatenate([place_2[None], cube_N2]))
        logit_C = jnp.zeros(self.size**2, jnp.float32).at[taken_M].set(-jnp.inf)
        return self._place(jax.random.categorical(key, logit_C))
