"""The contract of online algorithms: what is learned from a rollout.

The trainer plays the policy in the environments; an algorithm turns each rollout into an update:

    rollout -> prepare -> for each of `epochs` passes, for each of `minibatches` parts:
                              loss -> gradient -> optimizer -> after_step

An algorithm implements `loss`, and overrides what it does differently from the base class. All of
its functions are pure, and apply to sharded arrays.
"""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from gtrxl_jax.nn.agent import Agent, AgentOutput
from gtrxl_jax.nn.heads import rescale_value_gradient, rescale_value_head
from gtrxl_jax.nn.normalizer import update_normalizers, weights
from gtrxl_jax.online.config import OnlineConfig
from gtrxl_jax.online.episodes import Summary, by_task, reported
from gtrxl_jax.online.minibatches import draw_minibatches, take_minibatch
from gtrxl_jax.ops import popart
from gtrxl_jax.ops.legal import has_choice
from gtrxl_jax.ops.promotion import standard_dtype_promotion
from gtrxl_jax.ops.returns import lambda_returns, transition_mask
from gtrxl_jax.ops.schedule import warmup_and_decay
from gtrxl_jax.parallel.placement import gather_parameters, split_parameters
from gtrxl_jax.runs.divergence import finite, first_failure, first_nonfinite
from gtrxl_jax.timestep import TimeStep


@struct.dataclass
class LearnerState:
    """The part of a run's state that learning changes.

    Attributes:
      trainable: "params", the agent's parameters, and whatever else the gradient trains.
      optimizer: state of the optax optimizer of `trainable`.
      popart: statistics of each task's returns; mean 0 and variance 1 without PopArt.
      algorithm: the algorithm's own state, such as a target network.
      hyperparameters: scalars by name, see `AlgorithmConfig.hyperparameters`, and "learning_rate".
      step: number of completed optimizer steps.
    """

    trainable: dict[str, Any]
    optimizer: optax.OptState
    popart: popart.PopArtStatistics
    algorithm: Any
    hyperparameters: dict[str, Float[Array, ""]]
    step: Int[Array, ""]

    @property
    def params(self) -> Any:
        """The agent's parameters."""
        return self.trainable["params"]


@struct.dataclass
class Experience:
    """Segments of T steps to learn from; the leading axis of every array is the batch.

    A rollout has K consecutive segments of each environment, in consecutive rows.

    Attributes:
      memory: `[B]`, the agent's memory before the first step.
      timesteps: `[B, T + 1]`, including the bootstrap step.
      actions: `[B, T]`, as the policy chose them.
      output: `[B, T]`, outputs of the acting network.
      bootstrap_BN: V of the bootstrap step for each task, by the acting network.
      task: `[B]`, the task of each segment's environment, 0 .. N - 1.
      prepared: whatever `Algorithm.prepare` computed.
    """

    memory: Any
    timesteps: TimeStep
    actions: Any
    output: AgentOutput
    bootstrap_BN: Float[Array, "B N"]
    task: Int[Array, " B"]
    prepared: Any = ()


@struct.dataclass
class Targets:
    """What values are regressed to, in the normalized units of the new PopArt statistics.

    Attributes:
      returns_BT: lambda-returns.
      mask_BT: which steps are transitions, see `ops.returns.transition_mask`.
      task: `[B]`, see `Experience`.
      factor_N: with `shift_N`, converts outputs of the value head to the new units.
      shift_N: see `factor_N`.
      statistics: the new statistics, which `Algorithm.loss` has to return.
    """

    returns_BT: Float[Array, "B T"]
    mask_BT: Bool[Array, "B T"]
    task: Int[Array, " B"]
    factor_N: Float[Array, " N"]
    shift_N: Float[Array, " N"]
    statistics: popart.PopArtStatistics

    def values(self, value_BSN: Float[Array, "B S N"]) -> Float[Array, "B T"]:
        """Convert the outputs of the value head, including the bootstrap step's, to values."""
        factor_B, shift_B = self.factor_N[self.task], self.shift_N[self.task]
        return (factor_B[:, None] * of_task(value_BSN, self.task) + shift_B[:, None])[:, :-1]


def of_task(value_BSN: Float[Array, "B S N"], task_B: Int[Array, " B"]) -> Float[Array, "B S"]:
    """Select the value of each environment's task."""
    return jnp.take_along_axis(value_BSN, task_B[:, None, None], axis=-1)[..., 0]


class Algorithm(abc.ABC):
    """Learns from rollouts.

    Attributes:
      config: the algorithm's config, an `AlgorithmConfig`.
      agent: the agent that is trained.
    """

    def __init__(self, config: OnlineConfig, agent: Agent):
        self.config: Any = config.algorithm
        self.agent = agent
        self._clip_norm = config.optimizer.clip_norm
        self._num_tasks = config.env.num_tasks
        self._normalize = config.agent.normalize
        steps = config.decay_updates * self.config.epochs * self.config.minibatches
        self.optimizer = optax.scale_by_adam(b2=config.optimizer.beta_2)
        # Relative to the peak learning rate, which is one of the hyperparameters.
        self.schedule = warmup_and_decay(
            1.0, config.optimizer.warmup, config.optimizer.final, steps
        )
        self.entropy_schedule = optax.linear_schedule(1.0, self.config.entropy_final, steps)

    # What an algorithm defines.

    @abc.abstractmethod
    def loss(
        self, trainable: dict[str, Any], state: LearnerState, experience: Experience
    ) -> tuple[Float[Array, ""], tuple[Summary, popart.PopArtStatistics]]:
        """Compute the loss on a minibatch.

        Args:
          trainable: `state.trainable`; the loss is differentiated with respect to it.
          state: the state before the step.
          experience: the minibatch.

        Returns:
          The loss; its metrics, and the PopArt statistics whose units it used, `state.popart` or
          those of `targets`. See `total`.
        """

    def extra_trainable(self, hyperparameters: dict[str, Float[Array, ""]]) -> dict[str, Any]:
        """Return what the gradient trains besides the agent's parameters, by name."""
        return {}

    def initial_state(self, params: Any) -> Any:
        """Return the algorithm's own state at the start of a run."""
        return ()

    def acting_params(self, state: LearnerState) -> Any:
        """Return the parameters that act in rollouts."""
        return state.params

    def prepare(
        self, state: LearnerState, experience: Experience
    ) -> tuple[LearnerState, Experience]:
        """Compute what stays fixed over all passes over a rollout, such as advantages."""
        return state, experience

    def rescaled(self, state: LearnerState, statistics: popart.PopArtStatistics) -> LearnerState:
        """Return the state with new PopArt statistics and each value head rescaled to them."""
        params = rescale_value_head(state.params, state.popart, statistics)
        trainable = {**state.trainable, "params": params}
        return dataclasses.replace(state, trainable=trainable, popart=statistics)

    def observed(self, state: LearnerState, timesteps: TimeStep) -> LearnerState:
        """Return the state with the networks' normalizers updated by time steps."""
        variables = update_normalizers(self.agent, {"params": state.params}, timesteps)
        return dataclasses.replace(state, trainable=state.trainable | variables)

    def after_step(
        self, before: LearnerState, after: LearnerState, metrics: Summary
    ) -> LearnerState:
        """Return the state after whatever follows an optimizer step, such as a target update."""
        return after

    def sound(self, state: LearnerState) -> dict[str, Bool[Array, ""]]:
        """Return whether quantities of the algorithm's own are sound, see `runs.divergence`."""
        return {}

    # What every algorithm has.

    def init(self, params: Any, hyperparameters: dict[str, Float[Array, ""]]) -> LearnerState:
        """Return the state at the start of a run, given the agent's initial parameters."""
        trainable = {"params": params, **self.extra_trainable(hyperparameters)}
        return LearnerState(
            trainable=trainable,
            optimizer=self.optimizer.init(trainable),
            popart=popart.init(self._num_tasks),
            algorithm=self.initial_state(params),
            hyperparameters=hyperparameters,
            step=jnp.zeros((), jnp.int32),
        )

    def update(
        self, state: LearnerState, experience: Experience, key: Key[Array, ""]
    ) -> tuple[LearnerState, Summary]:
        """Learn from a rollout; return the new state and the means of the steps' metrics."""
        # The networks learn with the statistics with which they acted.
        steps = jax.tree.map(lambda x: x[:, :-1], experience.timesteps)
        state, metrics = self._learn(*self.prepare(state, experience), key)
        return (self.observed(state, steps) if self._normalize else state), metrics

    def _learn(
        self, state: LearnerState, experience: Experience, key: Key[Array, ""]
    ) -> tuple[LearnerState, Summary]:
        """Take the optimizer steps of all epochs and minibatches."""
        epochs, minibatches = self.config.epochs, self.config.minibatches
        if epochs * minibatches == 1:
            return self.step(state, experience)
        places = draw_minibatches(key, len(experience.task), minibatches, epochs)

        def one(state: LearnerState, place_G: Int[Array, " G"]) -> tuple[LearnerState, Summary]:
            return self.step(state, take_minibatch(experience, place_G))

        state, metrics = jax.lax.scan(one, state, places)
        nonfinite = first_failure(metrics.pop("nonfinite"))[0]
        return state, jax.tree.map(jnp.mean, metrics) | {"nonfinite": nonfinite}

    def step(self, state: LearnerState, experience: Experience) -> tuple[LearnerState, Summary]:
        """Take one optimizer step on a minibatch."""
        (loss, (metrics, statistics)), gradients = jax.value_and_grad(self.loss, has_aux=True)(
            gather_parameters(state.trainable), state, experience
        )
        gradients = split_parameters(gradients)
        if self.config.popart:
            gradients["params"] = rescale_value_gradient(
                gradients["params"], state.popart, statistics
            )
            state = self.rescaled(state, statistics)
            metrics |= by_task("popart/mean", statistics.mean_N)
            metrics |= by_task("popart/scale", statistics.scale_N)
        gradient_norm = optax.tree.norm(gradients["params"])
        if self._clip_norm:
            # XLA fuses this factor into Adam, unlike optax's selection between two gradients.
            factor = jnp.minimum(1.0, self._clip_norm / gradient_norm)
            gradients["params"] = jax.tree.map(lambda g: factor * g, gradients["params"])
            clipped = gradient_norm > self._clip_norm
            metrics["gradient_clipped"] = clipped.astype(gradient_norm.dtype)
        with standard_dtype_promotion():
            changes, optimizer = self.optimizer.update(gradients, state.optimizer)
            decay = self.schedule(state.step.astype(float))
        rate = state.hyperparameters["learning_rate"] * decay
        after = dataclasses.replace(
            state,
            trainable=optax.apply_updates(
                state.trainable, jax.tree.map(lambda change: -rate * change, changes)
            ),
            optimizer=optimizer,
            step=state.step + 1,
        )
        state = self.after_step(state, after, metrics)
        metrics |= {
            "gradient_norm": gradient_norm,
            "parameter_norm": optax.tree.norm(weights(state.params)),
            "learning_rate": rate,
        }
        sound = {
            "reward": finite(experience.timesteps.reward),
            "loss": finite(loss),
            "gradient norm": finite(gradient_norm),
            "parameters": finite(metrics["parameter_norm"]),
        }
        if experience.timesteps.legal is not None:
            sizes = self.agent.policy_head.action.discrete
            sound["legal actions"] = jnp.all(has_choice(experience.timesteps.legal, sizes))
        metrics["nonfinite"] = first_nonfinite(sound | self.sound(state))
        return state, metrics

    # Parts of losses.

    def entropy_cost(self, state: LearnerState) -> Float[Array, ""]:
        """Return the weight of the entropy bonus at this step."""
        decay = self.entropy_schedule(state.step.astype(float))
        return state.hyperparameters["entropy_cost"] * decay

    def features(
        self, params: Any, experience: Experience
    ) -> tuple[Float[Array, "B S D"], dict[str, Summary]]:
        """Run the agent up to its heads; return their input, and what modules reported."""
        apply: Any = self.agent.apply
        (_, y_BSD), recorded = apply(
            {"params": params},
            experience.memory,
            experience.timesteps,
            method="features",
            mutable=["metrics", "losses"],
        )
        return y_BSD, {kind: reported(values) for kind, values in recorded.items()}

    def heads(self, params: Any, y_BSD: Float[Array, "B S D"], timesteps: TimeStep) -> AgentOutput:
        """Compute the agent's outputs at the time steps from the heads' input."""
        apply: Any = self.agent.apply
        return apply({"params": params}, y_BSD, timesteps.legal, method="heads")

    def returns(
        self, state: LearnerState, timesteps: TimeStep, value_BS: Float[Array, "B S"]
    ) -> Float[Array, "B T"]:
        """Return the lambda-returns of a rollout, for values in the units of its rewards."""
        return lambda_returns(
            reward_BS=timesteps.reward.astype(value_BS.dtype),
            discount_BS=timesteps.discount.astype(value_BS.dtype),
            last_BS=timesteps.last,
            value_BS=value_BS,
            gamma=state.hyperparameters["gamma"],
            lambda_=state.hyperparameters["gae_lambda"],
        )

    def targets(
        self,
        state: LearnerState,
        experience: Experience,
        value_BSN: Float[Array, "B S N"],
        passes: int = 1,
    ) -> Targets:
        """Compute what values are regressed to, given the value head's outputs; no gradient.

        `passes` is how often this is called for each segment, which PopArt counts once.
        """
        steps, task_B = experience.timesteps, experience.task
        task_BS = jnp.broadcast_to(task_B[:, None], steps.last.shape)
        mask_BT = transition_mask(steps.last)
        output_BS = of_task(jax.lax.stop_gradient(value_BSN), task_B)
        value_BS = popart.unnormalize(state.popart, output_BS, task_BS)
        if self.config.popart:
            # Outputs have no unit before the first statistics, which they must not influence.
            value_BS = jnp.where(state.popart.weight_N[task_BS] > 0, value_BS, 0)
        returns_BT = self.returns(state, steps, value_BS)
        statistics = state.popart
        if self.config.popart:
            rate = self.config.popart_rate / passes
            task_BT, reward_BT = task_BS[:, :-1], steps.reward[:, 1:].astype(returns_BT.dtype)
            statistics = popart.update_range(statistics, reward_BT, task_BT, mask_BT)
            statistics = popart.update(statistics, returns_BT, task_BT, mask_BT, rate)
        factor_N, shift_N = popart.conversion(state.popart, statistics)
        returns_BT = popart.normalize(statistics, returns_BT, task_BS[:, :-1])
        return Targets(returns_BT, mask_BT, task_B, factor_N, shift_N, statistics)

    def total(
        self, terms: dict[str, Float[Array, ""]], reports: dict[str, Summary]
    ) -> tuple[Float[Array, ""], Summary]:
        """Return the sum of the loss terms and of auxiliary losses, and a metric for each.

        Args:
          terms: the terms by name.
          reports: what modules reported, see `features`.
        """
        if auxiliary := reports.get("losses"):
            terms["auxiliary"] = jnp.sum(jnp.stack(list(auxiliary.values())))
        metrics = {f"loss/{name}": term for name, term in terms.items()}
        return jnp.sum(jnp.stack(list(terms.values()))), metrics | reports.get("metrics", {})
