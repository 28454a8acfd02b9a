"""Battleship as in POBAX (Tao et al. 2025, arXiv 2508.00046): sink all ships by few shots.

POPGym's version, with other ships, rewards and actions, is in `popgym.boards`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Float, Int, UInt8

from gtrxl_jax.worlds.base import DiscreteActions, Step
from gtrxl_jax.worlds.cells import Cell, draw_cells
from gtrxl_jax.worlds.fleet import (
    BattleshipState,
    afloat,
    free_places,
    guess,
    new_game,
    with_ship,
)
from gtrxl_jax.worlds.popgym.cards import draw

FLEETS = {10: (5, 4, 3, 2), 5: (3, 2), 3: (2,)}
"""The lengths of the ships, in the order in which they are placed, for each size of the board."""


@struct.dataclass
class BattleshipParams(environment.EnvParams):
    """Parameters of Battleship.

    Attributes:
      max_steps_in_episode: time limit in actions, out of reach of legal shots.
      dense_reward: reward each hit by 1, instead of the end.
    """

    max_steps_in_episode: int = 1000
    dense_reward: bool = False


class Battleship(DiscreteActions, environment.Environment[BattleshipState, BattleshipParams]):
    """Shoot at a board of n x n squares until all of its hidden ships are sunk.

    Action a is a shot at row a // n and column a % n. Only squares that have not been shot at are
    legal (`legal_actions`). Every shot earns -1, but the last one n^2, which terminates the
    episode: after s shots, the return is n^2 - s + 1.

    Observation, float32 `[1]`: whether the last shot hit a ship, at a square that had not been
    shot at before; 0 at the start. It does not tell where the shot went, so the agent must know its
    previous action, as agents of this package do, and remember earlier ones with their results.

    Ships are placed one after the other: first the direction is drawn, both being equally likely,
    then one of the places where a ship of this direction finds room. They may touch.

    Args:
      size: number of rows and of columns, n: 10 with ships of 5, 4, 3 and 2 squares, 5 with ships
        of 3 and 2, or 3 with a ship of 2.

    Raises:
      ValueError: for any other size.
    """

    default_params = BattleshipParams()
    """The settings of POBAX."""

    def __init__(self, size: int = 10):
        super().__init__()
        if size not in FLEETS:
            raise ValueError(f"size must be one of {', '.join(map(str, FLEETS))}, got {size}")
        self.size = size

    def reset_env(
        self, key: jax.Array, params: BattleshipParams
    ) -> tuple[Float[Array, "1"], BattleshipState]:
        """Place the ships; nothing is shown."""
        ships = jnp.zeros((self.size, self.size), jnp.bool_)
        for length in FLEETS[self.size]:
            key, key_direction, key_place = jax.random.split(key, 3)
            upright = jax.random.bernoulli(key_direction).astype(jnp.int32)
            is_place = free_places(ships, length) & (jnp.arange(2) == upright)[:, None, None]
            place, _ = draw(key_place, is_place.ravel().astype(jnp.int32))
            ships = with_ship(ships, place, length)
        state = new_game(ships)
        return self.observe(key, state, None, params), state

    def step_env(
        self, key: jax.Array, state: BattleshipState, action: Any, params: BattleshipParams
    ) -> Step[Float[Array, "1"], BattleshipState]:
        """Shoot at a square."""
        row, column = jnp.divmod(jnp.asarray(action, jnp.int32), self.size)
        state, terminated = guess(state, row, column)
        sparse = jnp.where(terminated, self.size**2, -1)
        reward = jnp.where(params.dense_reward, state.hit, sparse).astype(jnp.float32)
        return self.observe(key, state, action, params), state, reward, terminated, {}

    def observe(
        self, key: jax.Array, state: BattleshipState, action: Any, params: BattleshipParams
    ) -> Float[Array, "1"]:
        """Return whether the last shot was a new hit."""
        return state.hit.astype(jnp.float32)[None]

    def legal_actions(self, state: BattleshipState, params: BattleshipParams) -> Bool[Array, " A"]:
        """Return which squares have not been shot at."""
        return ~state.guessed.ravel()

    def oracle_action(self, state: BattleshipState, params: BattleshipParams) -> Int[Array, ""]:
        """Return the first square of a ship that has not been shot at."""
        return jnp.argmax(afloat(state)).astype(jnp.int32)

    @property
    def num_actions(self) -> int:
        """The number of actions: the squares, row by row."""
        return self.size**2

    def observation_space(self, params: BattleshipParams | None = None) -> spaces.Box:
        """Return the space of misses and hits."""
        return spaces.Box(0.0, 1.0, (1,), jnp.float32)

    def render(
        self, state: BattleshipState, params: BattleshipParams
    ) -> UInt8[np.ndarray, "H W 3"]:
        """Draw the board, on the host: hits red, misses blue, the rest of the ships green."""
        ships, guessed = np.asarray(state.ships), np.asarray(state.guessed)
        unseen = np.where(ships, Cell.LIT, Cell.FLOOR)
        cells = np.where(guessed, np.where(ships, Cell.AGENT, Cell.UP), unseen)
        return draw_cells(np.pad(cells, 1, constant_values=Cell.WALL), pixels=24)
