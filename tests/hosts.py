"""Environments on the host, for tests."""

import time
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from gtrxl_jax.envs.host.stream import seeds
from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.ops.promotion import standard_dtype_promotion

MAX_ROWS = 64


class Counter(gymnasium.Env):
    """Counts its resets and steps, and says which instance it is, to tell what was lost.

    Observations are (instance, episode, step of the episode, resets and steps so far), rewards are
    the last of these. Episodes have 1, 2, 3, ... actions in turn, up to 5, and every second one is
    truncated.

    Args:
      raise_at: raise an error at this step, counted over all episodes, of the first instances.
      failures: how many instances, of all that were made, raise it.
      fault: what is wrong at that step instead of an error: "nan", "shape", "sleep", "exit".
      slow: seconds that a step takes.
      anonymous: say 0 instead of which instance it is.
    """

    made = 0
    failed = 0

    def __init__(
        self,
        raise_at: int = -1,
        failures: int = 0,
        fault: str = "",
        slow: float = 0.0,
        anonymous: bool = False,
    ):
        self.observation_space = spaces.Box(-1, 1e6, (4,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._at, self._failures, self._fault, self._slow = raise_at, failures, fault, slow
        self._instance = 0 if anonymous else Counter.made
        Counter.made += 1
        self._episode = self._count = 0
        self._step = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._episode += 1
        self._step = 0
        self._count += 1
        return self._observe(), {}

    def step(self, action):
        self._count += 1
        self._step += 1
        if self._slow:
            time.sleep(self._slow)
        if self._count == self._at and Counter.failed < self._failures:
            Counter.failed += 1
            if not self._fault:
                raise RuntimeError("the simulator crashed")
            if self._fault == "nan":
                return self._observe() * np.nan, 0.0, False, False, {}
            if self._fault == "shape":
                return np.zeros(3, np.float32), 0.0, False, False, {}
            if self._fault == "exit":
                raise SystemExit("the simulator was closed")
            time.sleep(3)
        ends = self._step > self._episode % 5
        is_odd = self._episode % 2 == 1
        return self._observe(), float(self._count), ends and is_odd, ends and not is_odd, {}

    def _observe(self):
        return np.array([self._instance, self._episode, self._step, self._count], np.float32)


def counter(**params: Any) -> gymnasium.Env:
    """Return a counter."""
    return Counter(**params)


class Guided(Counter):
    """A counter with an oracle, which acts by the parity of the step, or as it is told."""

    def __init__(self, told: int = -1, **params: Any):
        super().__init__(**params)
        self._told = told

    def oracle_action(self):
        return self._step % 2 if self._told < 0 else self._told


class JaxEnv(gymnasium.Env):
    """A jitted environment as one of gymnasium, with the keys of a stream of it in a run of seed 0.

    Args:
      name: its name for `make_env`.
      params: its parameters.
    """

    def __init__(self, name: str, **params: Any):
        self._env, self._params = make_env(name, **params)
        with standard_dtype_promotion():
            box: Any = self._env.observation_space(self._params)
            self.action_space = spaces.Discrete(int(self._env.action_space(self._params).n))
            self.observation_space = spaces.Box(
                np.float32(box.low), np.float32(box.high), box.shape, np.float32
            )
        self._row_of = {seeds(0, row): row for row in range(MAX_ROWS)}
        _, _, key, _ = jax.random.split(jax.random.key(0), 4)
        self._stream_key = jax.random.fold_in(key, 0)
        self._reset = jax.jit(self._env.reset_env)
        self._advance = jax.jit(self._env.step_env)
        self._truncated = jax.jit(self._env.is_truncated)
        self._key = self._stream_key

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self._key = jax.random.fold_in(self._stream_key, self._row_of.get(seed, 0))
        with standard_dtype_promotion():
            self._key, key = jax.random.split(self._key)
            observation, self._state = self._reset(key, self._params)
        return np.asarray(observation, np.float32), {}

    def step(self, action):
        with standard_dtype_promotion():
            self._key, key = jax.random.split(self._key)
            observation, self._state, reward, done, info = self._advance(
                key, self._state, np.int32(action), self._params
            )
            truncated = self._truncated(self._state, self._params)
        return (
            np.asarray(observation, np.float32),
            float(reward),
            bool(done),
            bool(truncated),
            {name: float(info[name]) for name in ("success",) if name in info},
        )


def jitted(**params: Any) -> gymnasium.Env:
    """Return a T-Maze as an environment of gymnasium."""
    return JaxEnv("TMazePassive-v0", **params)


def as_given(action):
    """Return a function that acts so, whatever it observes; it raises what is an error."""

    def act(observation):
        if isinstance(action, Exception):
            raise action
        return action

    return act


def alternate(observation):
    """Act by the parity of a counter's count."""
    return int(observation[3]) % 2
