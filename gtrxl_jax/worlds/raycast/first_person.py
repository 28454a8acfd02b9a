"""The base class of environments that are seen in the first person."""

import abc
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import environment, spaces
from jaxtyping import Array, UInt8

from gtrxl_jax.worlds.raycast.drawing import draw_scene
from gtrxl_jax.worlds.raycast.overhead import beside, draw_overhead
from gtrxl_jax.worlds.raycast.scene import Camera, Scene

StateT = TypeVar("StateT", bound=environment.EnvState)
ParamsT = TypeVar("ParamsT", bound=environment.EnvParams)


class FirstPerson(environment.Environment[StateT, ParamsT], Generic[StateT, ParamsT]):
    """An environment whose observation is the agent's view of a scene: uint8 `[height, width, 3]`.

    Episodes are truncated at the time limit. Renders show the observation beside the scene from
    above.

    Args:
      height: rows of the image.
      width: columns of the image.

    Raises:
      ValueError: if the image is smaller than 8 x 8.
    """

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        if min(height, width) < 8:
            raise ValueError(f"height and width must be at least 8, got {height} and {width}")
        self.height, self.width = height, width
        self._draw = jax.jit(self.observe)

    @abc.abstractmethod
    def scene(self, state: StateT, params: ParamsT) -> Scene:
        """Return the scene to draw."""

    @abc.abstractmethod
    def camera(self, state: StateT, params: ParamsT) -> Camera:
        """Return from where the agent sees it."""

    def observe(
        self, key: jax.Array, state: StateT, action: Any, params: ParamsT
    ) -> UInt8[Array, "R C 3"]:
        """Draw the agent's view."""
        scene, camera = self.scene(state, params), self.camera(state, params)
        return draw_scene(scene, camera, self.height, self.width)

    def observation_space(self, params: ParamsT | None = None) -> spaces.Box:
        """Return the space of images."""
        return spaces.Box(0, 255, (self.height, self.width, 3), jnp.uint8)

    def render(self, state: StateT, params: ParamsT) -> UInt8[np.ndarray, "H W 3"]:
        """Draw the observation beside the scene from above, on the host."""
        image = self._draw(jax.random.key(0), state, None, params)
        above = draw_overhead(self.scene(state, params), self.camera(state, params))
        return beside(np.asarray(image), above)
