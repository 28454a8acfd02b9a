"""Every kind of space that agents support, and an environment of any of them."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces

from gtrxl_jax.specs.spaces import bounds_of, dtype_of, kind_of, map_leaves, shape_of

theirs: Any = gymnasium.spaces

POINT = theirs.Box(-1.0, np.array([1.0, np.inf], np.float32))
TEXT = theirs.Text(4, min_length=0, charset="ba c")

OBSERVATIONS: dict[str, Any] = {
    "box": spaces.Box(-1.0, 1.0, (3,)),
    "scalar": theirs.Box(-1.0, 1.0, ()),
    "double": theirs.Box(-1.0, 1.0, (2,), np.float64),
    "integers": theirs.Box(-100, 1000, (2,), np.int64),
    "flags": theirs.Box(0, 1, (2,), np.bool_),
    "discrete": spaces.Discrete(3),
    "discrete-start": theirs.Discrete(3, start=-1),
    "multi-discrete": theirs.MultiDiscrete([3, 5], start=[1, 0]),
    "multi-discrete-table": theirs.MultiDiscrete([[3, 5], [2, 4]]),
    "multi-binary": theirs.MultiBinary(3),
    "multi-binary-table": theirs.MultiBinary([2, 2]),
    "text": TEXT,
    "bounds-by-entry": theirs.Box(np.array([0, 1]), np.array([1000, 3]), dtype=np.int32),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,)))),
    "dict": spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(0, 255, (9, 8), jnp.uint8)}),
    "nested": theirs.Dict(pair=theirs.Tuple((theirs.Discrete(2), theirs.Dict(x=POINT))), text=TEXT),
    "frames-first": theirs.Box(0, 255, (4, 8, 9), np.uint8),
}

ACTIONS: dict[str, Any] = {
    "discrete": spaces.Discrete(3),
    "discrete-start": theirs.Discrete(3, start=2),
    "multi-discrete": theirs.MultiDiscrete([2, 3], start=[0, 5]),
    "one-of-many": theirs.MultiDiscrete([3]),
    "multi-binary": theirs.MultiBinary(2),
    "box": spaces.Box(-1.0, 2.0, (2,)),
    "box-table": theirs.Box(-1.0, 2.0, (2, 1)),
    "dict-of-boxes": theirs.Dict(move=theirs.Box(-1.0, 1.0, (2,)), aim=theirs.Box(0.0, 3.0, ())),
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))),
    "nested": theirs.Dict(
        hand=theirs.Tuple((theirs.Discrete(3, start=-1), theirs.Box(-1.0, 1.0, (2,)))),
        switch=theirs.MultiBinary(2),
        tool=theirs.MultiDiscrete([[2], [4]], start=[[1], [0]]),
    ),
}


def draw(space: Any, key: jax.Array) -> Any:
    """Draw a member of a space; pure."""

    def of_leaf(leaf: Any, field: str) -> Any:
        low, high = (np.clip(bound, -1000, 1000) for bound in bounds_of(leaf))
        dtype = jax.dtypes.canonicalize_dtype(dtype_of(leaf))
        of_field = jax.random.fold_in(key, hash_of(field))
        if kind_of(leaf) == "box" and jnp.issubdtype(dtype, jnp.floating):
            unit = jax.random.uniform(of_field, shape_of(leaf), dtype)
            low, high = (jnp.asarray(np.broadcast_to(z, unit.shape), dtype) for z in (low, high))
            return low + unit * (high - low)
        low, high = (np.broadcast_to(z, shape_of(leaf)).astype(np.int32) for z in (low, high))
        if kind_of(leaf) == "text":
            tokens = jax.random.randint(of_field, shape_of(leaf), 1, high + 1)
            length = jax.random.randint(of_field, (), 0, len(tokens) + 1)
            return jnp.where(jnp.arange(len(tokens)) < length, tokens, 0)
        return jax.random.randint(of_field, shape_of(leaf), low, high + 1).astype(dtype)

    return map_leaves(of_leaf, space)


def hash_of(text: str) -> int:
    return sum((n + 1) * ord(letter) for n, letter in enumerate(text))


@struct.dataclass
class ChamberState(environment.EnvState):
    """The sum of all actions so far."""

    total: jax.Array


class Chamber(environment.Environment):
    """Shows random members of a space, and rewards small actions of another; three steps.

    Args:
      observed: the observation space.
      acted: the action space.
      spoil: changes the observation after two actions, given the whole of it.
    """

    def __init__(self, observed: Any, acted: Any, spoil: Any = lambda observation: observation):
        super().__init__()
        self.observed, self.acted, self.spoil = observed, acted, spoil

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=3)

    def reset_env(self, key, params):
        state = ChamberState(time=jnp.zeros((), jnp.int32), total=jnp.zeros(()))
        return draw(self.observed, key), state

    def step_env(self, key, state, action, params):
        parts = []

        def add(leaf, x, field):
            assert x.shape == shape_of(leaf), f"{field}: {x.shape}"
            low, high = (jnp.asarray(z, x.dtype) for z in bounds_of(leaf))
            inside = jnp.all((x >= low) & (x <= high))
            parts.append(jnp.where(inside, jnp.sum(x).astype(jnp.float32), jnp.nan))

        map_leaves(add, self.acted, action)
        total = sum(parts)
        state = state.replace(time=state.time + 1, total=state.total + total)
        observation = draw(self.observed, key)
        spoiled = self.spoil(observation)
        observation = jax.tree.map(
            lambda x, y: jnp.where(state.time == 2, y, x), observation, spoiled
        )
        return observation, state, -jnp.abs(total), jnp.zeros((), bool), {}

    def observation_space(self, params=None):
        return self.observed

    def action_space(self, params=None):
        return self.acted
