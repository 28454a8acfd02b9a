"""From data that are mostly of a bad policy, algorithms with critics learn to act well."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.acting.collecting import collect
from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.data.trajectories import concatenate
from gtrxl_jax.envs import make_env
from gtrxl_jax.offline.config import preset
from gtrxl_jax.offline.optimizer import AdamWConfig
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.runs.loop import train
from tests.jobs import changed

pytestmark = pytest.mark.slow
LIMIT = {"max_steps_in_episode": 100}


@dataclasses.dataclass(frozen=True)
class Pusher(Policy):
    """Pushes CartPole's cart towards where the pole falls, or away from it; a tenth at random."""

    towards: bool

    def init(self, params, batch_size):
        return jnp.zeros(batch_size)

    def act(self, params, state, timestep, key):
        x, speed, angle, turning = timestep.observation.T
        right = (angle + 0.5 * turning + 0.02 * x + 0.05 * speed > 0) == self.towards
        key_any, key_action = jax.random.split(key)
        any_B = jax.random.uniform(key_any, right.shape) < 0.1
        drawn = jax.random.bernoulli(key_action, 0.5, right.shape)
        action = jnp.where(any_B, drawn, right).astype(jnp.int32)
        return state, action, action


@pytest.fixture(scope="module")
def mixed():
    """Three quarters of the episodes soon lose the pole."""
    env, params = make_env("CartPole-v1", **LIMIT)
    sets = [
        collect(env, params, Pusher(towards), count, jax.random.key(count))
        for towards, count in ((True, 64), (False, 192))
    ]
    returns = [np.asarray(one.length).mean() for one in sets]
    assert returns[0] > 80
    assert returns[1] < 15
    return concatenate(sets)


def mean_return(mixed, algorithm, **settings):
    """Return the mean return of three seeds."""
    config = changed(
        preset("debug"),
        env__name="CartPole-v1",
        env__params=LIMIT,
        model__name="bc-mlp",
        model__width=32,
        data__weight="uniform",
        evaluation__lengths=(),
        evaluation__episodes=32,
        algorithm__name=algorithm,
        optimizer=AdamWConfig(learning_rate=2e-3),
        batch_size=64,
        total_updates=2000,
        updates_per_iteration=500,
        num_seeds=3,
        devices=1,
    )
    trainer = OfflineTrainer(changed(config, **settings), mixed)
    return np.mean(train(trainer).result.evaluation["return"].per_seed)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("iql", {"algorithm__expectile": 0.8}),
        ("cql", {"algorithm__alpha": 0.2}),
    ],
)
def test_values_tell_good_actions_from_bad_ones(mixed, algorithm, settings):
    imitated = mean_return(mixed, "imitation")
    assert imitated < 20
    settings |= {"algorithm__gamma": 0.95, "algorithm__target_rate": 0.05}
    settings |= {"algorithm__head_width": 64}
    assert mean_return(mixed, algorithm, **settings) > 2 * imitated
