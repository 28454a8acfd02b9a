"""sb3-contrib's RecurrentPPO, in an environment with stable-baselines3; see `simulators.py`.

    PYTHON experiments/bench/peer_sb3.py '{"env": ..., "envs": 16, ...}'

Prints the steps a second of its updates after the first, as JSON.
"""

import json
import sys
import time
from typing import Any

import gymnasium
import minigrid  # noqa: F401, registers its environments
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv


class Clock(BaseCallback):
    """Notes when each rollout begins."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def _on_rollout_start(self) -> None:
        self.times.append(time.perf_counter())

    def _on_step(self) -> bool:
        return True


def make(name: str, keys: list[str], params: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """Create an environment, whose observation is a vector."""
    env: gymnasium.Env[Any, Any] = gymnasium.make(name, **params)
    if keys:
        env = gymnasium.wrappers.FilterObservation(env, keys)
    return gymnasium.wrappers.FlattenObservation(env)


settings = json.loads(sys.argv[1])
envs = DummyVecEnv(
    [lambda: make(settings["env"], settings["keys"], settings["params"])] * settings["envs"]
)
steps = settings["envs"] * settings["rollout"]
model = RecurrentPPO(
    "MlpLstmPolicy",
    envs,
    n_steps=settings["rollout"],
    batch_size=steps // settings["minibatches"],
    n_epochs=settings["epochs"],
    policy_kwargs={
        "lstm_hidden_size": settings["width"],
        "n_lstm_layers": 1,
        "shared_lstm": True,
        "enable_critic_lstm": False,
        "net_arch": [settings["head"]],
    },
    device="cpu",
)
clock = Clock()
model.learn(steps * settings["updates"], callback=clock)
ended = time.perf_counter()
seconds = ended - clock.times[1]
parameters = sum(p.numel() for p in model.policy.parameters())
print(json.dumps({"steps": steps * (settings["updates"] - 1) / seconds, "parameters": parameters}))
