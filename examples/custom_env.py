"""A custom environment: the agent must repeat a sequence of symbols.

    cd examples
    gtrxl train --env.name custom_env:Repeat --env.params length 3 --total-steps 200000

A custom environment subclasses gymnax's `Environment`. Two of the optional extensions in
`gtrxl_jax.envs.extensions` are used here: `info["success"]`, which is reported as a score, and
`oracle_action`, with which `gtrxl collect` can collect episodes.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

SYMBOLS = 4


@struct.dataclass
class State(environment.EnvState):
    """The state of an episode, which also includes `time`, the number of actions so far.

    Attributes:
      symbols: `[n]`, the symbols to repeat.
      correct: whether all actions so far were correct.
    """

    symbols: jax.Array
    correct: jax.Array


@struct.dataclass
class Params(environment.EnvParams):
    """The parameters: only a time limit, which episodes never reach."""

    max_steps_in_episode: int = 1000


class Repeat(environment.Environment[State, Params]):
    """Observe n symbols, one per step, then repeat them in order, for a reward of 1 / n each.

    The observation is a one-hot vector `[SYMBOLS + 1]`: a symbol, or the last entry in the phase of
    repeating. Actions have no effect while symbols are shown.
    """

    def __init__(self, length: int = 3):
        super().__init__()
        self.length = length

    @property
    def default_params(self) -> Params:
        """The default parameters."""
        return Params()

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        """Sample the symbols and show the first one."""
        symbols = jax.random.randint(key, (self.length,), 0, SYMBOLS)
        state = State(time=jnp.int32(0), symbols=symbols, correct=jnp.bool_(True))
        return self._observe(state), state

    def step_env(
        self, key: jax.Array, state: State, action: Any, params: Params
    ) -> tuple[jax.Array, State, jax.Array, jax.Array, dict[str, Any]]:
        """Show the next symbol, or reward the action."""
        place = state.time - self.length
        repeating = place >= 0
        right = action == state.symbols[jnp.maximum(place, 0)]
        state = State(
            time=state.time + 1,
            symbols=state.symbols,
            correct=state.correct & (right | ~repeating),
        )
        done = state.time >= 2 * self.length
        reward = jnp.where(repeating & right, 1 / self.length, 0.0)
        return self._observe(state), state, reward, done, {"success": done & state.correct}

    def is_truncated(self, state: State, params: Params) -> jax.Array:
        """Return False: every episode has 2 n actions."""
        return jnp.bool_(False)

    def time_limit(self, params: Params) -> int:
        """Return the number of actions of an episode."""
        return 2 * self.length

    def oracle_action(self, state: State, params: Params) -> jax.Array:
        """Return the symbol to repeat."""
        return state.symbols[jnp.maximum(state.time - self.length, 0)]

    def observation_space(self, params: Params) -> spaces.Box:
        """Return the space of one-hot symbols."""
        return spaces.Box(0.0, 1.0, (SYMBOLS + 1,))

    def action_space(self, params: Params | None = None) -> spaces.Discrete:
        """Return the space of symbols."""
        return spaces.Discrete(SYMBOLS)

    def _observe(self, state: State) -> jax.Array:
        shown = state.symbols[jnp.minimum(state.time, self.length - 1)]
        return jax.nn.one_hot(jnp.where(state.time < self.length, shown, SYMBOLS), SYMBOLS + 1)
