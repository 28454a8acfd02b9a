"""xminigrid's MiniGrid-Memory with gymnax's interface. Requires the extra "envs"."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Float, UInt8

from gtrxl_jax.envs.promotion import standard_dtype_promotion

NUM_TILES = 5
"""The number of tile kinds in the task: nothing (beyond the grid), floor, wall, ball, key."""


@struct.dataclass
class MiniGridState(environment.EnvState):
    """The state of MiniGrid-Memory.

    Attributes:
      time: number of actions taken so far.
      timestep: xminigrid's time step, which contains its state.
    """

    timestep: Any


@struct.dataclass
class MiniGridParams(environment.EnvParams):
    """Parameters of MiniGrid-Memory; its sizes are arguments of the environment.

    Attributes:
      max_steps_in_episode: time limit in actions. None: MiniGrid's 5 * width^2.
    """

    max_steps_in_episode: int | None = None


class MiniGridMemory(environment.Environment[MiniGridState, MiniGridParams]):
    """MiniGrid-Memory: see an object in the room at one end, go to its match at the other end.

    The agent starts anywhere on the middle row, facing the far end. Stepping next to the object
    there that matches the one in the room earns 1 - 0.9 * t / (time limit), stepping next to the
    other earns 0, and both end the episode. `info["success"]` is true for the former.

    The observation is the square of side `view_size` in front of the agent, which stands in the
    middle of its last row and sees through walls. Each cell is one-hot over `NUM_TILES` kinds of
    tile, and the square is flattened to float32 of length 5 * view_size^2. Colours are omitted,
    since each tile has a single colour in this task. The actions are 0 forward, 1 turn right, 2
    turn left; the others of xminigrid (pick up, put down, toggle) have no effect in this task.

    Args:
      width: columns of the grid including its outer walls, at least 7; the corridor has `width - 6`
        cells.
      view_size: side of the view, odd and at least 3; 3 in the published experiments.

    Raises:
      ImportError: if xminigrid is not installed.
      ValueError: if the width or the view size is invalid.
    """

    cue_at_start, chance = True, 0.5

    def __init__(self, width: int = 13, view_size: int = 3) -> None:
        super().__init__()
        if width < 7:
            raise ValueError(f"width must be at least 7, got {width}")
        if view_size < 3 or view_size % 2 == 0:
            raise ValueError(f"view_size must be odd and at least 3, got {view_size}")
        try:
            import xminigrid
            from xminigrid.core.constants import Tiles
        except ImportError as error:
            raise ImportError(
                'MiniGrid-Memory requires xminigrid: pip install "gtrxl_jax[envs]"'
            ) from error
        with standard_dtype_promotion():
            self._env, self._params = xminigrid.make(
                "MiniGrid-MemoryS8", width=width, view_size=view_size
            )
        self._tiles = (Tiles.EMPTY, Tiles.FLOOR, Tiles.WALL, Tiles.BALL, Tiles.KEY)
        self.width = width
        self.view_size = view_size

    @property
    def default_params(self) -> MiniGridParams:
        """The default parameters: MiniGrid's time limit."""
        return MiniGridParams()

    def time_limit(self, params: MiniGridParams) -> int | Array:
        """Return the number of actions after which an episode is truncated."""
        if params.max_steps_in_episode is not None:
            return params.max_steps_in_episode
        return 5 * self.width**2

    def reset_env(
        self, key: jax.Array, params: MiniGridParams
    ) -> tuple[Float[Array, " features"], MiniGridState]:
        """Draw the objects, their positions and the agent's position."""
        with standard_dtype_promotion():
            timestep = self._env.reset(self._inner_params(params), key)
        state = MiniGridState(time=jnp.zeros((), jnp.int32), timestep=timestep)
        return self.observe(key, state, None, params), state

    def step_env(
        self, key: jax.Array, state: MiniGridState, action: Any, params: MiniGridParams
    ) -> tuple[
        Float[Array, " features"],
        MiniGridState,
        Float[Array, ""],
        Bool[Array, ""],
        dict[str, Bool[Array, ""]],
    ]:
        """Take xminigrid's step."""
        action = jnp.asarray(action, jnp.int32)
        with standard_dtype_promotion():
            timestep = self._env.step(self._inner_params(params), state.timestep, action)
        state = state.replace(time=state.time + 1, timestep=timestep)
        reward = jnp.asarray(timestep.reward, jnp.float32)
        observation = self.observe(key, state, action, params)
        return observation, state, reward, timestep.discount == 0, {"success": reward > 0}

    def observe(
        self, key: jax.Array, state: MiniGridState, action: Any, params: MiniGridParams
    ) -> Float[Array, " features"]:
        """Return the view as a flat one-hot array; `key` is not used."""
        del key, action, params
        tile_HW1 = state.timestep.observation[:, :, :1]
        kinds_11N = jnp.asarray(self._tiles, tile_HW1.dtype)[None, None]
        return (tile_HW1 == kinds_11N).astype(jnp.float32).ravel()

    def is_truncated(self, state: MiniGridState, params: MiniGridParams) -> Bool[Array, ""]:
        """Return whether the time limit is reached."""
        return state.time >= self.time_limit(params)

    @property
    def num_actions(self) -> int:
        """The number of actions: forward, turn right, turn left."""
        return 3

    def action_space(self, params: MiniGridParams | None = None) -> spaces.Discrete:
        """Return the space of the three actions: forward, turn right, turn left."""
        return spaces.Discrete(3)

    def observation_space(self, params: MiniGridParams | None = None) -> spaces.Box:
        """Return the space of one-hot values, in [0, 1]."""
        return spaces.Box(0.0, 1.0, (NUM_TILES * self.view_size**2,), jnp.float32)

    def render(self, state: MiniGridState, params: MiniGridParams) -> UInt8[np.ndarray, "H W 3"]:
        """Return xminigrid's image of the grid, the agent and its view, drawn on the host."""
        from xminigrid.rendering.rgb_render import render

        inner = jax.tree.map(np.asarray, state.timestep.state.agent)
        grid = np.asarray(state.timestep.state.grid)
        image = render(grid, inner, self.view_size, tile_size=max(4, min(32, 512 // self.width)))
        return np.asarray(image, np.uint8)

    def _inner_params(self, params: MiniGridParams) -> Any:
        return self._params.replace(max_steps=self.time_limit(params))
