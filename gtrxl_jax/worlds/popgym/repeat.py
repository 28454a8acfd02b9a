"""POPGym's RepeatPrevious and RepeatFirst: name the suit of an earlier card."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Int, UInt8

from gtrxl_jax.worlds.base import Step
from gtrxl_jax.worlds.popgym.cards import SUITS, draw, draw_suits, full_deck, num_cards
from gtrxl_jax.worlds.popgym.task import Task, TaskParams, integer, reward_answer


@struct.dataclass
class RepeatPreviousState(environment.EnvState):
    """The state of RepeatPrevious.

    Attributes:
      time: number of actions taken so far.
      left: number of cards left of each suit.
      recent: suits of the last k cards, oldest first; zeros before the first card.
    """

    left: Int[Array, "4"]
    recent: Int[Array, " k"]


class RepeatPrevious(Task):
    """Name the suit of the card shown k - 1 steps before the current one.

    The observation is the suit of a card, one of 0 .. 3; the cards of N = 52 `num_decks` cards are
    shown without replacement. The action names a suit. From the k-th card on, the answer earns
    1 / (N - k) if it is the suit of the first of the last k cards, and -1 / (N - k) otherwise;
    before, actions earn 0. The episode terminates with the last card, after N - 1 actions, and the
    highest return is 1.

    Args:
      num_decks: number of decks that are shuffled together.
      k: number of most recent cards, the first of which is asked for; k = 1 is the current card.

    Raises:
      ValueError: if k exceeds the number of cards before the last one.
    """

    num_actions = SUITS

    def __init__(self, num_decks: int = 1, k: int = 4):
        super().__init__()
        self.num_cards, self.k = num_cards(num_decks), k
        self.episode_length = self.num_cards - 1
        if not 1 <= k <= self.episode_length:
            raise ValueError(
                f"k must be from 1 to {self.episode_length} for {self.num_cards} cards, got {k}"
            )

    def reset_env(
        self, key: jax.Array, params: TaskParams
    ) -> tuple[Int[Array, ""], RepeatPreviousState]:
        """Show the first card."""
        card, left = draw(key, full_deck(self.num_cards, SUITS))
        recent = jnp.zeros((self.k,), jnp.int32).at[-1].set(card)
        return card, RepeatPreviousState(time=jnp.int32(0), left=left, recent=recent)

    def step_env(
        self, key: jax.Array, state: RepeatPreviousState, action: Any, params: TaskParams
    ) -> Step[Int[Array, ""], Any]:
        """Judge the answer and show the next card."""
        is_asked = state.time + 1 >= self.k
        answer = reward_answer(integer(action) == state.recent[0], 1 / (self.num_cards - self.k))
        card, left = draw(key, state.left)
        state = RepeatPreviousState(
            time=state.time + 1, left=left, recent=jnp.append(state.recent[1:], card)
        )
        reward = jnp.where(is_asked, answer, jnp.float32(0))
        return card, state, reward, state.time >= self.episode_length, {}

    def observe(
        self, key: jax.Array, state: RepeatPreviousState, action: Any, params: TaskParams
    ) -> Int[Array, ""]:
        """Return the suit of the current card."""
        return state.recent[-1]

    def oracle_action(self, state: RepeatPreviousState, params: TaskParams) -> Int[Array, ""]:
        """Return the suit that is asked for."""
        return state.recent[0]

    def observation_space(self, params: TaskParams | None = None) -> spaces.Discrete:
        """Return the space of suits."""
        return spaces.Discrete(SUITS)

    def render(self, state: RepeatPreviousState, params: TaskParams) -> UInt8[np.ndarray, "H W 3"]:
        """Draw the last k cards, the one asked for first, see `draw_suits`."""
        is_shown = np.arange(self.k) >= self.k - 1 - int(state.time)
        return draw_suits(state.recent, is_shown, int(state.time) / self.episode_length)


@struct.dataclass
class RepeatFirstState(environment.EnvState):
    """The state of RepeatFirst.

    Attributes:
      time: number of actions taken so far.
      left: number of cards left of each suit.
      card: suit of the current card.
      first_card: suit of the first card.
    """

    left: Int[Array, "4"]
    card: Int[Array, ""]
    first_card: Int[Array, ""]


class RepeatFirst(Task):
    """Name the suit of the first card at every step.

    Observations, actions and the end of episodes are as in `RepeatPrevious`. With N cards, every
    action earns 1 / (N - 1) if it names the suit of the first card, and -1 / (N - 1) otherwise. The
    first card is not marked as such.

    Args:
      num_decks: number of decks that are shuffled together.
    """

    cue_at_start = True
    num_actions = SUITS

    def __init__(self, num_decks: int = 1):
        super().__init__()
        self.num_cards = num_cards(num_decks)
        self.episode_length = self.num_cards - 1

    def reset_env(
        self, key: jax.Array, params: TaskParams
    ) -> tuple[Int[Array, ""], RepeatFirstState]:
        """Show the first card."""
        card, left = draw(key, full_deck(self.num_cards, SUITS))
        return card, RepeatFirstState(time=jnp.int32(0), left=left, card=card, first_card=card)

    def step_env(
        self, key: jax.Array, state: RepeatFirstState, action: Any, params: TaskParams
    ) -> Step[Int[Array, ""], Any]:
        """Judge the answer and show the next card."""
        reward = reward_answer(integer(action) == state.first_card, 1 / self.episode_length)
        card, left = draw(key, state.left)
        state = state.replace(time=state.time + 1, left=left, card=card)
        return card, state, reward, state.time >= self.episode_length, {}

    def observe(
        self, key: jax.Array, state: RepeatFirstState, action: Any, params: TaskParams
    ) -> Int[Array, ""]:
        """Return the suit of the current card."""
        return state.card

    def oracle_action(self, state: RepeatFirstState, params: TaskParams) -> Int[Array, ""]:
        """Return the suit of the first card."""
        return state.first_card

    def shows_cue(
        self, state: RepeatFirstState, params: TaskParams
    ) -> Bool[Array | np.ndarray, "*batch"]:
        """Return whether the current card is the first one."""
        return state.time == 0

    def observation_space(self, params: TaskParams | None = None) -> spaces.Discrete:
        """Return the space of suits."""
        return spaces.Discrete(SUITS)
