"""sb3-contrib's RecurrentPPO, in an environment with stable-baselines3; see `simulators.py`.

    PYTHON experiments/bench/peer_sb3.py '{"env": ..., "envs": 16, ...}'

Prints the steps a second of its updates after the first, as JSON; with a goal, what it took until
the mean return of the episodes of some rollouts was at it.
"""

import json
import sys
import time
from typing import Any

import gymnasium
import minigrid  # noqa: F401, registers its environments
import tmaze  # noqa: F401, likewise
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor


class Clock(BaseCallback):
    """Notes when each rollout begins, and ends the training if the returns are at a goal."""

    def __init__(self, goal: float | None = None, window: int = 1) -> None:
        super().__init__()
        self.goal, self.window = goal, window
        self.times: list[float] = []
        self.returns: list[float] = []
        self.reached = False

    def _on_rollout_start(self) -> None:
        self.times.append(time.perf_counter())
        if self.goal is not None and (len(self.times) - 1) % self.window == 0 and self.returns:
            self.reached = bool(sum(self.returns) / len(self.returns) >= self.goal)
            self.returns = []

    def _on_step(self) -> bool:
        ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        self.returns += ended
        return not self.reached


def make(name: str, keys: list[str], params: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """Create an environment, whose observation is a vector."""
    env: gymnasium.Env[Any, Any] = gymnasium.make(name, **params)
    if keys:
        env = gymnasium.wrappers.FilterObservation(env, keys)
    return gymnasium.wrappers.FlattenObservation(env)


settings = json.loads(sys.argv[1])
began = time.perf_counter()
envs = VecMonitor(
    DummyVecEnv(
        [lambda: make(settings["env"], settings["keys"], settings["params"])] * settings["envs"]
    )
)
goal = settings.get("goal")
learning: dict[str, Any] = {}
if goal is not None:
    learning = {"learning_rate": settings["learning_rate"], "ent_coef": settings["entropy_cost"]}
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
    seed=settings["seed"],
    device="cpu",
    **learning,
)
clock = Clock(goal, settings.get("window", 1))
model.learn(settings.get("most_steps", steps * settings["updates"]), callback=clock)
ended = time.perf_counter()
seconds = ended - clock.times[1]
parameters = sum(p.numel() for p in model.policy.parameters())
rollouts = len(clock.times) - 1
print(
    json.dumps(
        {
            "steps": steps * rollouts / seconds,
            "parameters": parameters,
            "learned": {
                "seconds": (clock.times[-1] if clock.reached else ended) - began,
                "steps": steps * (rollouts if clock.reached else rollouts + 1),
                "reached": clock.reached,
            },
        }
    )
)
