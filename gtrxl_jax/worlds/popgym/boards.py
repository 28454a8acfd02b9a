"""POPGym's MineSweeper and Battleship: boards on which only the last square is observed."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Int

from gtrxl_jax.worlds.base import Step
from gtrxl_jax.worlds.fleet import (
    BattleshipState,
    afloat,
    free_places,
    guess,
    new_game,
    with_ship,
)
from gtrxl_jax.worlds.popgym.cards import draw
from gtrxl_jax.worlds.popgym.task import Task, TaskParams, integer


class Board(Task):
    """A square board, on which an action is a row and a column.

    Args:
      size: number of rows and of columns, n.
    """

    def __init__(self, size: int):
        super().__init__()
        self.size = size

    @property
    def num_actions(self) -> int:
        """The number of actions: the squares."""
        return self.size**2

    def action_space(self, params: TaskParams | None = None) -> spaces.Tuple:
        """Return the space of a row and a column."""
        return spaces.Tuple((spaces.Discrete(self.size), spaces.Discrete(self.size)))

    def _first(self, board: Bool[Array, "n n"]) -> dict[str, Int[Array, "2"]]:
        """Return the action of the first square that is True, in the layout of `ActionSpec`."""
        row, column = jnp.divmod(jnp.argmax(board), self.size)
        return {"discrete": jnp.stack([row, column]).astype(jnp.int32)}


@struct.dataclass
class MineSweeperState(environment.EnvState):
    """The state of MineSweeper.

    Attributes:
      time: number of actions taken so far.
      mines: where mines lie.
      viewed: which squares without mines have been viewed.
      count: the current observation.
    """

    mines: Bool[Array, "n n"]
    viewed: Bool[Array, "n n"]
    count: Int[Array, ""]


class MineSweeper(Board):
    """View all C squares of a board that hold no mine.

    The action is a row and a column; the observation is the number of mines on this square and its
    eight neighbors (0 in the first one). Neither the square nor earlier ones are observed, so the
    agent must know its previous action, as agents of this package do. A new square earns 1 / C, a
    square viewed before -0.5 / (C - 2), and a mine -0.5 - 1 / C. The episode terminates at a mine,
    or when all C squares are viewed (`info["success"]`), with the highest return, 1. It is
    truncated after C actions.

    Args:
      size: number of rows and of columns, n.
      num_mines: number of mines, so that C = n^2 - `num_mines`.

    Raises:
      ValueError: if the mines leave fewer than three squares.
    """

    def __init__(self, size: int = 4, num_mines: int = 2):
        super().__init__(size)
        if not 1 <= num_mines <= size**2 - 3:
            raise ValueError(
                f"num_mines must be from 1 to size^2 - 3 = {size**2 - 3}, got {num_mines}"
            )
        self.num_mines = num_mines
        self.episode_length = size**2 - num_mines

    def reset_env(
        self, key: jax.Array, params: TaskParams
    ) -> tuple[Int[Array, ""], MineSweeperState]:
        """Lay the mines; nothing is shown."""
        square = jnp.arange(self.size**2).reshape(self.size, self.size)
        state = MineSweeperState(
            time=jnp.int32(0),
            mines=jax.random.permutation(key, square.ravel()).reshape(square.shape)
            < self.num_mines,
            viewed=jnp.zeros(square.shape, jnp.bool_),
            count=jnp.int32(0),
        )
        return state.count, state

    def step_env(
        self, key: jax.Array, state: MineSweeperState, action: Any, params: TaskParams
    ) -> Step[Int[Array, ""], Any]:
        """View a square."""
        row, column = integer(action[0]), integer(action[1])
        is_mine = state.mines[row, column]
        clear = self.episode_length
        reward = jnp.where(
            is_mine,
            jnp.float32(-0.5 - 1 / clear),
            jnp.where(state.viewed[row, column], jnp.float32(-0.5 / (clear - 2)), 1 / clear),
        )
        around = jax.lax.dynamic_slice(jnp.pad(state.mines, 1), (row, column), (3, 3))
        viewed = state.viewed.at[row, column].set(~is_mine)
        state = state.replace(
            time=state.time + 1, viewed=viewed, count=jnp.sum(around, dtype=jnp.int32)
        )
        success = jnp.all(viewed | state.mines)
        return state.count, state, reward, is_mine | success, {"success": success}

    def observe(
        self, key: jax.Array, state: MineSweeperState, action: Any, params: TaskParams
    ) -> Int[Array, ""]:
        """Return the number of mines around the last square."""
        return state.count

    def oracle_action(
        self, state: MineSweeperState, params: TaskParams
    ) -> dict[str, Int[Array, "2"]]:
        """Return the first new square without a mine."""
        return self._first(~state.mines & ~state.viewed)

    def observation_space(self, params: TaskParams | None = None) -> spaces.Discrete:
        """Return the space of counts, at most 9."""
        return spaces.Discrete(min(self.num_mines + 1, 10))


class Battleship(Board):
    """Hit all H = 12 squares of four hidden ships, of 2, 3, 3 and 4 squares.

    The action is a row and a column; the observation is 1 if it hit a square of a ship that had not
    been guessed before, and 0 otherwise. As in `MineSweeper`, the agent must know its previous
    action. A hit earns 1 / H, a miss -1 / (n^2 - H), so that guessing every square once has a
    return of 0. The episode terminates when all ships are sunk (`info["success"]`), and is
    truncated after n^2 actions.

    Ships are placed one after the other, each uniformly at random where there is room for it; they
    may touch.

    Args:
      size: number of rows and of columns, n, at least 6, so that every ship finds room.

    Raises:
      ValueError: if the board is too small.
    """

    ship_sizes = (2, 3, 3, 4)

    def __init__(self, size: int = 10):
        super().__init__(size)
        if size < 6:
            raise ValueError(f"size must be at least 6, got {size}")
        self.num_ship_squares = sum(self.ship_sizes)
        self.episode_length = size**2

    def reset_env(
        self, key: jax.Array, params: TaskParams
    ) -> tuple[Int[Array, ""], BattleshipState]:
        """Place the ships; nothing is shown."""
        ships = jnp.zeros((self.size, self.size), jnp.bool_)
        keys = jax.random.split(key, len(self.ship_sizes))
        for length, key_ship in zip(self.ship_sizes, keys, strict=True):
            places = free_places(ships, length).astype(jnp.int32)
            ships = with_ship(ships, draw(key_ship, places.ravel())[0], length)
        state = new_game(ships)
        return state.hit, state

    def step_env(
        self, key: jax.Array, state: BattleshipState, action: Any, params: TaskParams
    ) -> Step[Int[Array, ""], Any]:
        """Guess a square."""
        state, success = guess(state, integer(action[0]), integer(action[1]))
        goal = self.num_ship_squares
        reward = jnp.where(state.hit > 0, jnp.float32(1 / goal), -1 / (self.size**2 - goal))
        return state.hit, state, reward, success, {"success": success}

    def observe(
        self, key: jax.Array, state: BattleshipState, action: Any, params: TaskParams
    ) -> Int[Array, ""]:
        """Return whether the last guess was a hit."""
        return state.hit

    def oracle_action(
        self, state: BattleshipState, params: TaskParams
    ) -> dict[str, Int[Array, "2"]]:
        """Return the first square of a ship that has not been guessed."""
        return self._first(afloat(state))

    def observation_space(self, params: TaskParams | None = None) -> spaces.Discrete:
        """Return the space of misses and hits."""
        return spaces.Discrete(2)
