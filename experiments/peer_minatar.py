"""A public PPO on MinAtar, from a checkout, for comparison at equal steps.

https://github.com/luchris429/purejaxrl trains a feed-forward agent with the settings below in the
notebook examples/brax_minatar.ipynb; the interface of `step` that it requires, gymnax's before
version 1, is patched in.
"""

import json
import time
from pathlib import Path
from typing import Any

import gymnax
import jax
import numpy as np
from gymnax.wrappers import FlattenObservationWrapper, LogWrapper

NOTEBOOK = "examples/brax_minatar.ipynb"
SETTINGS: dict[str, Any] = {
    "LR": 5e-3,
    "NUM_ENVS": 64,
    "NUM_STEPS": 128,
    "UPDATE_EPOCHS": 4,
    "NUM_MINIBATCHES": 8,
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "CLIP_EPS": 0.2,
    "ENT_COEF": 0.01,
    "VF_COEF": 0.5,
    "MAX_GRAD_NORM": 0.5,
    "ACTIVATION": "relu",
    "ANNEAL_LR": True,
}
"""The notebook's settings, except the number of steps, over which the learning rate decays."""


class FiveResults(LogWrapper):
    """Adds the return of the last episode to info; `step` has five results."""

    def step(self, key: Any, state: Any, action: Any, params: Any = None) -> Any:
        """Return observation, state, reward, done and info."""
        observation, state, reward, terminated, truncated, info = super().step(
            key, state, action, params
        )
        info = {name: info[name] for name in ("returned_episode_returns", "returned_episode")}
        return observation, state, reward, terminated | truncated, info


def train(peer: Path, game: str, total_steps: int, seed: int) -> dict[str, Any]:
    """Train the peer's agent; return a study's results of a run.

    The score is the mean return of the episodes that end in the last twentieth of the steps.

    Args:
      peer: path of a checkout of purejaxrl.
      game: name of the environment.
      total_steps: number of environment steps.
      seed: the seed.

    Raises:
      FileNotFoundError: if the path is not such a checkout.
    """
    path = Path(peer, NOTEBOOK)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: pass --peer a checkout of purejaxrl")
    cells = ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]
    source = next(cell for cell in cells if "def make_train" in cell and "gymnax.make" in cell)
    module: dict[str, Any] = {}
    exec(compile(source, str(path), "exec"), module)
    module |= {
        "LogWrapper": FiveResults,
        "FlattenObservationWrapper": FlattenObservationWrapper,
        "gymnax": gymnax,
    }
    config = SETTINGS | {"ENV_NAME": game, "TOTAL_TIMESTEPS": total_steps}
    began = time.time()
    metrics = jax.jit(module["make_train"](config))(jax.random.key(seed))["metrics"]
    ended_UTB = np.asarray(metrics["returned_episode"])
    returns_UTB = np.asarray(metrics["returned_episode_returns"])
    updates = len(ended_UTB)
    curve = [
        float(returns[ended].mean()) if ended.any() else float("nan")
        for returns, ended in zip(returns_UTB, ended_UTB, strict=True)
    ]
    last = slice(updates - max(1, updates // 20), updates)
    per_update = SETTINGS["NUM_ENVS"] * SETTINGS["NUM_STEPS"]
    return {
        "settings": config,
        "steps": int(updates * per_update),
        "seconds": round(time.time() - began, 1),
        "scores": {"return": float(returns_UTB[last][ended_UTB[last]].mean())},
        "curve": {
            "episode/return": {
                "step": [int((update + 1) * per_update) for update in range(updates)],
                "value": [round(value, 3) for value in curve],
            }
        },
        "goal": {"score": "return", "value": float("inf"), "steps": None, "seconds": None},
    }
