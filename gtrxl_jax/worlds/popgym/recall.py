"""POPGym's Autoencode and CountRecall: recite a sequence backwards, and count events."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Int, UInt8

from gtrxl_jax.worlds.base import Step
from gtrxl_jax.worlds.popgym import cards as deck
from gtrxl_jax.worlds.popgym.cards import draw, draw_suits, full_deck, num_cards
from gtrxl_jax.worlds.popgym.task import Task, TaskParams, integer, multi_discrete, reward_answer

PLAY, WATCH = 0, 1
"""The phases of Autoencode."""


@struct.dataclass
class AutoencodeState(environment.EnvState):
    """The state of Autoencode.

    Attributes:
      time: number of actions taken so far.
      left: number of cards left of each suit.
      cards: suits of the cards in the order in which they are shown; zeros beyond the current one.
    """

    left: Int[Array, "4"]
    cards: Int[Array, " N"]


class Autoencode(Task):
    """Watch the cards of N = 52 `num_decks` cards, then name their suits in reverse order.

    The observation is [phase, suit]. In the first N observations the suits are read off the cards;
    the phase is 1 (watch), and 0 (play) from the last card on, when the agent is to name the suit
    of the card that it sees. Later observations are [0, 0]. Actions while watching earn 0, then
    each earns 1 / N for the right suit and -1 / N otherwise. The episode terminates when all cards
    are recited, after 2 N - 1 actions, and the highest return is 1.

    Args:
      num_decks: number of decks that are shuffled together.
    """

    num_actions = deck.SUITS

    def __init__(self, num_decks: int = 1):
        super().__init__()
        self.num_cards = num_cards(num_decks)
        self.episode_length = 2 * self.num_cards - 1

    def reset_env(
        self, key: jax.Array, params: TaskParams
    ) -> tuple[Int[Array, "2"], AutoencodeState]:
        """Show the first card."""
        card, left = draw(key, full_deck(self.num_cards, deck.SUITS))
        cards = jnp.zeros((self.num_cards,), jnp.int32).at[0].set(card)
        state = AutoencodeState(time=jnp.int32(0), left=left, cards=cards)
        return self.observe(key, state, None, params), state

    def step_env(
        self, key: jax.Array, state: AutoencodeState, action: Any, params: TaskParams
    ) -> Step[Int[Array, "2"], Any]:
        """Show the next card, or judge the answer."""
        is_playing = state.time + 1 >= self.num_cards
        right = integer(action) == self.oracle_action(state, params)
        reward = jnp.where(is_playing, reward_answer(right, 1 / self.num_cards), jnp.float32(0))
        time = state.time + 1
        card, left = draw(key, state.left)
        state = AutoencodeState(
            time=time,
            left=jnp.where(is_playing, state.left, left),
            # Out of bounds while playing, so that nothing is written.
            cards=state.cards.at[time].set(card, mode="drop"),
        )
        observation = self.observe(key, state, action, params)
        return observation, state, reward, time >= self.episode_length, {}

    def observe(
        self, key: jax.Array, state: AutoencodeState, action: Any, params: TaskParams
    ) -> Int[Array, "2"]:
        """Return the phase and the suit of the current card, 0 after the last card."""
        phase = jnp.where(state.time + 1 < self.num_cards, WATCH, PLAY)
        suit = state.cards.at[state.time].get(mode="fill", fill_value=0)
        return jnp.stack([phase, suit]).astype(jnp.int32)

    def oracle_action(self, state: AutoencodeState, params: TaskParams) -> Int[Array, ""]:
        """Return the suit to name; while watching, the suit of the last card, which is ignored."""
        return state.cards[jnp.minimum(2 * (self.num_cards - 1) - state.time, self.num_cards - 1)]

    def observation_space(self, params: TaskParams | None = None) -> spaces.Box:
        """Return the space of [phase, suit]."""
        return multi_discrete([2, deck.SUITS])

    def render(self, state: AutoencodeState, params: TaskParams) -> UInt8[np.ndarray, "H W 3"]:
        """Draw the cards shown so far, and then those still to be recited, see `draw_suits`."""
        shown = min(int(state.time) + 1, self.episode_length - int(state.time))
        is_shown = np.arange(self.num_cards) < shown
        return draw_suits(state.cards, is_shown, int(state.time) / self.episode_length)


@struct.dataclass
class CountRecallState(environment.EnvState):
    """The state of CountRecall.

    Attributes:
      time: number of actions taken so far.
      left: number of cards left of each kind.
      queries_left: number of queries left of each kind.
      card: kind of the current card.
      query: kind that is asked for.
    """

    left: Int[Array, " K"]
    queries_left: Int[Array, " K"]
    card: Int[Array, ""]
    query: Int[Array, ""]


class CountRecall(Task):
    """Tell how many cards of a kind have been shown so far.

    The observation is [card, query], two of K kinds; both are drawn without replacement, each from
    N = 52 `num_decks` cards. The action, one of 0 .. N / K, earns 1 / (N - 1) if it is the number
    of cards of the query's kind shown so far, including the current card, and -1 / (N - 1)
    otherwise. The episode terminates with the last card, after N - 1 actions, and the highest
    return is 1.

    Args:
      num_decks: number of decks that are shuffled together.
      kinds: K, 2 for colors, 4 for suits or 13 for ranks.

    Raises:
      ValueError: for another number of kinds.
    """

    def __init__(self, num_decks: int = 1, kinds: int = deck.COLORS):
        super().__init__()
        if kinds not in (deck.COLORS, deck.SUITS, deck.RANKS):
            raise ValueError(f"kinds must be 2 (colors), 4 (suits) or 13 (ranks), got {kinds}")
        self.num_cards, self.kinds = num_cards(num_decks), kinds
        self.episode_length = self.num_cards - 1

    def reset_env(
        self, key: jax.Array, params: TaskParams
    ) -> tuple[Int[Array, "2"], CountRecallState]:
        """Show the first card and the first query."""
        full = full_deck(self.num_cards, self.kinds)
        state = self._deal(key, jnp.int32(0), full, full)
        return self.observe(key, state, None, params), state

    def step_env(
        self, key: jax.Array, state: CountRecallState, action: Any, params: TaskParams
    ) -> Step[Int[Array, "2"], Any]:
        """Judge the answer, then show the next card and query."""
        right = integer(action) == self.oracle_action(state, params)
        reward = reward_answer(right, 1 / self.episode_length)
        state = self._deal(key, state.time + 1, state.left, state.queries_left)
        observation = self.observe(key, state, action, params)
        return observation, state, reward, state.time >= self.episode_length, {}

    def _deal(self, key: jax.Array, time: Array, left: Array, queries: Array) -> CountRecallState:
        key_card, key_query = jax.random.split(key)
        card, left = draw(key_card, left)
        query, queries = draw(key_query, queries)
        return CountRecallState(time=time, left=left, queries_left=queries, card=card, query=query)

    def observe(
        self, key: jax.Array, state: CountRecallState, action: Any, params: TaskParams
    ) -> Int[Array, "2"]:
        """Return the card and the query."""
        return jnp.stack([state.card, state.query])

    def oracle_action(self, state: CountRecallState, params: TaskParams) -> Int[Array, ""]:
        """Return the number of cards of the query's kind shown so far."""
        return self.num_cards // self.kinds - state.left[state.query]

    @property
    def num_actions(self) -> int:
        """The number of actions: the counts from 0 to the number of cards of a kind."""
        return self.num_cards // self.kinds + 1

    def observation_space(self, params: TaskParams | None = None) -> spaces.Box:
        """Return the space of [card, query]."""
        return multi_discrete([self.kinds, self.kinds])
