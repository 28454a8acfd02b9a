"""Several streams as one: the rows of each task equal those of its own stream."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.envs import MultiTaskStream, Stream, make_env


def maze(num_envs=4, **params):
    return Stream(*make_env("TMazePassive-v0", **params), num_envs=num_envs)


STREAM = MultiTaskStream(tuple(maze(corridor_length=length) for length in (1, 2, 4)))


def test_sizes_and_spaces():
    assert (STREAM.num_tasks, STREAM.num_envs) == (3, 12)
    np.testing.assert_array_equal(STREAM.task_B, [0, 1, 2] * 4)
    assert STREAM.task_B.dtype == jnp.int32
    assert STREAM.action_space.n == 4
    assert STREAM.observation_space.shape == (4,)
    with pytest.raises(dataclasses.FrozenInstanceError):
        STREAM.tasks = ()


@pytest.mark.parametrize("stream", [STREAM, MultiTaskStream((maze(corridor_length=2),))])
def test_rows_of_task_match_its_stream(stream):
    """For several tasks, and for the single task of an ordinary run."""
    key = jax.random.key(7)
    num = stream.num_tasks
    action_TB = jax.random.randint(jax.random.key(1), (9, stream.num_envs), 0, 4)

    def play(stream, key, action_TB):
        def step(state, action):
            state, timestep = stream.step(state, action)
            return state, (timestep, state.episode)

        state, first = stream.reset(key)
        return first, jax.lax.scan(step, state, action_TB)[1]

    first, (rest, episodes) = jax.jit(lambda: play(stream, key, action_TB))()
    for k, task in enumerate(stream.tasks):
        own_first, (own_rest, own_episodes) = jax.jit(
            lambda k=k, task=task: play(task, jax.random.fold_in(key, k), action_TB[:, k::num])
        )()
        jax.tree.map(
            lambda a, b, k=k: np.testing.assert_array_equal(a[k::num], b), first, own_first
        )
        jax.tree.map(
            lambda a, b, k=k: np.testing.assert_array_equal(a[:, k::num], b),
            (rest, episodes),
            (own_rest, own_episodes),
        )
        own = stream.of_task(k, first.observation)
        np.testing.assert_array_equal(own, own_first.observation)
    assert episodes.done.any()
    assert episodes.success is not None


def test_tasks_draw_independent_randomness():
    same = MultiTaskStream((maze(32), maze(32)))
    _, timestep = same.reset(jax.random.key(0))
    assert np.any(timestep.observation[::2, 1] != timestep.observation[1::2, 1])


def test_incompatible_tasks_raise():
    with pytest.raises(ValueError, match="tasks is empty: pass at least one stream"):
        MultiTaskStream(())
    with pytest.raises(
        ValueError, match="number of environments of task 1 is 5, but the .* of task 0 is 4"
    ):
        MultiTaskStream((maze(4), maze(5)))
    pendulum, cartpole = (Stream(*make_env(n), num_envs=4) for n in ("Pendulum-v1", "CartPole-v1"))
    with pytest.raises(
        ValueError, match=r"observation space of task 2 is .*, but the .* of task 0 is .*: one"
    ):
        MultiTaskStream((maze(), maze(), pendulum))
    with pytest.raises(ValueError, match="action space of task 1"):
        MultiTaskStream((maze(), cartpole))
    cartpole.env.action_space = lambda params: maze().action_space
    cartpole = Stream(cartpole.env, cartpole.params, num_envs=4)
    with pytest.raises(
        ValueError, match=r"reported_info of task 1 is \(\), but the .* of task 0 is \('success',\)"
    ):
        MultiTaskStream((maze(), cartpole))
