"""What on-policy actor-critics share: returns, PopArt, and optimizer steps on a rollout.

    update:   for each of `epochs` passes, for each of `minibatches` parts:
                  step: loss -> gradient -> optimizer
              then the normalizers of the inputs

An algorithm implements `loss`. To do more, it extends `init`, `update` or `step`.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from gtrxl_jax.acting.policy import AgentPolicy
from gtrxl_jax.custom import (
    describe_part,
    is_custom,
    require_returned,
    require_same_shapes,
    require_scalars,
)
from gtrxl_jax.nn.agent import AgentOutput, make_agent
from gtrxl_jax.nn.heads import rescale_value_gradient, rescale_value_head
from gtrxl_jax.nn.normalizer import copy_normalizers
from gtrxl_jax.online.algorithm import (
    Algorithm,
    AlgorithmConfig,
    Experience,
    Metrics,
    Setup,
    add_bonus_to_rewards,
    by_task,
    reduce_metrics,
    require_same_state,
    update_agent_normalizers,
)
from gtrxl_jax.online.optimizer import Optimizer
from gtrxl_jax.ops import popart
from gtrxl_jax.ops.returns import lambda_returns, transition_mask
from gtrxl_jax.ops.schedule import warmup_and_decay
from gtrxl_jax.parallel.placement import gather_parameters, split_gradients
from gtrxl_jax.runs.divergence import is_finite
from gtrxl_jax.timestep import TimeStep
from gtrxl_jax.validation import number

Tree = TypeVar("Tree")


@dataclasses.dataclass(frozen=True)
class OnPolicyConfig(AlgorithmConfig):
    """Settings of every on-policy algorithm."""

    gamma: float = number(0.99, at_most=1)
    """Discount factor."""
    gae_lambda: float = number(0.95, at_least=0, at_most=1)
    """Lambda of returns and advantages (GAE). 1: n-step returns, as in the V-MPO paper."""
    value_cost: float = 0.25
    """Weight of the value loss; 1 in the V-MPO paper."""
    entropy_cost: float = number(0.05, at_least=0)
    """Weight of an entropy bonus, the policy's mean entropy in nats. It prevents the policy from
    drifting to one action when all are equally good, and from collapsing to a mediocre one. The
    V-MPO paper uses none."""
    entropy_final: float = number(1.0, at_least=0, at_most=1)
    """Fraction of the entropy bonus that remains at the end of a linear decay, which takes as long
    as the learning rate's; 1: no decay."""
    popart: bool = True
    """Normalize values and advantages by moving statistics of each task's returns (PopArt), so that
    losses do not depend on the units of the rewards."""
    popart_rate: float = number(3e-5, below=1)
    """Weight of one sample in the PopArt statistics, which average over about 1 / rate samples; the
    paper's is 1e-4."""
    epochs: int = 1
    """Number of passes over a rollout."""
    minibatches: int = 1
    """Number of optimizer steps of a pass, each on an equal share of the segments."""

    learning_rate: ClassVar[float] = 2e-3
    hyperparameters: ClassVar[tuple[str, ...]] = (
        "gamma",
        "gae_lambda",
        "value_cost",
        "entropy_cost",
    )

    def check_rollout(self, num_envs: int, segments: int, unroll: int) -> None:
        if num_envs * segments % self.minibatches:
            raise ValueError(
                f"env.num_envs * segments, {num_envs * segments}, is not divisible by "
                f"algorithm.minibatches {self.minibatches}: use a multiple of it"
            )


@struct.dataclass
class LearnerState:
    """What learning changes.

    Attributes:
      trainable: "params", the agent's parameters, and others by name, such as multipliers.
      optimizer: state of the optimizer of `trainable`.
      popart: statistics of each task's returns; mean 0 and variance 1 without PopArt.
      algorithm: the algorithm's own state, such as a target network.
      hyperparameters: see `Learner`.
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
class Targets:
    """What values are regressed to, in the normalized units of the new PopArt statistics.

    Attributes:
      returns_BT: lambda-returns.
      mask_BT: which steps are transitions, see `ops.returns.transition_mask`.
      task: `[B]`, see `Experience`.
      factor_N: with `shift_N`, converts outputs of the value head to the new units.
      shift_N: see `factor_N`.
      statistics: the new statistics, which `OnPolicy.loss` has to return.
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
        return (factor_B[:, None] * select_task(value_BSN, self.task) + shift_B[:, None])[:, :-1]


def select_task(value_BSN: Float[Array, "B S N"], task_B: Int[Array, " B"]) -> Float[Array, "B S"]:
    """Select the value of each environment's task."""
    return jnp.take_along_axis(value_BSN, task_B[:, None, None], axis=-1)[..., 0]


class OnPolicy(Algorithm):
    """An actor-critic that learns from the latest rollout.

    Attributes:
      config: the algorithm's config.
      agent, behavior: see `Algorithm`.
      segments: K, the number of segments of each environment in a rollout.
    """

    def __init__(self, config: Any, setup: Setup):
        self.config = config
        self.segments = setup.segments
        settings = dataclasses.asdict(setup.agent)
        self._normalize = settings.pop("normalize")
        self._num_tasks = setup.num_tasks
        self.agent = make_agent(
            setup.core,
            setup.observation_space,
            setup.action_space,
            num_tasks=setup.num_tasks,
            **settings,
        )
        self.behavior = AgentPolicy(self.agent)
        num_steps = setup.num_updates * config.epochs * config.minibatches
        self._optimizer = Optimizer(setup.optimizer, num_steps)
        self._entropy_schedule = warmup_and_decay(1.0, 0.0, config.entropy_final, num_steps)

    @abc.abstractmethod
    def loss(
        self, trainable: dict[str, Any], state: LearnerState, batch: Any
    ) -> tuple[Float[Array, ""], tuple[Metrics, popart.PopArtStatistics]]:
        """Compute the loss on a minibatch.

        Args:
          trainable: `state.trainable`; the loss is differentiated with respect to it.
          state: the state before the step.
          batch: the minibatch, of `Experience` or of what the algorithm made of it in `update`.

        Returns:
          The loss; its metrics, and the PopArt statistics whose units it used, `state.popart` or
          the statistics of `targets`. See `algorithm.sum_losses`.
        """

    def init(
        self,
        params: Any,
        hyperparameters: dict[str, Float[Array, ""]],
        experience: Experience,
        *,
        extra: Mapping[str, Any] | None = None,
        own: Any = (),
    ) -> LearnerState:
        """Return the state at the start of a run.

        Args:
          params: see `Algorithm.init`.
          hyperparameters: see `Algorithm.init`.
          experience: see `Algorithm.init`.
          extra: trainable parameters besides the agent's, such as Lagrange multipliers.
          own: the algorithm's own state.
        """
        trainable = {"params": params, **(extra or {})}
        return LearnerState(
            trainable=trainable,
            optimizer=self._optimizer.init(trainable),
            popart=popart.init(self._num_tasks),
            algorithm=own,
            hyperparameters=hyperparameters,
            step=jnp.zeros((), jnp.int32),
        )

    def value_statistics(self, learner: LearnerState) -> popart.PopArtStatistics:
        """Return the statistics of PopArt, see `Algorithm.value_statistics`."""
        return learner.popart

    def convert_values(
        self, learner: LearnerState, experience: Experience, acted: popart.PopArtStatistics
    ) -> Experience:
        """Convert the value head's outputs, as `rescale` has converted the learner's head."""
        conversion = popart.conversion(acted, learner.popart)

        def convert(output: AgentOutput) -> AgentOutput:
            factor, shift = (jnp.broadcast_to(x_N, output.value.shape) for x_N in conversion)
            return dataclasses.replace(output, value=factor * output.value + shift)

        return dataclasses.replace(
            experience,
            extras=convert(experience.extras),
            bootstrap=convert(experience.bootstrap),
        )

    def update(
        self, learner: LearnerState, experience: Any, key: Key[Array, ""]
    ) -> tuple[LearnerState, Metrics]:
        """Take the optimizer steps of all epochs and minibatches, and update the normalizers."""
        state, batch = learner, experience
        epochs, minibatches = self.config.epochs, self.config.minibatches
        if epochs * minibatches == 1:
            state, metrics = self._checked_step(state, batch)
        else:
            places = draw_minibatches(key, len(batch.task), minibatches, epochs)

            def one(state: LearnerState, place_G: Int[Array, " G"]) -> tuple[LearnerState, Metrics]:
                return self._checked_step(state, take_minibatch(batch, place_G))

            state, metrics = jax.lax.scan(one, state, places)
            metrics = reduce_metrics(metrics)
        # Afterwards, so that the networks learn with the statistics with which they acted, unless
        # actors on the host are some updates behind.
        state = self.observe(state, jax.tree.map(lambda x: x[:, :-1], batch.timesteps))
        return state, metrics

    def observe(self, state: LearnerState, timesteps: TimeStep) -> LearnerState:
        """Return the state with the normalizers of all networks updated by time steps."""
        updated = update_agent_normalizers(self.agent, state.params, timesteps, self._normalize)
        return self.map_networks(state, lambda params: copy_normalizers(params, updated))

    def step(self, state: LearnerState, batch: Any) -> tuple[LearnerState, Metrics]:
        """Take one optimizer step on a minibatch."""
        if is_custom(self):
            self._check_loss(state, batch)
        (loss, (metrics, statistics)), gradients = jax.value_and_grad(self.loss, has_aux=True)(
            gather_parameters(state.trainable), state, batch
        )
        gradients = split_gradients(gradients)
        if self.config.popart:
            gradients["params"] = rescale_value_gradient(
                gradients["params"], state.popart, statistics
            )
            state = self.rescale(state, statistics)
            metrics |= by_task("popart/mean", statistics.mean_N)
            metrics |= by_task("popart/scale", statistics.scale_N)
        trainable, optimizer, of_step = self._optimizer.step(
            state.trainable,
            state.optimizer,
            gradients,
            state.hyperparameters["learning_rate"],
            state.step,
        )
        metrics |= of_step | {
            "finite/reward": is_finite(batch.timesteps.reward),
            "finite/loss": is_finite(loss),
            "finite/gradient norm": is_finite(of_step["gradient_norm"]),
            "finite/parameters": is_finite(of_step["parameter_norm"]),
        }
        state = dataclasses.replace(
            state, trainable=trainable, optimizer=optimizer, step=state.step + 1
        )
        return state, metrics

    def map_networks(self, state: LearnerState, function: Callable[[Any], Any]) -> LearnerState:
        """Apply a function to the parameters of each of the learner's networks."""
        trainable = state.trainable | {"params": function(state.params)}
        return dataclasses.replace(state, trainable=trainable)

    def rescale(self, state: LearnerState, statistics: popart.PopArtStatistics) -> LearnerState:
        """Return the state with new PopArt statistics and each value head rescaled to them."""
        state = self.map_networks(
            state, lambda params: rescale_value_head(params, state.popart, statistics)
        )
        return dataclasses.replace(state, popart=statistics)

    # Parts of losses.

    def entropy_cost(self, state: LearnerState) -> Float[Array, ""]:
        """Return the weight of the entropy bonus at this step."""
        decay = self._entropy_schedule(state.step.astype(float))
        return state.hyperparameters["entropy_cost"] * decay

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
        batch: Any,
        value_BSN: Float[Array, "B S N"],
        passes: int = 1,
    ) -> Targets:
        """Compute what values are regressed to, given the value head's outputs; no gradient.

        `passes` is how often this is called for each segment, which PopArt counts once.
        """
        steps, task_B = add_bonus_to_rewards(batch.timesteps, batch.bonus), batch.task
        task_BS = jnp.broadcast_to(task_B[:, None], steps.last.shape)
        mask_BT = transition_mask(steps.last)
        output_BS = select_task(jax.lax.stop_gradient(value_BSN), task_B)
        value_BS = popart.unnormalize(state.popart, output_BS, task_BS)
        statistics = state.popart
        if self.config.popart:
            task_BT, reward_BT = task_BS[:, :-1], steps.reward[:, 1:].astype(value_BS.dtype)
            statistics = popart.update_range(statistics, reward_BT, task_BT, mask_BT)
            # Outputs have no unit before the first statistics, which they must not influence.
            value_BS = jnp.where(statistics.weight_N[task_BS] > 0, value_BS, 0)
            gamma = state.hyperparameters["gamma"]
            value_BS = popart.clip_to_possible(statistics, value_BS, task_BS, gamma)
        returns_BT = self.returns(state, steps, value_BS)
        if self.config.popart:
            rate = self.config.popart_rate / passes
            statistics = popart.update(statistics, returns_BT, task_BT, mask_BT, rate)
        factor_N, shift_N = popart.conversion(state.popart, statistics)
        returns_BT = popart.normalize(statistics, returns_BT, task_BS[:, :-1])
        return Targets(returns_BT, mask_BT, task_B, factor_N, shift_N, statistics)

    def _checked_step(self, state: LearnerState, batch: Any) -> tuple[LearnerState, Metrics]:
        """Take a `step`; check the state that a custom algorithm returns, a loop's carry."""
        after, metrics = self.step(state, batch)
        require_same_state(self, state, after)
        return after, metrics

    def _check_loss(self, state: LearnerState, batch: Any) -> None:
        """Check what a custom loss returns, which JAX's errors would not name."""
        where = describe_part("algorithm", self, "loss")
        returned = jax.eval_shape(self.loss, state.trainable, state, batch)
        require_returned("algorithm", self, "loss", returned, ("loss", "(metrics, statistics)"))
        loss, auxiliary = returned
        require_returned("algorithm", self, "loss", auxiliary, ("metrics", "statistics"))
        metrics, statistics = auxiliary
        named = {f"the metric {name}": x for name, x in metrics.items()}
        require_scalars(where, {"the loss": loss, **named})
        require_same_shapes(where, "the loss", "statistics", state.popart, statistics)


def gradient_shares(
    losses: Callable[[Array], Mapping[str, Array]], y: Array, groups: Mapping[str, tuple[str, ...]]
) -> Metrics:
    """Compute each group's share of the losses' gradient at the core's output: `share/GROUP`.

    The share is the norm of the gradient of the group's losses with respect to y, divided by the
    sum of the norms of all groups.

    Args:
      losses: function from y to the loss terms by name.
      y: the core's output.
      groups: the beginnings of the names of each group's losses.
    """
    # The losses are traced once, and transposed by group: most are not part of a group's gradient.
    terms, tangents = jax.linearize(losses, y)
    dtype = jnp.result_type(*terms.values())

    def gradient(names: tuple[str, ...]) -> Any:
        def total(y: Array) -> Any:
            chosen = [term for name, term in tangents(y).items() if name.startswith(names)]
            return sum(chosen, jnp.zeros((), dtype))

        return jax.linear_transpose(total, y)(jnp.ones((), dtype))

    norms = {group: optax.tree.norm(gradient(names)) for group, names in groups.items()}
    everything = sum(norms.values())
    everything = jnp.where(everything > 0, everything, 1)
    return {f"share/{group}": norm / everything for group, norm in norms.items()}


def draw_minibatches(
    key: Key[Array, ""], batch: int, minibatches: int, epochs: int
) -> Int[Array, "N G"]:
    """Divide the rows of a batch among minibatches, anew in each epoch.

    Each minibatch receives one row, at random, of each group of `minibatches` consecutive rows. A
    group is on one device if the number of rows of a device is a multiple of `minibatches`, so that
    taking a minibatch sends nothing. Tasks have equal shares of the batch, and of a minibatch on
    average.

    Args:
      key: for the order within the groups.
      batch: number of rows, a multiple of `minibatches`.
      minibatches: number of minibatches of an epoch.
      epochs: number of passes over the batch.

    Returns:
      For each of the N minibatches the place of its row in each of the G groups.
    """
    places = jnp.broadcast_to(jnp.arange(minibatches), (epochs, batch // minibatches, minibatches))
    order_EGN = jax.random.permutation(key, places, axis=-1, independent=True)
    return order_EGN.swapaxes(1, 2).reshape(epochs * minibatches, batch // minibatches)


def take_minibatch(batch: Tree, place_G: Int[Array, " G"]) -> Tree:
    """Return the rows of a minibatch, from arrays with the rows of the batch as leading axis."""

    def take(x: jax.Array) -> jax.Array:
        if len(x) == len(place_G):  # the only minibatch
            return x
        rows = x.reshape(len(place_G), -1, *x.shape[1:])
        return jax.vmap(lambda group, place: group[place])(rows, place_G)

    return jax.tree.map(take, batch)
