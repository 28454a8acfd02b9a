"""RockSample: which rocks are worth sampling, according to a sensor that errs with distance.

The task is due to Smith and Simmons (2004), "Heuristic Search Value Iteration for POMDPs". The
rules, rewards and observations follow POBAX (Tao et al. 2025, arXiv 2508.00046).
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

NORTH, EAST, SOUTH, WEST, SAMPLE, FIRST_CHECK = range(6)
"""The actions. `FIRST_CHECK` + i checks rock i."""

_MOVES = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)], np.int32)


@struct.dataclass
class RockSampleState(environment.EnvState):
    """The state of RockSample.

    Attributes:
      time: number of actions taken so far.
      place_2: the agent's row and column.
      good_K: which rocks are good. A rock that is sampled becomes bad.
      discounted_return: discounted sum of the rewards so far.
    """

    place_2: Int[Array, "2"]
    good_K: Bool[Array, " K"]
    discounted_return: Float[Array, ""]


@struct.dataclass
class RockSampleParams(environment.EnvParams):
    """Parameters of RockSample; each may be an array.

    Attributes:
      max_steps_in_episode: time limit in actions.
      rock_K2: row and column of each rock, all different and none in the last column.
      half_efficiency_distance: the distance at which the sensor's advantage over chance is halved.
      good_rock_reward: reward for sampling a good rock.
      bad_rock_reward: reward for sampling a bad rock.
      exit_reward: reward for entering the last column.
      discount: the discount per step of `info["discounted_return"]`, the score of POBAX.
    """

    max_steps_in_episode: int = 1000
    rock_K2: Int[Array | np.ndarray, "K 2"] = struct.field(kw_only=True)
    half_efficiency_distance: float = struct.field(default=20.0, metadata={"minimum": 1e-3})
    good_rock_reward: float = 10.0
    bad_rock_reward: float = -10.0
    exit_reward: float = 10.0
    discount: float = 0.99


class RockSample(DiscreteActions, environment.Environment[RockSampleState, RockSampleParams]):
    """Sample good rocks on a grid of n x n cells, and leave it through the last column.

    The agent starts in a random cell outside of the last column. Each of the K rocks is good or bad
    with equal probability, drawn at reset; their places are known and the same in all episodes.
    Moves off the grid have no effect. Sampling a rock earns 10 if it is good, -10 if it is bad, and
    leaves it bad; elsewhere sampling has no effect. A check of a rock at distance d reads its
    quality, right with probability (1 + 2^(-d / 20)) / 2. Entering the last column earns 10 and
    terminates the episode. It is truncated after 1000 actions. `info["discounted_return"]` is the
    sum of the rewards so far, discounted by 0.99 per step.

    Observation, float32 `[2 n + K]`: the row and the column of the agent, each one-hot, then for
    each rock the reading of this step's check, 1 good and -1 bad; 0 for rocks not checked.

    Args:
      size: number of rows and of columns, n.
      num_rocks: K.
      map_seed: the seed from which the places of the rocks are drawn, uniformly without
        replacement from all cells outside of the last column: the map of a run of POBAX with this
        seed.

    Raises:
      ValueError: if the rocks do not fit into the grid.
    """

    def __init__(self, size: int = 11, num_rocks: int = 11, map_seed: int = 0):
        super().__init__()
        if size < 2:
            raise ValueError(f"size must be at least 2, got {size}")
        if not 1 <= num_rocks <= size * (size - 1):
            raise ValueError(
                f"num_rocks must be from 1 to size * (size - 1) = {size * (size - 1)}, "
                f"got {num_rocks}"
            )
        self.size, self.num_rocks = size, num_rocks
        with jax.ensure_compile_time_eval():
            # As in POBAX, whose runs derive this key from their seed.
            key = jax.random.split(jax.random.split(jax.random.PRNGKey(map_seed))[0])[0]
            cell_K = jax.random.choice(key, size * (size - 1), (num_rocks,), replace=False)
            self._rock_K2 = np.asarray(self._place(cell_K), np.int32)

    @property
    def default_params(self) -> RockSampleParams:
        """The default parameters, POBAX's."""
        return RockSampleParams(rock_K2=self._rock_K2)

    def reset_env(
        self, key: jax.Array, params: RockSampleParams
    ) -> tuple[Float[Array, " F"], RockSampleState]:
        """Draw the agent's cell and the quality of the rocks."""
        self._require_rocks(params.rock_K2)
        key_good, key_cell = jax.random.split(key)
        state = RockSampleState(
            time=jnp.zeros((), jnp.int32),
            place_2=self._place(jax.random.randint(key_cell, (), 0, self.size * (self.size - 1))),
            good_K=jax.random.bernoulli(key_good, shape=(self.num_rocks,)),
            discounted_return=jnp.zeros((), jnp.float32),
        )
        return self.observe(key, state, None, params), state

    def step_env(
        self, key: jax.Array, state: RockSampleState, action: Any, params: RockSampleParams
    ) -> Step[Float[Array, " F"], RockSampleState]:
        """Move the agent, sample or check a rock."""
        action = jnp.asarray(action, jnp.int32)
        here_K = jnp.all(self._away(state, params) == 0, axis=1) & (action == SAMPLE)
        value_K = jnp.where(state.good_K, params.good_rock_reward, params.bad_rock_reward)
        move_2 = jnp.where(action < SAMPLE, jnp.asarray(_MOVES)[action % len(_MOVES)], 0)
        place_2 = jnp.clip(state.place_2 + move_2, 0, self.size - 1)
        terminated = place_2[1] == self.size - 1
        reward = jnp.sum(jnp.where(here_K, value_K, 0)) + jnp.where(
            terminated, params.exit_reward, 0
        )
        reward = reward.astype(jnp.float32)
        gamma = jnp.asarray(params.discount, jnp.float32)
        discount = jnp.power(gamma, state.time.astype(jnp.float32))
        state = state.replace(
            time=state.time + 1,
            place_2=place_2,
            good_K=state.good_K & ~here_K,
            discounted_return=state.discounted_return + discount * reward,
        )
        observation = self.observe(key, state, action, params)
        info = {"discounted_return": state.discounted_return}
        return observation, state, reward, terminated, info

    def observe(
        self, key: jax.Array, state: RockSampleState, action: Any, params: RockSampleParams
    ) -> Float[Array, " F"]:
        """Return the observation after an action, None for the first one.

        Whether a check is right is drawn from `key`.
        """
        checked = -1 if action is None else jnp.asarray(action, jnp.int32) - FIRST_CHECK
        distance_K = jnp.linalg.norm(self._away(state, params).astype(jnp.float32), axis=1)
        chance_K = (1 + jnp.exp2(-distance_K / params.half_efficiency_distance)) / 2
        is_right_K = jax.random.uniform(key, dtype=jnp.float32) < chance_K
        reading_K = jnp.where(state.good_K == is_right_K, 1, -1)
        rock_K = jnp.arange(self.num_rocks, dtype=jnp.int32)
        reading_K = jnp.where(rock_K == checked, reading_K, 0)
        place_2N = jax.nn.one_hot(state.place_2, self.size, dtype=jnp.float32)
        return jnp.concatenate([place_2N.ravel(), reading_K.astype(jnp.float32)])

    def oracle_action(self, state: RockSampleState, params: RockSampleParams) -> Int[Array, ""]:
        """Return an action with the highest undiscounted return: all good rocks, then the exit.

        The next rock is the nearest one, counted in moves, which need not give the shortest tour.
        """
        away_K2 = self._away(state, params)
        moves_K = jnp.where(state.good_K, jnp.sum(jnp.abs(away_K2), axis=1), 2 * self.size)
        down, right = away_K2[jnp.argmin(moves_K)]
        along = jnp.where(right > 0, EAST, jnp.where(right < 0, WEST, SAMPLE))
        to_rock = jnp.where(down > 0, SOUTH, jnp.where(down < 0, NORTH, along))
        return jnp.where(jnp.any(state.good_K), to_rock, EAST).astype(jnp.int32)

    @property
    def num_actions(self) -> int:
        """The number of actions: north, east, south, west, sample, and a check of each rock."""
        return FIRST_CHECK + self.num_rocks

    def observation_space(self, params: RockSampleParams | None = None) -> spaces.Box:
        """Return the space: one-hot row and column, readings in [-1, 1]."""
        low = np.repeat(np.array([0, -1], np.float32), (2 * self.size, self.num_rocks))
        return spaces.Box(low, 1.0, low.shape, jnp.float32)

    def render(
        self, state: RockSampleState, params: RockSampleParams
    ) -> UInt8[np.ndarray, "H W 3"]:
        """Draw the grid, on the host: good rocks blue, bad ones orange, the exit green."""
        cells = np.full((self.size, self.size), Cell.FLOOR)
        cells[:, -1] = Cell.LIT
        cells[tuple(np.asarray(params.rock_K2).T)] = np.where(state.good_K, Cell.UP, Cell.DOWN)
        cells[tuple(np.asarray(state.place_2))] = Cell.AGENT
        return draw_cells(np.pad(cells, 1, constant_values=Cell.WALL), pixels=24)

    def _require_rocks(self, rock_K2: Any) -> None:
        """Raise ValueError unless these are the places of K rocks; tracers only by their shape."""
        if np.shape(rock_K2) != (self.num_rocks, 2):
            raise ValueError(
                f"rock_K2 must have the shape ({self.num_rocks}, 2), a row and a column for each "
                f"rock, got {np.shape(rock_K2)}"
            )
        if isinstance(rock_K2, jax.core.Tracer):
            return
        rock_K2 = np.asarray(rock_K2)
        is_cell_K2 = (rock_K2 >= 0) & (rock_K2 < [self.size, self.size - 1]) & (rock_K2 % 1 == 0)
        if not is_cell_K2.all() or len(np.unique(rock_K2, axis=0)) < self.num_rocks:
            raise ValueError(
                f"rock_K2 must be different cells, of a row from 0 to {self.size - 1} and a column "
                f"from 0 to {self.size - 2}, before the exit; got {rock_K2.tolist()}"
            )

    def _away(self, state: RockSampleState, params: RockSampleParams) -> Int[Array, "K 2"]:
        """Return how many rows down and columns to the right of the agent each rock is."""
        return jnp.asarray(params.rock_K2, jnp.int32) - state.place_2[None]

    def _place(self, cell: Int[Array, "*K"]) -> Int[Array, "*K 2"]:
        """Return the row and the column of cells, which are numbered column by column."""
        column, row = jnp.divmod(cell, self.size)
        return jnp.stack([row, column], axis=-1).astype(jnp.int32)
