"""Pictures of classic control: what they show is where the state says it is."""

import numpy as np
import pytest

from gtrxl_jax.envs.extensions import renderer_of, require_renderer
from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.worlds.canvas import Canvas
from gtrxl_jax.worlds.cells import Cell, draw_cells

RED = draw_cells(np.array([[Cell.AGENT]]), 1)[0, 0]

STATES = {
    "CartPole-v1": dict(x=0.0, theta=0.0),
    "Pendulum-v1": dict(theta=0.0),
    "Acrobot-v1": dict(joint_angle1=0.0, joint_angle2=0.0),
    "MountainCar-v0": dict(position=-0.5),
    "MountainCarContinuous-v0": dict(position=-0.5),
    "PositionOnlyCartPoleEasy-v0": dict(x=0.0, theta=0.0),
}


class State:
    def __init__(self, **fields):
        vars(self).update({name: np.float32(value) for name, value in fields.items()})


def red(name, **changes):
    """Draw a state; return the mean column and row of its red pixels, from -1 to 1, y upwards."""
    env, params = make_env(name)
    image = require_renderer(env).draw(State(**STATES[name] | changes), params)
    assert image.dtype == np.uint8
    assert min(image.shape[:2]) >= 256
    rows, columns = np.nonzero((image == RED).all(axis=-1))
    height, width, _ = image.shape
    return 2 * columns.mean() / width - 1, 1 - 2 * rows.mean() / height


@pytest.mark.parametrize("name", STATES)
def test_every_state_has_a_picture(name):
    x, y = red(name)
    assert -1 < x < 1
    assert -1 < y < 1


def test_pole_leans_and_moves_with_the_cart():
    upright, leaning, moved = (
        red("CartPole-v1", **state) for state in ({}, {"theta": 0.2}, {"x": 1.2})
    )
    assert abs(upright[0]) < 0.01
    assert 0.02 < leaning[0] < 0.1
    assert abs(moved[0] - 0.5) < 0.01


def test_pendulum_points_where_its_observation_does():
    """Its observation is (cos, sin); the angle grows to the left of upright."""
    for angle in (0.0, 2.0, -1.0, np.pi):
        x, y = red("Pendulum-v1", theta=angle)
        np.testing.assert_allclose([x, y], [-np.sin(angle) / 2.4, np.cos(angle) / 2.4], atol=0.03)


def test_free_end_of_acrobot():
    x, y = red("Acrobot-v1", joint_angle1=np.pi / 2, joint_angle2=np.pi / 2)
    np.testing.assert_allclose([x, y], [1 / 2.2, 0.5 / 2.2], atol=0.02)


def test_car_is_at_its_position():
    for position in (-1.0, 0.3):
        x, _ = red("MountainCar-v0", position=position)
        assert abs(x - (position + 0.3) / 0.9) < 0.01
    assert red("MountainCar-v0", position=0.4)[1] > red("MountainCar-v0")[1] + 1


def test_environment_without_picture_raises():
    """That of gymnax draws a figure of matplotlib."""
    env, _ = make_env("Catch-bsuite")
    assert renderer_of(env) is None
    with pytest.raises(ValueError, match="Catch-bsuite cannot be drawn: give it a method `render`"):
        require_renderer(env)


def test_shapes_of_canvas():
    canvas = Canvas((0, 4), (0, 2), pixels=10)
    canvas.line((1, 1), (3, 1), 0.44, Cell.AGENT)
    x, y = np.meshgrid(canvas.x, canvas.y)
    expected = np.hypot(x - np.clip(x, 1, 3), y - 1) <= 0.22
    np.testing.assert_array_equal(canvas.cells == Cell.AGENT, expected)
    canvas.box((4, 2), 2, 1, Cell.UP)  # partly outside
    np.testing.assert_array_equal(canvas.cells == Cell.UP, (x >= 3) & (y >= 1.5))
    assert canvas.image().shape == (20, 40, 3)
    np.testing.assert_array_equal(canvas.image()[0, -1], draw_cells(np.array([[Cell.UP]]), 1)[0, 0])
