"""Renderers of gymnax's classic control tasks, which draw no images themselves."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnax.environments.classic_control import (
    acrobot,
    cartpole,
    continuous_mountain_car,
    mountain_car,
    pendulum,
)
from jaxtyping import Float, UInt8

from gtrxl_jax.worlds.canvas import Canvas
from gtrxl_jax.worlds.cells import Cell

Image = UInt8[np.ndarray, "H W 3"]


@dataclasses.dataclass(frozen=True)
class Renderer:
    """How an environment is drawn.

    Attributes:
      draw: a function of its state and its parameters, on the host.
      fps: number of steps per second at which an episode is shown.
    """

    draw: Callable[[Any, Any], Image]
    fps: float = 10.0


def draw_cart_pole(state: Any, params: Any) -> Image:
    """Draw the cart and its pole on the track, at whose ends an episode ends."""
    reach, x, angle = float(params.x_threshold), float(state.x), float(state.theta)
    canvas = Canvas((-reach, reach), (-0.7, 1.7), pixels=108)
    canvas.box((0, 0), 2 * reach, 0.02, Cell.WALL)
    canvas.box((x, 0), 0.5, 0.3, Cell.WALL)
    length = 2 * float(params.length)
    canvas.line((x, 0), (x + length * np.sin(angle), length * np.cos(angle)), 0.1, Cell.AGENT)
    canvas.disc((x, 0), 0.04, Cell.FLOOR)
    return canvas.image()


def draw_pendulum(state: Any, params: Any) -> Image:
    """Draw the pendulum, which is upright at an angle of 0."""
    angle = float(state.theta)
    canvas = Canvas((-1.2, 1.2), (-1.2, 1.2), pixels=108)
    canvas.line((0, 0), (-np.sin(angle), np.cos(angle)), 0.16, Cell.AGENT)
    canvas.disc((0, 0), 0.05, Cell.WALL)
    return canvas.image()


def draw_acrobot(state: Any, params: Any) -> Image:
    """Draw both links, and the height that the free end has to reach."""
    first, second = float(state.joint_angle1), float(state.joint_angle2)
    # The environment assumes links of length 1 where it observes and terminates.
    elbow = np.array([np.sin(first), -np.cos(first)])
    end = elbow + (np.sin(first + second), -np.cos(first + second))
    canvas = Canvas((-2.2, 2.2), (-2.2, 2.2), pixels=60)
    canvas.box((0, 1), 4.4, 0.03, Cell.LIT)
    canvas.line((0, 0), elbow, 0.2, Cell.UP)
    canvas.line(elbow, end, 0.2, Cell.AGENT)
    for joint in ((0, 0), elbow):
        canvas.disc(joint, 0.06, Cell.FLOOR)
    return canvas.image()


def draw_mountain_car(state: Any, params: Any) -> Image:
    """Draw the car in its valley, and the flag that it has to reach."""
    canvas = Canvas((params.min_position, params.max_position), (0, 1.2), pixels=216)
    canvas.cells[canvas.y[:, None] <= _height(canvas.x)] = Cell.WALL
    goal, x = float(params.goal_position), float(state.position)
    foot = _height(goal)
    canvas.line((goal, foot), (goal, foot + 0.15), 0.015, Cell.WALL)
    canvas.box((goal + 0.035, foot + 0.13), 0.07, 0.04, Cell.LIT)
    canvas.disc((x, _height(x) + 0.04), 0.04, Cell.AGENT)
    return canvas.image()


def _height(x: float | Float[np.ndarray, " W"]) -> Any:
    """Return the height of the valley, whose slope is proportional to the environment's force."""
    return 0.45 * np.sin(3 * x) + 0.55


RENDERERS = {
    cartpole.CartPole: Renderer(draw_cart_pole, fps=30),
    pendulum.Pendulum: Renderer(draw_pendulum, fps=20),
    acrobot.Acrobot: Renderer(draw_acrobot, fps=15),
    mountain_car.MountainCar: Renderer(draw_mountain_car, fps=30),
    continuous_mountain_car.ContinuousMountainCar: Renderer(draw_mountain_car, fps=30),
}
"""The renderers, by class of environment; they also apply to its subclasses."""
