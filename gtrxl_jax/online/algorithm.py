"""The contract of online algorithms, which own what they learn with.

    algorithm = config.make(setup)                          a config's algorithm, for a run
    algorithm.agent                                         the network that it trains
    algorithm.behavior                                      the policy that acts in rollouts
    learner = algorithm.init(params, hyperparameters, experience)
    params = algorithm.acting_params(learner)
    learner, metrics = algorithm.update(learner, experience, key)

The trainer acts with the behavior and `acting_params` in the environments, which gives the
`Experience` of a rollout, and updates the learner by it. All of these functions are pure, and apply
to sharded arrays. `online.on_policy.OnPolicy` implements what PPO and V-MPO share.
"""

import abc
import dataclasses
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key, Real

from gtrxl_jax.acting.policy import AgentPolicy
from gtrxl_jax.custom import describe_part, is_custom, require_same_shapes
from gtrxl_jax.nn.core import MemoryCore
from gtrxl_jax.nn.encoders import require_encoders
from gtrxl_jax.nn.normalizer import update_normalizers
from gtrxl_jax.online.optimizer import OptimizerConfig
from gtrxl_jax.ops.losses import masked_mean
from gtrxl_jax.ops.popart import PopArtStatistics
from gtrxl_jax.ops.returns import transition_mask
from gtrxl_jax.plugins import Registry
from gtrxl_jax.specs import IMAGE_AXES
from gtrxl_jax.timestep import EpisodeStats, TimeStep
from gtrxl_jax.validation import choice, number

Metrics = dict[str, Real[Array, ""]]
"""Scalars by name."""


@dataclasses.dataclass(frozen=True)
class AgentConfig:
    """The agent, except its memory core."""

    encoder: str = "auto"
    """Observation encoder: auto, linear, mlp, conv, nature or resnet (used in the paper, and by
    auto for images; nature is many times faster on CPU), text (an LSTM over tokens), another
    registered name, or package.module:Name, a custom encoder."""
    encoders: dict[str, str] = dataclasses.field(default_factory=dict)
    """Encoders of single keys of a dict, or of a tuple by number, as key name pairs:
    --agent.encoders image nature mission text"""
    encoder_width: int = 64
    """Number of features of an observation."""
    image_axes: str = choice("auto", IMAGE_AXES)
    """Where the channels of images are: hwc (last), chw (first), or auto, by the shape. Frames of a
    stack come before both and become channels. A run says in its first lines how it reads them."""
    head_width: int = 256
    """Number of hidden units of the policy head and of the value head (256 in the paper)."""
    normalize: bool = True
    """Scale integers, pixels, flags and choices of observations, and the previous reward, by their
    running means and deviations, and floats as far as these are not ordinary. Otherwise only large
    integers and pixels, by the range that their space declares."""
    initial_scale: float = 0.5
    """Initial standard deviation of a Gaussian policy, relative to half of the action's range."""
    max_scale: float = 1.0
    """Upper bound of that standard deviation, in the same unit. Actions are clipped to their range:
    a wider policy is no more random, but an entropy bonus would make it ever wider."""
    clock: bool = False
    """Add the number of steps since the start of the episode to the core's inputs: for tasks where
    what has to be remembered depends on it, which attention with relative positions cannot know."""
    reconstruction: float = number(0.0, at_least=0)
    """Weight of an auxiliary loss, for any core: to reconstruct the observation, the previous
    action and its reward from the core's output, as MERLIN does. 0: none."""
    pixel_control: float = number(0.0, at_least=0)
    """Weight of an auxiliary loss for images, of UNREAL: values of the actions for changing the
    pixels of each cell of a grid. 0: none."""
    rnd: float = number(0.0, at_least=0)
    """Weight of an exploration bonus, by random network distillation (RND), a reward for what the
    agent has seldom observed: about what a step earns at first, in the unit of the environment's
    rewards, such as the cost of a step, which it has to exceed. 0: none."""
    memoryless: bool = False
    """Present every step to the core as the first of an episode, as a control without memory. A
    clock then stays at 0."""

    def check(self) -> None:
        """Raise ValueError if an encoder is unknown, or its module has not been imported."""
        require_encoders("agent", self.encoder, self.encoders)


@dataclasses.dataclass(frozen=True)
class Setup:
    """The settings of a run that an algorithm needs.

    Attributes:
      core: the memory core.
      observation_space, action_space: the spaces of the environments.
      agent: settings of the agent.
      optimizer: settings of the optimizer.
      num_tasks: N, the number of tasks among the environments.
      num_envs: the number of environments.
      segments: K, the number of segments of each environment in a rollout.
      unroll: T, the number of steps of a segment.
      num_updates: the number of updates over which the learning rate changes.
    """

    core: MemoryCore
    observation_space: Any
    action_space: Any
    agent: AgentConfig
    optimizer: OptimizerConfig
    num_tasks: int
    num_envs: int
    segments: int
    unroll: int
    num_updates: int


@struct.dataclass
class Experience:
    """Segments of T steps to learn from; the leading axis of every array is the batch.

    A rollout has K consecutive segments of each environment, in consecutive rows.

    Attributes:
      memory: `[B]`, the agent's memory before the first step.
      timesteps: `[B, T + 1]`, including the bootstrap step.
      actions: `[B, T]`, as the behavior chose them.
      extras: `[B, T]`, what else the behavior computed, see `Policy.act`.
      bootstrap: `[B]`, what it computed at the bootstrap step.
      episodes: `[B, T]`, statistics of the running episodes after each action.
      task: `[B]`, the task of each segment's environment, 0 .. N - 1.
      bonus: `[B, T]`, the exploration bonus of the step after each action; None without.
    """

    memory: Any
    timesteps: TimeStep
    actions: Any
    extras: Any
    bootstrap: Any
    episodes: EpisodeStats
    task: Int[Array, " B"]
    bonus: Float[Array, "B T"] | None = struct.field(default=None, kw_only=True)


class Learner(Protocol):
    """What learning changes, a flax.struct dataclass; fields with a batch axis are `batch_field`s.

    Attributes:
      params: the agent's parameters, which act in evaluations.
      hyperparameters: scalars by name, see `AlgorithmConfig.hyperparameters`, and "learning_rate".
    """

    @property
    def params(self) -> Any: ...

    @property
    def hyperparameters(self) -> dict[str, Float[Array, ""]]: ...


class Algorithm(abc.ABC):
    """Learns from rollouts.

    Attributes:
      agent: the network, with the interface of `nn.agent.Agent`.
      behavior: the policy that acts in rollouts.
    """

    agent: Any
    behavior: AgentPolicy

    @abc.abstractmethod
    def init(
        self, params: Any, hyperparameters: dict[str, Float[Array, ""]], experience: Experience
    ) -> Any:
        """Return the `Learner` at the start of a run.

        Args:
          params: the agent's initial parameters.
          hyperparameters: see `Learner`.
          experience: the shapes and dtypes of a rollout's experience.
        """

    @abc.abstractmethod
    def update(
        self, learner: Any, experience: Experience, key: Key[Array, ""]
    ) -> tuple[Any, Metrics]:
        """Learn from a rollout; return the new learner and metrics.

        Metrics named `finite/NAME` are checks: where one is False, the run has diverged, and the
        error names NAME, such as "loss" or "parameters".
        """

    def acting_params(self, learner: Any) -> Any:
        """Return the parameters that act in rollouts."""
        return learner.params

    def value_statistics(self, learner: Any) -> PopArtStatistics | None:
        """Return the statistics in whose units the agent's values are; None if in the rewards'."""
        return None

    def convert_values(self, learner: Any, experience: Experience, acted: Any) -> Experience:
        """Convert the values in an experience to the units of the learner's.

        Args:
          learner: what will learn from it, some updates after those that acted.
          experience: the experience, with values in the units of `acted`.
          acted: the `value_statistics` of the learner whose parameters acted.
        """
        return experience

    def policy(self, actions: str) -> AgentPolicy:
        """Return the policy of evaluations; `actions` is `EvaluationConfig.actions`."""
        return AgentPolicy(self.agent, actions)

    def to_checkpoint(self, learner: Any) -> Any:
        """Return what checkpoints keep of a learner: all of it, or some fields replaced by ()."""
        return learner

    def from_checkpoint(self, saved: Any, fresh: Any) -> Any:
        """Return the learner of a resumed run, given what was saved and a new run's learner."""
        return saved


@dataclasses.dataclass(frozen=True)
class AlgorithmConfig(abc.ABC):
    """The config of an algorithm, with its settings."""

    name: str = ""
    """A registered name, or package.module:Name, the config of a custom algorithm."""

    learning_rate: ClassVar[float] = 1e-3
    """The learning rate of runs whose `optimizer.learning_rate` is None."""
    hyperparameters: ClassVar[tuple[str, ...]] = ()
    """The fields that are arrays in the program and thus may differ between the seeds of a run."""

    @abc.abstractmethod
    def make(self, setup: Setup) -> Algorithm:
        """Return the algorithm of a run.

        Raises:
          ValueError: if it cannot learn in the environments.
        """

    def check_rollout(self, num_envs: int, segments: int, unroll: int) -> None:
        """Raise ValueError unless the algorithm can learn from rollouts of these sizes."""
        return

    @staticmethod
    def named(name: str = "ppo") -> type["AlgorithmConfig"]:
        """Return the config class of an algorithm.

        Raises:
          ValueError: if the name is unknown, or its module has not been imported.
        """
        return ALGORITHMS.find(name)


ALGORITHMS = Registry("algorithm.name", AlgorithmConfig)
"""The config of each registered algorithm."""


def register_algorithm(name: str, config: type[AlgorithmConfig]) -> None:
    """Register an algorithm by its config; see `Registry.register`."""
    ALGORITHMS.register(name, config)


# Parts of updates.


def run_segment(
    agent: Any, params: Any, memory: Any, timesteps: TimeStep, method: str = "__call__"
) -> tuple[Any, dict[str, Metrics]]:
    """Run an agent on a segment `[B, S]`; return its outputs, and what modules reported.

    Reports are means by kind, "metrics" and "losses", and path. With the method "features", outputs
    are the input of the agent's heads.
    """
    (_, outputs), sown = agent.apply(
        {"params": params}, memory, timesteps, method=method, mutable=["metrics", "losses"]
    )
    return outputs, {kind: _means(values) for kind, values in sown.items()}


def _means(sown: Any) -> Metrics:
    """Return the means of values by path: "core/blocks_0/attention_gate/opening"."""
    return {
        "/".join(key.key for key in path if hasattr(key, "key")): jnp.mean(value)
        for path, value in jax.tree.leaves_with_path(sown)
    }


def compute_bonus(
    agent: Any, params: Any, experience: Experience, gamma: float | Float[Array, ""]
) -> tuple[Experience, Metrics]:
    """Fill an experience's bonus with the agent's, and return its mean; {} without RND.

    For the bonus, episodes do not end (Burda et al. 2018, section 2.3): where one terminates, the
    mean bonus is added for all later steps, or an agent would avoid terminating. With gamma = 1,
    the sum diverges and nothing is added. Before there are statistics of observations and errors,
    which have no unit, the bonus is 0.
    """
    if getattr(agent, "rnd", None) is None:
        return experience, {}
    arrived = jax.tree.map(lambda x: x[:, 1:], experience.timesteps)
    bonus_BT = agent.apply({"params": params}, arrived, method="bonus")
    bonus_BT = jnp.where(params["rnd"]["normalizer"]["count"] > 0, bonus_BT, 0)
    mean = masked_mean(bonus_BT, transition_mask(experience.timesteps.last))
    ended_BT = arrived.last & (arrived.discount == 0)
    forever = jnp.where(gamma < 1, mean * gamma / jnp.where(gamma < 1, 1 - gamma, 1), 0)
    bonus_BT += jnp.where(ended_BT, forever, 0)
    return dataclasses.replace(experience, bonus=bonus_BT), {"rnd/bonus": mean}


def add_bonus_to_rewards(timesteps: TimeStep, bonus_BT: Float[Array, "B T"] | None) -> TimeStep:
    """Add the bonus, unless None, to the rewards of time steps `[B, T + 1]`, for returns."""
    if bonus_BT is None:
        return timesteps
    bonus_BS = jnp.pad(bonus_BT.astype(timesteps.reward.dtype), ((0, 0), (1, 0)))
    return dataclasses.replace(timesteps, reward=timesteps.reward + bonus_BS)


def update_agent_normalizers(agent: Any, params: Any, timesteps: TimeStep, normalize: bool) -> Any:
    """Return the parameters with all normalizers updated by time steps.

    Without `normalize` (see `AgentConfig`), update only those of the auxiliary losses and the
    bonus.
    """
    updated = update_normalizers(agent, {"params": params}, timesteps)["params"]
    if "rnd" in updated:
        # Errors are of observations as they are scaled from now on.
        own = {**updated["rnd"], "normalizer": params["rnd"]["normalizer"]}
        again = update_normalizers(agent, {"params": {**updated, "rnd": own}}, timesteps)
        own["normalizer"] = again["params"]["rnd"]["normalizer"]
        updated = {**updated, "rnd": own}
    auxiliary = {name: updated[name] for name in ("reconstruction", "rnd") if name in updated}
    return updated if normalize else {**params, **auxiliary}


def sum_losses(
    terms: dict[str, Float[Array, ""]], reports: dict[str, Metrics]
) -> tuple[Float[Array, ""], Metrics]:
    """Return the sum of loss terms and of the modules' auxiliary losses, and a metric for each.

    Losses of cores and encoders are summed up to `loss/auxiliary`. Those of other modules have the
    name of the module, such as `loss/reconstruction`.

    Args:
      terms: the terms by name.
      reports: what modules reported, see `run_segment`.
    """
    for path, loss in reports.get("losses", {}).items():
        module = path.partition("/")[0]
        name = "auxiliary" if module in ("core", "encoder") else module
        terms[name] = terms[name] + loss if name in terms else loss
    metrics = {f"loss/{name}": term for name, term in terms.items()}
    return jnp.sum(jnp.stack(list(terms.values()))), metrics | reports.get("metrics", {})


def copy_if(is_due: Bool[Array, ""], params: Any, target: Any) -> Any:
    """Return the target network's parameters: a copy of `params` if `is_due`, otherwise unchanged.

    `cond` instead of `where`, which would read and write every array in every step.
    """
    return jax.lax.cond(is_due, lambda new, _: new, lambda _, old: old, params, target)


def require_same_state(algorithm: Algorithm, before: Any, after: Any) -> None:
    """Raise ValueError if a custom algorithm has changed a shape or dtype of its learner's state.

    It names the class, its file and line, and the array.
    """
    if is_custom(algorithm):
        own = vars(type(algorithm))
        method = next((name for name in ("step", "update") if name in own), "")
        where = describe_part("algorithm", algorithm, method)
        require_same_shapes(where, "an update", "state", before, after)


def by_task(name: str, values_N: Float[Array, " N"]) -> Metrics:
    """Return a metric for each task as `name/task_0`, or as `name` if there is only one task."""
    if len(values_N) == 1:
        return {name: values_N[0]}
    return {f"{name}/task_{k}": value for k, value in enumerate(values_N)}


def reduce_metrics(metrics: dict[str, Array]) -> Metrics:
    """Reduce metrics over a leading axis of optimizer steps: checks must hold in all of them."""

    def reduce(name: str, value: Array) -> Array:
        return jnp.all(value) if name.startswith("finite/") else jnp.mean(value)

    return {name: reduce(name, value) for name, value in metrics.items()}
