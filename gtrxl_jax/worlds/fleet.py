"""What the versions of Battleship share: ships on a board, and shots at its squares."""

import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment
from jaxtyping import Array, Bool, Int


@struct.dataclass
class BattleshipState(environment.EnvState):
    """The state of Battleship.

    Attributes:
      time: number of actions taken so far.
      ships: which squares ships occupy.
      guessed: which squares have been guessed.
      hit: the current observation, 1 if the last guess hit a square for the first time, else 0.
    """

    ships: Bool[Array, "n n"]
    guessed: Bool[Array, "n n"]
    hit: Int[Array, ""]


def new_game(ships: Bool[Array, "n n"]) -> BattleshipState:
    """Return the state before the first guess."""
    return BattleshipState(
        time=jnp.int32(0), ships=ships, guessed=jnp.zeros_like(ships), hit=jnp.int32(0)
    )


def guess(
    state: BattleshipState, row: Int[Array, ""], column: Int[Array, ""]
) -> tuple[BattleshipState, Bool[Array, ""]]:
    """Guess a square; return the state afterwards, and whether all ships are sunk."""
    hit = state.ships[row, column] & ~state.guessed[row, column]
    state = state.replace(
        time=state.time + 1,
        guessed=state.guessed.at[row, column].set(True),
        hit=hit.astype(jnp.int32),
    )
    return state, ~jnp.any(afloat(state))


def afloat(state: BattleshipState) -> Bool[Array, "n n"]:
    """Return the squares of ships that have not been guessed."""
    return state.ships & ~state.guessed


def free_places(ships: Bool[Array, "n n"], length: int) -> Bool[Array, "2 n n"]:
    """Return where a ship finds room: by its first square, for horizontal and for upright ships."""
    last = len(ships) - length + 1

    def horizontal(taken: Bool[Array, "n n"]) -> Bool[Array, "n n"]:
        blocked = jnp.stack([taken[:, i : i + last] for i in range(length)]).any(axis=0)
        return jnp.pad(~blocked, ((0, 0), (0, length - 1)))

    return jnp.stack([horizontal(ships), horizontal(ships.T).T])


def with_ship(ships: Bool[Array, "n n"], place: Int[Array, ""], length: int) -> Bool[Array, "n n"]:
    """Place a ship at the place of this number, in the layout of `free_places`."""
    upright, row, column = jnp.unravel_index(place, (2, *ships.shape))
    square = jnp.arange(len(ships), dtype=jnp.int32)
    along = jnp.where(upright, square[:, None] - row, (square - column)[None])
    across = jnp.where(upright, (square - column)[None], square[:, None] - row)
    return ships | ((along >= 0) & (along < length) & (across == 0))
