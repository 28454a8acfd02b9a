"""POPGym's partially observed cart-pole and pendulum, on the physics of gymnax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.classic_control import cartpole, pendulum
from jaxtyping import Array, Float

from gtrxl_jax.ops.promotion import standard_dtype_promotion
from gtrxl_jax.worlds.base import Step, require_count
from gtrxl_jax.worlds.popgym.task import Timed

WORST_COST = 16.2736044
"""The cost of a pendulum that points down, at the highest speed and torque."""


@struct.dataclass
class CartPoleParams(cartpole.EnvParams):
    """Parameters of the cart-pole: the physics of gymnax, and a time limit.

    Attributes:
      max_steps_in_episode: time limit in actions. None: the environment's `episode_length`.
    """

    max_steps_in_episode: int | None = None


@struct.dataclass
class PendulumParams(pendulum.EnvParams):
    """Parameters of the pendulum: the physics of gymnax, and a time limit.

    Attributes:
      max_steps_in_episode: time limit in actions. None: the environment's `episode_length`.
    """

    max_steps_in_episode: int | None = None


class _Noisy(Timed):
    """Observations with Gaussian noise, clipped to the bounds `high` of their space."""

    def __init__(self, episode_length: int = 200, noise_sigma: float = 0.0):
        super().__init__()
        require_count("episode_length", episode_length)
        if noise_sigma < 0:
            raise ValueError(f"noise_sigma must be at least 0, got {noise_sigma}")
        self.episode_length, self.noise_sigma = episode_length, noise_sigma

    @property
    def name(self) -> str:
        """The name of the environment's class."""
        return type(self).__name__

    def _with_noise(
        self, key: jax.Array, x: Float[Array, "2"], high: Float[np.ndarray | Array, "2"]
    ) -> Float[Array, "2"]:
        if not self.noise_sigma:
            return x
        noise = self.noise_sigma * jax.random.normal(key, x.shape, x.dtype)
        return jnp.clip(x + noise, -high, high)


class PositionOnlyCartPole(_Noisy, cartpole.CartPole):
    """The cart-pole, of which only the positions are observed.

    The observation is [position of the cart, angle of the pole], with Gaussian noise if
    `noise_sigma` is not 0; it is then clipped to the space, twice the thresholds at which an
    episode terminates. Every action (0 left, 1 right) earns 1 / T, where T is the time limit, at
    which the episode is truncated; the highest return is 1. `info["success"]` is true at the time
    limit, if the pole still stands.

    Args:
      episode_length: T, unless the parameters have another time limit.
      noise_sigma: standard deviation of the noise, the same for the position in meters and for
        the angle in radians.
    """

    observed = (0, 2)
    default_params = CartPoleParams()

    def reset_env(
        self, key: jax.Array, params: CartPoleParams
    ) -> tuple[Float[Array, "2"], cartpole.EnvState]:
        """Draw a state near the upright position at rest."""
        key_state, key_noise = jax.random.split(key)
        with standard_dtype_promotion():
            _, state = super().reset_env(key_state, params)
        state = _single_precision(state)
        # The same positions are shown at the start if later only the velocities are, as in POPGym.
        positions = jnp.stack([state.x, state.theta])
        return self._with_noise(key_noise, positions, self._high(params)), state

    def step_env(
        self, key: jax.Array, state: cartpole.EnvState, action: Any, params: CartPoleParams
    ) -> Step[Float[Array, "2"], Any]:
        """Push the cart, and show what is observed of the new state."""
        with standard_dtype_promotion():
            full, state, _, terminated, _ = super().step_env(key, state, action, params)
        observation = self._with_noise(key, full[np.array(self.observed)], self._high(params))
        reward = 1 / jnp.asarray(self.time_limit(params), jnp.float32)
        success = self.is_truncated(state, params) & ~terminated
        return observation, state, reward, terminated, {"success": success}

    def observe(
        self, key: jax.Array, state: cartpole.EnvState, action: Any, params: CartPoleParams
    ) -> Float[Array, "2"]:
        """Return what is observed of a state after a step, with noise drawn from `key`."""
        full = jnp.stack([state.x, state.x_dot, state.theta, state.theta_dot])
        return self._with_noise(key, full[np.array(self.observed)], self._high(params))

    def observation_space(self, params: CartPoleParams | None = None) -> spaces.Box:
        """Return the space, which extends to twice the thresholds."""
        high = self._high(params or self.default_params)
        return spaces.Box(-high, high, (2,), jnp.float32)

    def _high(self, params: CartPoleParams) -> Any:
        thresholds = [params.x_threshold, params.theta_threshold_radians]
        return 2 * jnp.asarray(thresholds, jnp.float32)


class VelocityOnlyCartPole(PositionOnlyCartPole):
    """The cart-pole, of which only the velocities are observed.

    The observation is [velocity of the cart, angular velocity of the pole], unbounded and without
    noise; the first one of an episode is as in `PositionOnlyCartPole`, as in POPGym. Everything
    else is as in `PositionOnlyCartPole`.

    Args:
      episode_length: T, unless the parameters have another time limit.
    """

    observed = (1, 3)

    def __init__(self, episode_length: int = 200):
        super().__init__(episode_length)

    def _high(self, params: CartPoleParams) -> Any:
        return jnp.full(2, jnp.inf, jnp.float32)


class PositionOnlyPendulum(_Noisy, pendulum.Pendulum):
    """The pendulum to be swung up, of which only the angle is observed.

    The observation is [cos, sin] of the angle, with Gaussian noise if `noise_sigma` is not 0; it is
    then clipped to [-1, 1]. The action is the torque `[1]` in [-2, 2]. It earns
    (1 - c / 8.1368) / T, where c is gymnasium's cost of the state before the action and of the
    torque, between 0 and 16.27, so returns lie in [-1, 1]. The episode is truncated after T
    actions.

    Args:
      episode_length: T, unless the parameters have another time limit.
      noise_sigma: standard deviation of the noise.
    """

    default_params = PendulumParams()

    def reset_env(
        self, key: jax.Array, params: PendulumParams
    ) -> tuple[Float[Array, "2"], pendulum.EnvState]:
        """Draw an angle and a velocity."""
        key_state, key_noise = jax.random.split(key)
        with standard_dtype_promotion():
            _, state = super().reset_env(key_state, params)
        state = _single_precision(state)
        return self.observe(key_noise, state, None, params), state

    def step_env(
        self, key: jax.Array, state: pendulum.EnvState, action: Any, params: PendulumParams
    ) -> Step[Float[Array, "2"], Any]:
        """Apply the torque, and show the new angle."""
        with standard_dtype_promotion():
            _, state, negative_cost, _, _ = super().step_env(key, state, action, params)
        scaled = 1 + negative_cost / (WORST_COST / 2)
        reward = scaled / jnp.asarray(self.time_limit(params), jnp.float32)
        observation = self.observe(key, state, action, params)
        return observation, state, reward, jnp.bool_(False), {}

    def observe(
        self, key: jax.Array, state: pendulum.EnvState, action: Any, params: PendulumParams
    ) -> Float[Array, "2"]:
        """Return [cos, sin] of the angle, with noise drawn from `key`."""
        angle = jnp.stack([jnp.cos(state.theta), jnp.sin(state.theta)])
        return self._with_noise(key, angle, np.ones(2, np.float32))

    def observation_space(self, params: PendulumParams | None = None) -> spaces.Box:
        """Return the space [-1, 1]."""
        return spaces.Box(-1.0, 1.0, (2,), jnp.float32)


def _single_precision(state: Any) -> Any:
    """Return a state of gymnax with float32, which has float64 if JAX has 64 bits enabled."""

    def single(x: Any) -> Any:
        is_float = jnp.issubdtype(jnp.result_type(x), jnp.floating)
        return x.astype(jnp.float32) if is_float else x

    return jax.tree.map(single, state)
