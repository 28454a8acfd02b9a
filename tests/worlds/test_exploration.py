"""What is in sight in a maze, against marches in plain numpy, and the explorer of Memory Maze."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.acting.rollout import begin, rollout
from gtrxl_jax.acting.scripted import ExplorerPolicy
from gtrxl_jax.envs import Stream, make_env
from gtrxl_jax.worlds.raycast import blank_notes, draw_maze, explore, look
from gtrxl_jax.worlds.raycast.exploration import OPEN, UNSEEN, WALL

FIELD_OF_VIEW = np.float32(np.deg2rad(80))
see = jax.jit(look)


def naive_sight(wall_SS, position_2, heading):
    """Return the seen cells by marches; NaN for cells at the edge of the view or past a corner."""
    seen_SS = np.zeros(wall_SS.shape)
    for row, column in np.ndindex(wall_SS.shape):
        ray_2 = np.array([column, row]) + 0.5 - position_2
        off = np.angle(np.exp(1j * (np.arctan2(ray_2[1], ray_2[0]) - heading)))
        verdicts = set()
        for shift in (-2e-3, 0.0, 2e-3):
            across_2 = shift * np.array([-ray_2[1], ray_2[0]]) / np.linalg.norm(ray_2)
            march_M2 = position_2 + across_2 + np.linspace(0, 1, 4000)[:, None] * ray_2
            column_M, row_M = np.floor(march_M2).astype(int).T
            is_wall_M = wall_SS[row_M, column_M] > 0
            is_own_M = (row_M == row) & (column_M == column)
            blocked = (is_wall_M & ~is_own_M).any()
            verdicts.add(not blocked and bool(abs(off) <= FIELD_OF_VIEW / 2 + shift))
        here = (np.floor(position_2) == (column, row)).all()
        seen_SS[row, column] = 1 if here else verdicts.pop() if len(verdicts) == 1 else np.nan
    return seen_SS


def test_sight_matches_march():
    maze = draw_maze(jax.random.key(0), 11, 6, 5, 0.3)
    wall_SS = np.asarray(~maze.open_SS).astype(np.int8)
    rng = np.random.default_rng(0)
    cells = np.argwhere(wall_SS == 0)[:, ::-1]
    compared, seen = 0, 0
    for _ in range(12):
        position_2 = (cells[rng.integers(len(cells))] + rng.uniform(0.12, 0.88, 2)).astype("f")
        heading = np.float32(rng.uniform(-np.pi, np.pi))
        target_N2 = (cells[rng.permutation(len(cells))[:6]] + 0.5).astype("f")
        sight = jax.device_get(see(wall_SS, target_N2, position_2, heading, FIELD_OF_VIEW))
        naive_SS = naive_sight(wall_SS, position_2.astype(np.float64), float(heading))
        is_sure_SS = ~np.isnan(naive_SS)
        np.testing.assert_array_equal(
            sight.cell_SS[is_sure_SS] != UNSEEN, naive_SS[is_sure_SS].astype(bool)
        )
        true_SS = np.where(wall_SS > 0, WALL, OPEN)
        is_seen_SS = sight.cell_SS != UNSEEN
        np.testing.assert_array_equal(sight.cell_SS[is_seen_SS], true_SS[is_seen_SS])
        column_N, row_N = np.floor(target_N2).astype(int).T
        np.testing.assert_array_equal(sight.is_seen_N, is_seen_SS[row_N, column_N])
        np.testing.assert_array_equal(sight.target_N2[~sight.is_seen_N], 0)
        compared, seen = compared + is_sure_SS.sum(), seen + is_seen_SS.sum()
    assert compared > 1200
    assert 60 < seen < 600


def test_unknown_target_is_searched_and_known_one_approached():
    """In a corridor, with the target behind the viewer."""
    wall_SS = np.ones((9, 9), np.int8)
    wall_SS[4, 1:8] = 0
    target_12 = np.array([[1.5, 4.5]], np.float32)
    place_2 = np.array([4.5, 4.5], np.float32)
    notes, target = blank_notes(9, 1), jnp.int32(0)
    sight = see(wall_SS, target_12, place_2, np.float32(0), FIELD_OF_VIEW)
    notes, turn = explore(notes, sight, target)
    assert not notes.is_known_N[0]
    np.testing.assert_array_equal(notes.cell_SS[4, 4:8], OPEN)
    assert notes.cell_SS[4, 2] == UNSEEN
    assert abs(turn) > 0.7  # The nearest unseen cells are beside the viewer and behind it.
    sight = see(wall_SS, target_12, place_2, np.float32(np.pi), FIELD_OF_VIEW)
    notes, _ = explore(notes, sight, target)
    np.testing.assert_allclose(notes.target_N2, target_12)
    sight = see(wall_SS, target_12, place_2, np.float32(0), FIELD_OF_VIEW)
    assert not sight.is_seen_N[0]
    _, turn = explore(notes, sight, target)
    assert abs(turn) == pytest.approx(np.pi, abs=1e-5)


@pytest.mark.slow
def test_explorer_of_memory_maze_finds_targets():
    env, params = make_env("MemoryMaze-9x9-v0", height=8, width=8, max_steps_in_episode=250)
    stream, policy = Stream(env, params, num_envs=4), ExplorerPolicy(env, params)

    @jax.jit
    def play(key_stream, key):
        start = begin(policy, (), stream, key_stream)
        return rollout(policy, (), stream, start, key, 200)[1].episodes

    return_B = play(*jax.random.split(jax.random.key(3))).episode_return[:, -1]
    assert return_B.min() >= 1
    assert return_B.mean() >= 2
