"""Small actor-critics, windows for them, and naive versions of their networks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from gymnax.environments import spaces

from gtrxl_jax.nn.sequence.registry import make_model, model_config
from gtrxl_jax.offline import config as offline_config  # noqa: F401, registers the algorithms
from gtrxl_jax.offline.algorithm import OfflineAlgorithmConfig, Setup
from gtrxl_jax.offline.optimizer import AdamWConfig
from gtrxl_jax.segments import Segments
from gtrxl_jax.specs import action_spec
from tests.nn.cores import random_values

B, K, T = 3, 2, 2
S = K * T
OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,), jnp.float32)
ONE_OF_THREE = spaces.Discrete(3)
TWO_FLOATS = spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 4.0]), (2,), jnp.float32)


def make_algorithm(name, action_space, model="bc-mlp", bptt=None, **settings):
    """Return an algorithm with heads of 5 units, whose optimizer does not clip gradients."""
    config = model_config(model, "debug", width=4, encoder="linear")
    segments = (K, T) if config.is_recurrent else (1, S)
    dtype = jnp.result_type(float)
    setup = Setup(
        make_model(config, OBSERVATIONS, action_space, segments[1], dtype),
        OBSERVATIONS,
        action_space,
        optimizer=AdamWConfig(clip_norm=None, weight_decay=0.0, warmup=0.0),
        num_updates=10,
        unroll=segments[1],
        is_recurrent=config.is_recurrent,
        bptt=bptt,
    )
    kind = OfflineAlgorithmConfig.named(name)
    return kind(head_width=5, **settings).make(setup), segments


def windows(action_space, segments, seed=0):
    """Return windows whose episodes end by termination, by truncation, and not at all."""
    rng = np.random.default_rng(seed)
    length = np.array([S - 1, S - 2, S])  # of the windows, of which the first two end the episode
    step_BS = np.arange(S)[None] + np.zeros((B, 1), np.int64)
    mask = step_BS < length[:, None]
    last = (step_BS == length[:, None] - 1) & np.array([True, True, False])[:, None]
    spec = action_spec(action_space)
    path = rng.standard_normal((B, S + 1, 3))
    fields = {
        "observations": path[:, :-1],
        "actions": np.asarray(spec.sample(jax.random.key(seed), B, S)),
        "returns_to_go": rng.standard_normal((B, S)),
        "timesteps": step_BS.astype(np.int32),
        "rewards": rng.standard_normal((B, S)),
        "last": last,
        "terminated": last & np.array([True, False, False])[:, None],
        "next_observations": path[:, 1:],
    }
    batch = {}
    for field, x in fields.items():
        x = np.where(mask.reshape(B, S, *(1,) * (x.ndim - 2)), x, np.zeros((), x.dtype))
        dtype = x.dtype if x.dtype != np.float32 else np.float64
        batch[field] = jnp.asarray(x.astype(dtype)).reshape(B, *segments, *x.shape[2:])
    return Segments(**batch, mask=jnp.asarray(mask).reshape(B, *segments))


def first_learner(algorithm, batch):
    """Return the learner with random parameters, and targets that differ from the networks."""
    segment = jax.tree.map(lambda x: x[:, 0], batch)

    def learner():
        model = algorithm.model
        init = nn.init(lambda model: model(model.initial_memory(B), segment), model)
        return algorithm.init(init(jax.random.key(0))["params"], jax.random.key(1))

    made = jax.jit(learner)()
    return made.replace(
        networks=random_values(jax.eval_shape(lambda: made.networks), 0),
        targets=random_values(jax.eval_shape(lambda: made.targets), 1),
    )


def features(algorithm, params, observations):
    """Return the features of a model without memory for observations `[n, 3]`."""
    n = len(observations)
    each = Segments(
        observations=observations[:, None],
        actions=algorithm.action.zeros(n, 1),
        returns_to_go=jnp.zeros((n, 1)),
        timesteps=jnp.zeros((n, 1), jnp.int32),
        mask=jnp.ones((n, 1), bool),
    )
    return algorithm.model.apply({"params": params}, (), each, method="features")[1][:, 0]


def linear(p, x):
    return x @ p["kernel"] + p.get("bias", 0)


def outputs(algorithm, params, observations):
    """Return the outputs of the actor's head."""
    h = features(algorithm, params, observations)
    return [linear(params["head"]["output"], one) for one in h]


def naive_q(algorithm, critics, observations, actions):
    """Return Q of each of two critics at each step, for actions as the environment has them."""
    values = []
    for number in range(2):
        critic = jax.tree.map(lambda x, number=number: x[number], critics)
        h, head = features(algorithm, critic["history"], observations), critic["head"]
        values.append([])
        for one, action in zip(h, actions, strict=True):
            x = linear(head["history"], one) + scaled(algorithm, action) @ head["action"]["kernel"]
            values[-1].append(linear(head["output"], jnp.maximum(x, 0))[0])
    return values


def scaled(algorithm, action):
    """Return what a critic gets of an action: one-hot, or scaled to [-1, 1]."""
    if algorithm.action.discrete:
        return jnp.asarray(np.eye(3))[action]
    low, high = np.array(algorithm.action.continuous).T
    return (action - (low + high) / 2) / ((high - low) / 2)


def naive_v(algorithm, value, observations):
    """Return V at each step."""
    h, head = features(algorithm, value["history"], observations), value["head"]
    return [linear(head["output"], jnp.maximum(linear(head["hidden"], x), 0))[0] for x in h]


@dataclasses.dataclass
class Steps:
    """The real steps of windows; `place` are their numbers in the window."""

    place: np.ndarray
    observations: jax.Array
    actions: jax.Array
    rewards: jax.Array
    terminated: jax.Array
    following: jax.Array

    def targets(self, gamma, next_values):
        """Return what Q should be, given the values of the following observations."""
        each = zip(self.rewards, self.terminated, next_values, strict=True)
        return [r if terminated else r + gamma * value for r, terminated, value in each]


def real_steps(batch):
    flat = jax.tree.map(lambda x: x.reshape(B, S, *x.shape[3:]), batch)
    place = np.argwhere(np.asarray(flat.mask))
    fields = flat.observations, flat.actions, flat.rewards, flat.terminated, flat.next_observations
    return Steps(place, *(x[place[:, 0], place[:, 1]] for x in fields))
