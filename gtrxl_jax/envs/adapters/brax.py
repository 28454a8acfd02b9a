"""Environments with Brax's interface: `reset(key)` and `step(state, action)` return its `State`."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Int

RESETTING = ("AutoResetWrapper", "EpisodeWrapper", "VmapWrapper")
"""Brax's wrappers that do for training what a `Stream` does: reset, truncate and batch."""


@struct.dataclass
class BraxState(environment.EnvState):
    """The state of a Brax environment.

    Attributes:
      time: number of actions taken so far.
      inner: Brax's state, which includes the observation, the reward and the metrics.
    """

    time: Int[Array, ""]
    inner: Any


@struct.dataclass
class BraxParams(environment.EnvParams):
    """Parameters of a Brax environment. Everything else is an argument of its constructor.

    Attributes:
      max_steps_in_episode: time limit in actions; 1000 as in Brax's training.
    """

    max_steps_in_episode: int = 1000


class Brax(environment.Environment[BraxState, BraxParams]):
    """An environment with Brax's interface.

    An episode is terminated where Brax's `done` is true, and truncated at the time limit. Actions
    lie in [-1, 1], as in all environments of Brax, which scale them to their actuators. Steps
    return Brax's metrics as `info`.

    Args:
      env: the environment, without Brax's wrappers for training.

    Raises:
      ValueError: if the environment resets itself.
    """

    default_params = BraxParams()

    def __init__(self, env: Any) -> None:
        super().__init__()
        self.env = env
        while True:
            if type(env).__name__ in RESETTING:
                raise ValueError(
                    f"the environment has an {type(env).__name__}, but episodes are ended, reset "
                    "and batched elsewhere: pass brax.envs.get_environment(name), not "
                    "brax.envs.create(name)"
                )
            if "env" not in vars(env):
                break
            env = env.env

    @property
    def name(self) -> str:
        """The name of the class of the environment."""
        return type(self.env).__name__

    @property
    def num_actions(self) -> int:
        """The number of dimensions of an action."""
        return self.env.action_size

    def reset_env(self, key: jax.Array, params: BraxParams) -> tuple[Any, BraxState]:
        inner = _arrays(self.env.reset(key))
        return inner.obs, BraxState(time=jnp.zeros((), jnp.int32), inner=inner)

    def step_env(
        self, key: jax.Array, state: BraxState, action: Any, params: BraxParams
    ) -> tuple[Any, BraxState, Array, Bool[Array, ""], dict[str, Any]]:
        # Steps of Brax change the dicts of the state that they get.
        inner = _arrays(self.env.step(_arrays(state.inner), action))
        state = BraxState(time=state.time + 1, inner=inner)
        return inner.obs, state, inner.reward, inner.done.astype(bool), dict(inner.metrics)

    def action_space(self, params: BraxParams | None = None) -> spaces.Box:
        """Return the space of actions, from -1 to 1 in every dimension."""
        return spaces.Box(-1.0, 1.0, (self.env.action_size,), jnp.float32)

    def observation_space(self, params: BraxParams | None = None) -> spaces.Box | spaces.Dict:
        """Return the space of observations, which Brax does not bound."""
        if isinstance(self._observation, Mapping):
            return spaces.Dict({name: _unbounded(x) for name, x in self._observation.items()})
        return _unbounded(self._observation)

    @functools.cached_property
    def _observation(self) -> Any:
        """The shapes and dtypes of an observation, not computed."""
        return jax.eval_shape(self.env.reset, jax.random.key(0)).obs


def _arrays(state: Any) -> Any:
    """Return a copy of Brax's state in which numbers are arrays."""
    return jax.tree.map(jnp.asarray, state)


def _unbounded(x: jax.ShapeDtypeStruct) -> spaces.Box:
    return spaces.Box(-jnp.inf, jnp.inf, x.shape, x.dtype)
