"""A public PPO with a Transformer-XL, from a checkout of it, for the benchmark alone.

https://github.com/Reytuag/transformerXL_PPO_JAX was written for older versions of gymnax and JAX:
what it needs of them is put in their place while its modules are imported and traced.
"""

import contextlib
import importlib
import sys
import types
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import jax
from gymnax.wrappers import FlattenObservationWrapper

from gtrxl_jax.envs.registry import make_env

MODULE = "trainer_PPO_trXL"


class FiveResults:
    """An environment whose steps have the results that they had before gymnax 1, and no info."""

    def __init__(self, env: Any):
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, key: Any, state: Any, action: Any, params: Any) -> tuple[Any, ...]:
        """Observation, state, reward, done, info."""
        observation, state, reward, terminated, truncated, _ = self._env.step(
            key, state, action, params
        )
        return observation, state, reward, terminated | truncated, {}


@contextlib.contextmanager
def imported(path: Path) -> Generator[Any, None, None]:
    """Its module, with `jax.tree_map`, which JAX no longer has, as long as it is used."""
    sys.path.insert(0, str(path))
    jax.tree_map = jax.tree.map
    try:
        yield importlib.import_module(MODULE)
    finally:
        sys.path.remove(str(path))
        del jax.tree_map


def compiled(path: Path, env: tuple[str, dict[str, Any]], **config: Any) -> Callable[..., Any]:
    """Its whole run, compiled: a function of a key.

    Args:
      path: of the checkout.
      env: name and parameters of the environment, as `make_env` takes them.
      config: the peer's, in place of what its training script has.

    Raises:
      FileNotFoundError: the path is no checkout of it.
      ImportError: it needs a package that is not installed (distrax).
    """
    if not Path(path, f"{MODULE}.py").exists():
        raise FileNotFoundError(
            f"{path} has no {MODULE}.py: give a checkout of Reytuag/transformerXL_PPO_JAX"
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
