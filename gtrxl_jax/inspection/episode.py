"""An episode with all that there is to see of the agent's memory at each step, in NumPy.

Example:
    run = gtrxl_jax.load("runs/mine")
    episode = inspect_episode(run, seed=3)
    episode.influence[-1].argmax()  # the step on which the last action depends most
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jaxtyping import Float, Int, UInt8

from gtrxl_jax.acting.evaluation import record_episodes, render_episode
from gtrxl_jax.acting.policy import AgentPolicy
from gtrxl_jax.envs.extensions import action_names
from gtrxl_jax.inspection.influence import influence
from gtrxl_jax.loading import Loaded
from gtrxl_jax.nn.agent import MemoryNetwork
from gtrxl_jax.offline.attention import SegmentMemory
from gtrxl_jax.offline.policy import SequencePolicy
from gtrxl_jax.specs import action_spec
from gtrxl_jax.timestep import TimeStep
from gtrxl_jax.validation import require_count

OTHERS = 7
"""Number of other episodes, whose steps replace those of the inspected one: of two cues that are
equally frequent, all show the same in 1 of 128 cases."""


@dataclasses.dataclass(frozen=True)
class InspectedEpisode:
    """The first T actions of an episode, and its first T + 1 time steps.

    Attributes:
      agent: name of the core, or of the offline model.
      environment: name of the environment.
      params: those of its parameters that are numbers or names.
      seed: seed of the episode.
      success: success of the whole episode, from 0 to 1; None if it is not reported.
      episode_return: undiscounted return of the whole episode.
      length: number of actions of the whole episode, at least T.
      cue: the first step that shows the cue; None if unknown.
      frames: the environment at each time step; None if it cannot be drawn.
      rewards: the reward that came with each time step.
      returns: the discounted sum of the rewards after each time step.
      values: V(s_t), for an actor-critic, in the units of the rewards.
      choices: for each of K discrete dimensions of the actions, the probability of each choice, or
        its action value.
      has_probabilities: whether they are probabilities.
      action_names: the names of the choices, if the environment has any.
      chosen: the choices taken.
      means, scales: mean and standard deviation of each of C continuous dimensions.
      continuous: the continuous actions taken.
      metrics: what the core reports at each time step, such as the mean opening of a gate, by path.
      attention: the attention weights of each layer and head at each time step on the W - 1 steps
        before it, oldest first, and on the step itself; None without attention.
      influence: by how much the log-odds of an action, in nats, depend on each step, see
        `inspection.influence`; None for models without `encode`.
      memory: the memory of RATE or ELMUR by segment; otherwise None.
      held: how much of each past step it holds, see `inspection.influence.Influence.memory`.
    """

    agent: str
    environment: str
    params: dict[str, Any]
    seed: int
    success: float | None
    episode_return: float
    length: int
    cue: int | None
    frames: UInt8[np.ndarray, "S Y X 3"] | None
    rewards: Float[np.ndarray, " S"]
    returns: Float[np.ndarray, " S"]
    values: Float[np.ndarray, " T"] | None
    choices: tuple[Float[np.ndarray, "T _"], ...]
    has_probabilities: bool
    action_names: tuple[str, ...] | None
    chosen: Int[np.ndarray, "T K"]
    means: Float[np.ndarray, "T C"]
    scales: Float[np.ndarray, "T C"]
    continuous: Float[np.ndarray, "T C"]
    metrics: dict[str, Float[np.ndarray, " S"]]
    attention: Float[np.ndarray, "L H S W"] | None
    influence: Float[np.ndarray, "T T"] | None
    memory: SegmentMemory | None = None
    held: Float[np.ndarray, "N G M T"] | None = None

    @property
    def num_actions(self) -> int:
        """T, the number of actions."""
        return len(self.chosen)


def inspect_episode(
    run: Loaded, seed: int = 0, num_steps: int = 400, task: int = 0
) -> InspectedEpisode:
    """Play an episode with the agent of a run, the same as `gtrxl play`, and look into its memory.

    Args:
      run: the run, from `gtrxl_jax.load`.
      seed: seed of the episode.
      num_steps: the most actions that are kept; the rest of a longer episode is left out.
      task: the task of the run that is played.

    Raises:
      ValueError: if num_steps is below 1, the run has no such task, its agent forgets, or the
        episode exceeds its time limit.
    """
    require_count("num_steps", num_steps)
    if run.forget:
        raise ValueError("an agent that forgets cannot be inspected: load the run without forget")
    if not 0 <= task < len(run.tasks):
        raise ValueError(f"task must be below {len(run.tasks)}, the run's number of tasks: {task}")
    policy, stream = run.policy, run.tasks[task]
    (whole,) = record_episodes(policy, stream, run.params, seed, 1)
    others = record_episodes(
        policy, stream, run.params, seed, OTHERS, first=1, with_attention=False
    )
    steps = min(len(whole.timesteps.first) - 1, num_steps)
    timesteps = jax.tree.map(lambda x: x[: steps + 1], whole.timesteps)
    acting = jax.tree.map(lambda x: x[:-1], timesteps)
    actions = jax.tree.map(lambda x: x[1:], timesteps.action)
    extras = jax.tree.map(lambda x: x[:steps], whole.extras)
    config = run.config
    rewards = np.asarray(whole.timesteps.reward, np.float64)
    agent = policy.agent if isinstance(policy, AgentPolicy) else None
    values = getattr(extras, "value", None)
    if values is not None and values.ndim > 1:
        values = values[:, task]
        if (units := run.value_units[0]) is not None:
            mean_N, scale_N = units
            values = scale_N[task] * values + mean_N[task]
    elsewhere = [other.timesteps for other in others]
    found = influence(policy, run.params, acting, actions, elsewhere)
    return InspectedEpisode(
        agent=config.core.name if agent else config.model.name,
        environment=run.environment[0],
        params=_parameters(stream),
        seed=seed,
        success=whole.success,
        episode_return=float(rewards.sum()),
        length=len(rewards) - 1,
        cue=whole.cue if whole.cue is not None and whole.cue < steps else None,
        frames=render_episode(stream, whole, steps + 1),
        rewards=rewards[: steps + 1],
        returns=_returns(rewards, getattr(config.algorithm, "gamma", 1.0))[: steps + 1],
        values=values,
        action_names=action_names(stream.env),
        **_actions(extras, actions, action_spec(stream.action_space)),
        metrics=_metrics_by_step(agent, run.params, timesteps) if agent else {},
        attention=None if whole.attention is None else whole.attention[:, :, : steps + 1],
        influence=found.decisions if found else None,
        memory=policy.memory(run.params, timesteps) if isinstance(policy, SequencePolicy) else None,
        held=found.memory if found else None,
    )


def _parameters(stream: Any) -> dict[str, Any]:
    """Return the parameters of a jitted environment that are numbers or names."""
    params = getattr(stream, "params", None)
    if not dataclasses.is_dataclass(params):
        return {}
    values = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
    return {name: x for name, x in values.items() if isinstance(x, bool | int | float | str)}


def _returns(rewards: Float[np.ndarray, " S"], gamma: float) -> Float[np.ndarray, " S"]:
    """Return the discounted sum of the rewards after each time step."""
    returns = np.zeros_like(rewards)
    for step in range(len(rewards) - 2, -1, -1):
        returns[step] = rewards[step + 1] + gamma * returns[step + 1]
    return returns


def _actions(extras: Any, actions: Any, spec: Any) -> dict[str, Any]:
    """Return what the episode says about its actions, given the outputs of the policy."""
    parts = spec.parts(actions)
    none_T0 = np.zeros((len(jax.tree.leaves(actions)[0]), 0))
    policy = getattr(extras, "policy", extras)
    has_probabilities = not isinstance(policy, np.ndarray)
    if not has_probabilities:
        choices = [policy]
    else:
        categoricals = getattr(policy, "categoricals", [policy] if spec.discrete else [])
        choices = [np.asarray(jax.nn.softmax(one.logits)) for one in categoricals]
    gaussian = getattr(policy, "gaussian", policy) if spec.continuous else None
    return {
        "choices": tuple(choices),
        "has_probabilities": has_probabilities,
        "chosen": parts.get("discrete", none_T0.astype(np.int32)),
        "means": none_T0 if gaussian is None else np.asarray(gaussian.mean),
        "scales": none_T0 if gaussian is None else np.asarray(gaussian.scale),
        "continuous": parts.get("continuous", none_T0),
    }


def _metrics_by_step(
    agent: MemoryNetwork, params: Any, timesteps: TimeStep
) -> dict[str, Float[np.ndarray, " S"]]:
    """Return what the modules of the core report at each step, by path."""
    reported = jax.device_get(_report(agent, params, timesteps)).get("core", {})
    # Where a core scans the steps of a segment, there is an axis of the single step.
    return {
        path: values.reshape(len(values), -1).mean(axis=1)
        for path, (values,) in traverse_util.flatten_dict(reported, sep="/").items()
    }


@functools.partial(jax.jit, static_argnums=0)
def _report(agent: MemoryNetwork, params: Any, timesteps: TimeStep) -> Any:
    """Return the metrics that modules sow in segments of one step each."""
    apply: Any = agent.apply

    def step(memory: Any, timestep: TimeStep) -> Any:
        (memory, _), sown = apply({"params": params}, memory, timestep, mutable="metrics")
        return memory, sown.get("metrics", {})

    each = jax.tree.map(lambda x: jnp.asarray(x)[:, None, None], timesteps)
    return jax.lax.scan(step, agent.initial_memory(1), each)[1]
