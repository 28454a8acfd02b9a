"""An environment of your own: an agent must repeat, in order, the symbols that it was shown.

    cd examples
    gtrxl train --env.name custom_env:Repeat --env.params length 3 --total-steps 200000

An environment is a gymnax `Environment`. What it knows of itself helps where it is there:
`info["success"]` becomes a score, and `oracle_action` lets `gtrxl collect` play it.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

SYMBOLS = 4


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time`, actions so far; `symbols` `[n]`; `correct`, whether all were right."""

    symbols: jax.Array
    correct: jax.Array


@struct.dataclass
class Params(environment.EnvParams):
    """There is nothing to set but the time limit, which an episode never reaches."""

    max_steps_in_episode: int = 1000


class Repeat(environment.Environment[State, Params]):
    """See n symbols, one a step, then name them in the same order, for 1 / n each.

    The observation is one-hot `[SYMBOLS + 1]`: a symbol, or the last entry when it is time to
    repeat. Actions while symbols are shown have no effect.
    """

    def __init__(self, length: int = 3):
        super().__init__()
        self.length = length

    @property
    def default_params(self) -> Params:
        """The parameters."""
        return Params()

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        """Draw the symbols, and show the first."""
        symbols = jax.random.randint(key, (self.length,), 0, SYMBOLS)
        state = State(time=jnp.int32(0), symbols=symbols, correct=jnp.bool_(True))
        return self._observe(state), state

    def step_env(
        self, key: jax.Array, state: State, action: Any, params: Params
    ) -> tuple[jax.Array, State, jax.Array, jax.Array, dict[str, Any]]:
        """Show the next symbol, or judge the action."""
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
        """Never: an episode has 2 n steps."""
        return jnp.bool_(False)

    def time_limit(self, params: Params) -> int:
        """The number of actions after which an episode has ended."""
        return 2 * self.length

    def oracle_action(self, state: State, params: Params) -> jax.Array:
        """The symbol to name."""
        return state.symbols[jnp.maximum(state.time - self.length, 0)]

    def observation_space(self, params: Params) -> spaces.Box:
        """One-hot symbols."""
        return spaces.Box(0.0, 1.0, (SYMBOLS + 1,))

    def action_space(self, params: Params | None = None) -> spaces.Discrete:
        """A symbol."""
        return spaces.Discrete(SYMBOLS)

    def _observe(self, state: State) -> jax.Array:
        shown = state.symbols[jnp.minimum(state.time, self.length - 1)]
        return jax.nn.one_hot(jnp.where(state.time < self.length, shown, SYMBOLS), SYMBOLS + 1)
