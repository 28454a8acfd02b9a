"""The ray caster against marches, projections and searches in plain numpy."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage

from gtrxl_jax.worlds.raycast import (
    Camera,
    Materials,
    Posts,
    Scene,
    Spheres,
    bearing,
    cast_rays,
    distances,
    draw_maze,
    draw_overhead,
    draw_places,
    draw_scene,
    move,
    settle,
)


def random_grid(rng, rows, columns):
    wall_HW = np.ones((rows, columns), np.int32)
    wall_HW[1:-1, 1:-1] = rng.random((rows - 2, columns - 2)) < 0.3
    return wall_HW


def random_open_points(rng, wall_HW, count):
    cells = np.argwhere(wall_HW == 0)
    cell_N2 = cells[rng.integers(len(cells), size=count)][:, ::-1]
    return cell_N2 + rng.uniform(0.12, 0.88, (count, 2))


def is_wall(wall_HW, point_N2):
    column_N, row_N = np.floor(np.moveaxis(point_N2, -1, 0)).astype(int)
    rows, columns = wall_HW.shape
    return wall_HW[np.clip(row_N, 0, rows - 1), np.clip(column_N, 0, columns - 1)] > 0


def test_rays_end_at_first_wall_of_march():
    rng = np.random.default_rng(0)
    wall_HW = random_grid(rng, 9, 14)
    origin_N2 = random_open_points(rng, wall_HW, 400)
    angle_N = rng.uniform(0, 2 * np.pi, 400)
    angle_N[:8] = np.arange(8) * np.pi / 4
    ray_N2 = np.stack([np.cos(angle_N), np.sin(angle_N)], 1) * rng.uniform(0.5, 2, (400, 1))

    @jax.jit
    @jax.vmap
    def cast(origin_2, ray_2):
        return cast_rays(jnp.asarray(wall_HW), origin_2, ray_2[:, None])

    distance_N1, constant_x_N1 = jax.device_get(
        cast(jnp.asarray(origin_N2, jnp.float32), jnp.asarray(ray_N2, jnp.float32))
    )
    distance_N = distance_N1[:, 0].astype(np.float64)
    # Nothing before the distance is a wall, and what is just behind it is.
    fraction_M = np.linspace(0, 1 - 1e-4, 2000)
    march_MN2 = origin_N2 + (fraction_M[:, None] * distance_N)[..., None] * ray_N2
    assert not is_wall(wall_HW, march_MN2).any()
    assert is_wall(wall_HW, origin_N2 + (distance_N + 1e-4)[:, None] * ray_N2).all()
    hit_N2 = origin_N2 + distance_N[:, None] * ray_N2
    axis_N = np.where(constant_x_N1[:, 0], 0, 1)
    line_N = hit_N2[np.arange(400), axis_N]
    np.testing.assert_allclose(line_N, np.round(line_N), atol=1e-5)
    assert 0.2 < constant_x_N1.mean() < 0.8


def test_grid_beyond_word_is_rejected():
    wall_HW = jnp.ones((5, 33), jnp.int32)
    with pytest.raises(ValueError, match=r"at most 32 cells along a side, got \(5, 33\)"):
        cast_rays(wall_HW, jnp.ones(2), jnp.ones((2, 1)))


def picture(objects=None, block=False, size=48):
    """Return the view along x, from x = 1.5, of a corridor that ends at x = 8."""
    wall_HW = np.ones((3, 9), np.int32)
    wall_HW[1, 1:8] = 0
    wall_HW[1, 4] = block
    scene = Scene(
        wall_HW=jnp.asarray(wall_HW),
        floor_HW=jnp.zeros((3, 9), jnp.int32),
        walls=Materials(jnp.asarray([[0.0, 0.0, 1.0]]), jnp.zeros(1)),
        floors=Materials(jnp.asarray([[0.0, 1.0, 0.0]]), jnp.zeros(1)),
        wall_height=jnp.float32(1),
        sky_23=jnp.zeros((2, 3)),
        **(objects or {}),
    )
    camera = Camera(
        position_2=jnp.array([1.5, 1.5]),
        heading=jnp.float32(0),
        height=jnp.float32(0.5),
        field_of_view=jnp.float32(np.pi / 2),
        pitch=jnp.float32(0),
    )
    draw = jax.jit(draw_scene, static_argnums=(2, 3))
    image = np.asarray(draw(scene, camera, size, size))
    return image, draw_overhead(scene, camera)


OBJECTS = {
    "sphere": dict(spheres=Spheres(jnp.array([[6.5, 1.5, 0.5]]), jnp.full(1, 0.4), jnp.eye(1, 3))),
    "post": dict(
        posts=Posts(
            jnp.array([[6.5, 1.5]]), jnp.full(1, 0.4), jnp.array([[0.1, 0.9]]), jnp.eye(1, 3)
        )
    ),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_are_hidden_by_walls(kind):
    def red(image):
        return (image[..., 0] > 100) & (image[..., 1:] == 0).all(-1)

    behind, _ = picture(OBJECTS[kind], block=True)
    assert not red(behind).any()
    # The two are different programs, whose rounding may differ at the edges of a texture.
    assert np.mean(behind != picture(block=True)[0]) < 0.02
    shown, overhead = picture(OBJECTS[kind])
    red_RC = red(shown)
    # At a distance of 5, a half-width of 0.4 covers 0.4 / 5 * 24 pixels to each side.
    assert red_RC.any(0).sum() == pytest.approx(2 * 0.4 / 5 * 24, abs=1)
    assert red_RC.any(1).sum() == pytest.approx(2 * 0.4 / 5 * 24, abs=1)
    np.testing.assert_array_equal(red_RC, red_RC[:, ::-1])
    assert (overhead == [255, 0, 0]).all(-1).any()


def test_wall_and_floor_fill_their_rows():
    image, _ = picture()
    column = image[:, 24]
    is_wall_R, is_floor_R = column[:, 2] > 0, column[:, 1] > 0
    # The end wall, 1 high at a distance of 6.5, is 48 / 2 / 6.5 pixels high.
    assert is_wall_R.sum() == pytest.approx(24 / 6.5, abs=1)
    assert is_floor_R.sum() == pytest.approx(24 - 24 / 6.5 / 2, abs=1)
    assert is_floor_R[-1]
    assert not column[0].any()


def test_bodies_stop_at_walls():
    rng = np.random.default_rng(1)
    wall_HW = random_grid(rng, 10, 12)
    position_N2 = random_open_points(rng, wall_HW, 500)
    step_N2 = rng.uniform(-0.9, 0.9, (500, 2))
    moved = jax.jit(jax.vmap(lambda *x: move(jnp.asarray(wall_HW), *x, 0.1)))
    new_N2, stopped_N2 = jax.device_get(
        moved(jnp.asarray(position_N2, jnp.float32), jnp.asarray(step_N2, jnp.float32))
    )
    for corner in ((-1, -1), (-1, 1), (1, -1), (1, 1)):
        assert not is_wall(wall_HW, new_N2 + 0.0999 * np.array(corner)).any()
    free_N2 = ~stopped_N2
    np.testing.assert_allclose(new_N2[free_N2], (position_N2 + step_N2)[free_N2], atol=1e-5)
    # A stopped body touches the wall, on the side to which it moves.
    front_N2 = (new_N2 + 0.1 * np.sign(step_N2))[stopped_N2]
    np.testing.assert_allclose(front_N2, np.round(front_N2), atol=1e-5)
    assert 50 < stopped_N2.sum() < 950


def test_speed_settles_as_its_equation():
    seconds, lag, wanted = 0.25, 0.19, 1.5
    length, speed = settle(jnp.float32(0.5), jnp.float32(wanted), seconds, lag)
    v, x = 0.5, 0.0
    for _ in range(100_000):
        x += v * seconds / 100_000
        v += (wanted - v) / lag * seconds / 100_000
    np.testing.assert_allclose((length, speed), (x, v), rtol=1e-4)


@pytest.mark.parametrize(("side", "rooms", "longest"), [(11, 6, 5), (17, 9, 3)])
def test_mazes_are_connected_without_dead_ends(side, rooms, longest):
    @jax.jit
    @jax.vmap
    def draw(key):
        maze = draw_maze(key, side, rooms, longest, 0.3)
        return maze, draw_places(key, maze, 4)

    maze, place_BK2 = jax.device_get(draw(jax.random.split(jax.random.key(0), 300)))
    padded_BSS = maze.open_SS.astype(int)
    neighbors_BSS = sum(np.roll(padded_BSS, s, axis) for s in (1, -1) for axis in (1, 2))
    assert (neighbors_BSS[maze.open_SS] >= 2).all()
    border_SS = np.pad(np.zeros((side - 2, side - 2), bool), 1, constant_values=True)
    assert not maze.open_SS[:, border_SS].any()
    assert (maze.open_SS >= maze.is_room_SS).all()
    assert len({row.tobytes() for row in maze.open_SS}) == 300
    for b, open_SS in enumerate(maze.open_SS):
        assert scipy.ndimage.label(open_SS)[1] == 1
        column_K, row_K = place_BK2[b].astype(int).T
        assert open_SS[row_K, column_K].all()
        assert len({*zip(row_K, column_K, strict=True)}) == 4
        room_K = maze.room_NN[b][(row_K - 1) // 2, (column_K - 1) // 2]
        assert len(set(room_K) - {0}) == min(4, maze.room_NN[b].max())


def test_distances_are_of_breadth_first_search():
    wall_SS = random_grid(np.random.default_rng(2), 12, 13)
    open_SS = scipy.ndimage.label(wall_SS == 0)[0] == 1
    row, column = np.argwhere(open_SS)[0]
    found = jax.jit(distances)(jnp.asarray(open_SS), jnp.array([column, row]))
    expected = {(row, column): 0}
    queue = collections.deque(expected)
    while queue:
        i, j = queue.popleft()
        for cell in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
            if open_SS[cell] and cell not in expected:
                expected[cell] = expected[i, j] + 1
                queue.append(cell)
    assert len(expected) == open_SS.sum() > 20
    assert {cell: found[cell] for cell in expected} == expected


def test_bearing_points_along_shortest_way():
    open_HW = jnp.zeros((4, 5), bool).at[1, 1:4].set(True).at[2, 3].set(True)
    position_N2 = jnp.array([(1.5, 1.5), (3.5, 1.5), (3.2, 2.2)])
    heading_N, goal_2 = jnp.array([0.5, -jnp.pi, 0.0]), jnp.array([3.2, 2.7])
    turn = jax.jit(jax.vmap(bearing, (None, 0, 0, None)))
    expected = [-0.5, -np.pi / 2, np.pi / 2]
    np.testing.assert_allclose(turn(open_HW, position_N2, heading_N, goal_2), expected, rtol=1e-5)
