"""A public PPO with a Transformer-XL, from a checkout, for benchmarks only.

https://github.com/Reytuag/transformerXL_PPO_JAX was written for older versions of gymnax and JAX;
the required old interfaces are patched in while its modules are imported and traced.
"""

import contextlib
import importlib
import sys
import types
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
from gymnax.wrappers import FlattenObservationWrapper

from gtrxl_jax.envs.registry import make_env

MODULE = "trainer_PPO_trXL"


class FiveResults:
    """An environment whose `step` has the five results of gymnax before version 1, without info."""

    def __init__(self, env: Any):
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, key: Any, state: Any, action: Any, params: Any) -> tuple[Any, ...]:
        """Return observation, state, reward, done and an empty info."""
        observation, state, reward, terminated, truncated, _ = self._env.step(
            key, state, action, params
        )
        return observation, state, reward, terminated | truncated, {}


@contextlib.contextmanager
def imported(path: Path) -> Generator[Any, None, None]:
    """Import the peer's module, providing the removed `jax.tree_map` inside the block."""
    sys.path.insert(0, str(path))
    try:
        with mock.patch.object(jax, "tree_map", jax.tree.map, create=True):
            yield importlib.import_module(MODULE)
    finally:
        sys.path.remove(str(path))


def compiled(path: Path, env: tuple[str, dict[str, Any]], **config: Any) -> Callable[..., Any]:
    """Compile the peer's whole run, a function of a PRNG key.

    Args:
      path: path of the checkout.
      env: name and parameters of the environment, as for `make_env`.
      config: overrides of the config in the peer's training script.

    Raises:
      FileNotFoundError: if the path is not a checkout of the peer.
      ImportError: if a package that the peer requires (distrax) is not installed.
    """
    if not Path(path, f"{MODULE}.py").exists():
        raise FileNotFoundError(
            f"{path} has no {MODULE}.py: pass a checkout of Reytuag/transformerXL_PPO_JAX"
        )
    settings = {
        "LR": 2e-4,
        "NUM_MINIBATCHES": 8,
        "GAMMA": 0.99,
        "GAE_LAMBDA": 0.8,
        "CLIP_EPS": 0.2,
        "ENT_COEF": 0.01,
        "VF_COEF": 0.5,
        "MAX_GRAD_NORM": 1.0,
        "ACTIVATION": "relu",
        "ENV_NAME": env[0],
        "ANNEAL_LR": True,
        "gating": True,
        "gating_bias": 2.0,
    }
    made, params = make_env(env[0], **env[1])
    with imported(path) as peer:
        peer.gymnax = types.SimpleNamespace(make=lambda name: (made, params))
        peer.FlattenObservationWrapper = lambda env: FiveResults(FlattenObservationWrapper(env))
        train = peer.make_train(settings | config)
        return jax.jit(train).lower(jax.random.key(0)).compile()
