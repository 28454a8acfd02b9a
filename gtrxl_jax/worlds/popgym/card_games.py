"""POPGym's Concentration and HigherLower: pairs of hidden cards, and the next card's rank."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Int

from gtrxl_jax.worlds.base import Step
from gtrxl_jax.worlds.popgym.cards import COLORS, RANKS, draw, full_deck, num_cards
from gtrxl_jax.worlds.popgym.task import Task, TaskParams, integer, multi_discrete, reward_answer

NONE = -1
"""No card is flipped."""


@struct.dataclass
class ConcentrationState(environment.EnvState):
    """The state of Concentration.

    Attributes:
      time: number of actions taken so far.
      cards: kind of the card at each place.
      matched: whether the card at each place lies face up for good.
      shown: whether the current observation shows the card at each place.
      flipped: place of the first flipped card of the running turn, or `NONE`.
    """

    cards: Int[Array, " N"]
    matched: Bool[Array, " N"]
    shown: Bool[Array, " N"]
    flipped: Int[Array, ""]


class Concentration(Task):
    """Find pairs of equal cards among N = 52 `num_decks` cards that lie face down.

    The observation holds the kind 0 .. K - 1 of the card at each of N places, or K for a card face
    down. An action flips the card at a place. Two flipped cards end a turn: if they are of the same
    kind, they stay face up and earn 2 / N; otherwise, or if both are the same card, the turn
    earns -2 / T and both are shown once and turned down again. Flipping a card that already lies
    face up ends the turn, too, with -1 / T for each card flipped in it. Other actions earn 0.

    The episode terminates when all cards lie face up (`info["success"]`), with a return of at
    most 1, and is truncated after T = 104 `num_decks` actions.

    Args:
      num_decks: number of decks that are shuffled together.
      kinds: K, 2 for colors or 13 for ranks.

    Raises:
      ValueError: for another number of kinds.
    """

    def __init__(self, num_decks: int = 1, kinds: int = COLORS):
        super().__init__()
        if kinds not in (COLORS, RANKS):
            raise ValueError(f"kinds must be 2 (colors) or 13 (ranks), got {kinds}")
        cards = num_cards(num_decks)
        self.num_cards, self.kinds = cards, kinds
        self.episode_length = math.ceil(2 * cards - cards / (2 * cards - 1))

    def reset_env(
        self, key: jax.Array, params: TaskParams
    ) -> tuple[Int[Array, " N"], ConcentrationState]:
        """Shuffle the cards and lay them face down."""
        card_N = jnp.arange(self.num_cards, dtype=jnp.int32)
        nowhere = jnp.zeros((self.num_cards,), jnp.bool_)
        state = ConcentrationState(
            time=jnp.int32(0),
            cards=jax.random.permutation(key, card_N % self.kinds),
            matched=nowhere,
            shown=nowhere,
            flipped=jnp.int32(NONE),
        )
        return self.observe(key, state, None, params), state

    def step_env(
        self, key: jax.Array, state: ConcentrationState, action: Any, params: TaskParams
    ) -> Step[Int[Array, " N"], Any]:
        """Flip a card."""
        place, first = integer(action), state.flipped
        is_second = first != NONE
        was_up = state.matched[place]
        pair = self._at(place) | self._at(first)
        is_match = (
            is_second & ~was_up & (place != first) & (state.cards[place] == state.cards[first])
        )
        ends = was_up | is_second
        failure = -(1 + is_second.astype(jnp.float32)) / self.episode_length
        reward = jnp.where(is_match, jnp.float32(2 / self.num_cards), failure)
        state = state.replace(
            time=state.time + 1,
            matched=state.matched | (pair & is_match),
            shown=state.matched | pair,
            flipped=jnp.where(ends, NONE, place),
        )
        reward = jnp.where(ends, reward, jnp.float32(0))
        solved = jnp.all(state.matched)
        observation = self.observe(key, state, action, params)
        return observation, state, reward, solved, {"success": solved}

    def _at(self, place: Int[Array, ""]) -> Bool[Array, " N"]:
        return jnp.arange(self.num_cards) == place

    def observe(
        self, key: jax.Array, state: ConcentrationState, action: Any, params: TaskParams
    ) -> Int[Array, " N"]:
        """Return the kinds of the cards that are shown, and K elsewhere."""
        return jnp.where(state.shown, state.cards, self.kinds)

    def oracle_action(self, state: ConcentrationState, params: TaskParams) -> Int[Array, ""]:
        """Return the place of the first card face down, or of the match of the flipped one."""
        down = ~state.matched & ~self._at(state.flipped)
        fits = (state.flipped == NONE) | (state.cards == state.cards[state.flipped])
        return jnp.argmax(down & fits).astype(jnp.int32)

    @property
    def num_actions(self) -> int:
        """The number of actions: the places."""
        return self.num_cards

    def observation_space(self, params: TaskParams | None = None) -> spaces.Box:
        """Return the space of the cards of all places, of which K is a card face down."""
        return multi_discrete([self.kinds + 1] * self.num_cards)


@struct.dataclass
class HigherLowerState(environment.EnvState):
    """The state of HigherLower.

    Attributes:
      time: number of actions taken so far.
      left: number of cards left of each rank.
      card: rank of the current card.
    """

    left: Int[Array, "13"]
    card: Int[Array, ""]


class HigherLower(Task):
    """Guess whether the next card is higher or lower than the current one.

    The observation is the rank of a card, 0 (ace) .. 12 (king), of N = 52 `num_decks` cards shown
    without replacement. Action 0 guesses higher, 1 lower. A right guess earns 1 / N, a wrong one
    -1 / N, and a card of the same rank 0. The episode terminates with the last card, after N - 1
    actions.

    Args:
      num_decks: number of decks that are shuffled together.
    """

    num_actions = 2

    def __init__(self, num_decks: int = 1):
        super().__init__()
        self.num_cards = num_cards(num_decks)
        self.episode_length = self.num_cards - 1

    def reset_env(
        self, key: jax.Array, params: TaskParams
    ) -> tuple[Int[Array, ""], HigherLowerState]:
        """Show the first card."""
        card, left = draw(key, full_deck(self.num_cards, RANKS))
        return card, HigherLowerState(time=jnp.int32(0), left=left, card=card)

    def step_env(
        self, key: jax.Array, state: HigherLowerState, action: Any, params: TaskParams
    ) -> Step[Int[Array, ""], Any]:
        """Show the next card and judge the guess."""
        card, left = draw(key, state.left)
        right = (card > state.card) == (integer(action) == 0)
        reward = reward_answer(right, 1 / self.num_cards)
        reward = jnp.where(card == state.card, jnp.float32(0), reward)
        state = HigherLowerState(time=state.time + 1, left=left, card=card)
        return card, state, reward, state.time >= self.episode_length, {}

    def observe(
        self, key: jax.Array, state: HigherLowerState, action: Any, params: TaskParams
    ) -> Int[Array, ""]:
        """Return the rank of the current card."""
        return state.card

    def oracle_action(self, state: HigherLowerState, params: TaskParams) -> Int[Array, ""]:
        """Return the best guess of a player who counts the cards."""
        rank = jnp.arange(RANKS)
        higher = jnp.sum(jnp.where(rank > state.card, state.left, 0))
        lower = jnp.sum(jnp.where(rank < state.card, state.left, 0))
        return (lower > higher).astype(jnp.int32)

    def observation_space(self, params: TaskParams | None = None) -> spaces.Discrete:
        """Return the space of ranks."""
        return spaces.Discrete(RANKS)
