"""R2D2: Q-learning from replayed segments, over any memory core (Kapturowski et al. 2019).

Every environment acts by the online network's values, epsilon-greedily, with an epsilon of its own.
Its segments go to a replay with the memory before their first step, the stored state. After each
rollout, the learner draws segments by their priorities, several times:

  - Burn-in. The stored memory was written by older parameters. The segments before the drawn one
    are therefore run first, from the memory that was stored with them, without a gradient; the
    drawn segment starts from the resulting memory. Online and target network each have their own.
  - Targets are n-step returns in rescaled units, from the target network's value of the online
    network's best action (double Q-learning).
  - The squared errors of a segment determine its new priority. Its first priority follows from the
    values with which the agent acted.

What differs from the paper: each environment draws from its own segments, see `online.replay`; the
optimizer has the schedule of all algorithms here; and the loss is a mean over transitions.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float, Int, Key

from gtrxl_jax.acting.policy import AgentPolicy
from gtrxl_jax.nn.agent import make_q_network
from gtrxl_jax.nn.normalizer import copy_normalizers
from gtrxl_jax.online.algorithm import (
    Algorithm,
    AlgorithmConfig,
    Experience,
    Metrics,
    Setup,
    add_bonus_to_rewards,
    copy_if,
    reduce_metrics,
    run_segment,
    sum_losses,
    update_agent_normalizers,
)
from gtrxl_jax.online.optimizer import Optimizer
from gtrxl_jax.online.replay import Replay, draw, insert, make_replay, set_priorities, take
from gtrxl_jax.ops import r2d2
from gtrxl_jax.ops.legal import draw_choices
from gtrxl_jax.ops.losses import learn_if, masked_mean
from gtrxl_jax.ops.returns import transition_mask
from gtrxl_jax.parallel.placement import gather_parameters, split_gradients
from gtrxl_jax.runs.divergence import is_finite
from gtrxl_jax.timestep import TimeStep
from gtrxl_jax.validation import number


@dataclasses.dataclass(frozen=True)
class R2D2Config(AlgorithmConfig):
    """Settings of R2D2."""

    name: str = "r2d2"
    gamma: float = number(0.99, at_most=1)
    """Discount factor; 0.997 in the paper."""
    n_steps: int = 5
    """Number of rewards in a target before it bootstraps, fewer at the end of a segment."""
    optimizer_steps: int = 4
    """Number of optimizer steps after each rollout."""
    draws: int = 1
    """Number of segments of each environment in an optimizer step."""
    burn_in: int = number(1, at_least=0)
    """Number of segments that are run before each drawn one, to refresh its memory."""
    replay_size: int = 4096
    """Number of segments in the replay, of all environments together."""
    replay_start: int = 256
    """Number of segments in the replay before learning begins."""
    save_replay: bool = True
    """Save the replay in checkpoints. Otherwise, a resumed run fills a new one before it goes on to
    learn, so that it differs from a run that was not interrupted."""
    target_period: int = 20
    """Optimizer steps between copies of the online network to the target network."""
    epsilon: float = number(0.4, at_most=1)
    """The largest epsilon of an environment; i of N has epsilon^(1 + epsilon_exponent i / (N - 1)),
    as in Ape-X (Horgan et al. 2018)."""
    epsilon_exponent: float = number(7.0, at_least=0)
    """See `epsilon`. 0: all environments have the same."""
    priority_exponent: float = number(0.9, at_least=0)
    """Segments are drawn with probabilities ~ priority^exponent; 0: uniformly."""
    importance_exponent: float = number(0.6, at_least=0)
    """Losses are weighted by probability^-exponent, relative to the largest weight of a batch."""
    largest_error: float = number(0.9, at_least=0, at_most=1)
    """Weight of a segment's largest error in its priority, against the mean of its errors."""

    learning_rate: ClassVar[float] = 1e-3
    hyperparameters: ClassVar[tuple[str, ...]] = ("gamma",)

    def check_rollout(self, num_envs: int, segments: int, unroll: int) -> None:
        needed = num_envs * max(self.burn_in + 1, segments)
        if self.replay_size % num_envs or self.replay_size < needed:
            raise ValueError(
                f"algorithm.replay_size {self.replay_size} must be a multiple of env.num_envs "
                f"{num_envs}, and at least {needed} with algorithm.burn_in {self.burn_in} and "
                f"segments {segments}"
            )
        if not needed <= self.replay_start <= self.replay_size:
            raise ValueError(
                f"algorithm.replay_start {self.replay_start} must be from {needed} to "
                f"algorithm.replay_size {self.replay_size}"
            )

    def make(self, setup: Setup) -> "R2D2":
        return R2D2(self, setup)


@dataclasses.dataclass(frozen=True)
class EpsilonGreedyPolicy(AgentPolicy):
    """The best action by a `QNetwork`, or with a probability of epsilon any legal one.

    Attributes:
      epsilons: the epsilon of each environment, or a single one for all.
    """

    epsilons: tuple[float, ...] = (0.0,)

    def of_rows(self, rows: Sequence[int]) -> "EpsilonGreedyPolicy":
        """Return the policy of some of the environments, with their epsilons."""
        if len(self.epsilons) == 1:
            return self
        return dataclasses.replace(self, epsilons=tuple(self.epsilons[row] for row in rows))

    def choose(self, output: Any, timestep: TimeStep, key: Key[Array, ""]) -> Int[Array, " B"]:
        """Choose actions given the values `[B, A]`."""
        batch, num_actions = output.shape
        best_B = jnp.argmax(output, axis=-1).astype(jnp.int32)
        if self.actions == "mode":
            return best_B
        key_any, key_explore = jax.random.split(key)
        legal = timestep.legal
        legal_BA = jnp.ones(output.shape, bool) if legal is None else legal
        any_B = draw_choices(key_any, legal_BA, (num_actions,))[..., 0]
        epsilon_B = jnp.broadcast_to(jnp.asarray(self.epsilons, output.dtype), batch)
        explores_B = jax.random.uniform(key_explore, (batch,), output.dtype) < epsilon_B
        return jnp.where(explores_B, any_B, best_B)


@struct.dataclass
class Segment:
    """A segment in the replay; the leading axis of every array is the batch.

    Attributes:
      memory: the memory before its first step, when it was acted.
      timesteps: `[B, T + 1]`.
      actions: `[B, T]`.
      bonus: see `Experience`.
    """

    memory: Any
    timesteps: TimeStep
    actions: Any
    bonus: Any


@struct.dataclass
class R2D2State:
    """What learning changes.

    Attributes:
      params: the online network's parameters, which act.
      target: the target network's parameters.
      optimizer: state of the optimizer.
      hyperparameters: see `Learner`.
      step: number of completed optimizer steps.
      replay: the `Replay`; () in checkpoints without it.
    """

    params: Any
    target: Any
    optimizer: optax.OptState
    hyperparameters: dict[str, Float[Array, ""]]
    step: Int[Array, ""]
    replay: Any


class R2D2(Algorithm):
    """Recurrent experience replay in distributed reinforcement learning."""

    behavior: EpsilonGreedyPolicy

    def __init__(self, config: R2D2Config, setup: Setup):
        self.config = config
        self._num_envs = setup.num_envs
        settings = dataclasses.asdict(setup.agent)
        self._normalize = settings.pop("normalize")
        for name in ("initial_scale", "max_scale"):  # Only Gaussian policies use these.
            settings.pop(name)
        self.agent = make_q_network(
            setup.core, setup.observation_space, setup.action_space, **settings
        )
        # Environment i belongs to task i mod N: each task has all epsilons.
        each = r2d2.actor_epsilons(
            setup.num_envs // setup.num_tasks, config.epsilon, config.epsilon_exponent
        )
        epsilons = tuple(epsilon for epsilon in each for _ in range(setup.num_tasks))
        self.behavior = EpsilonGreedyPolicy(self.agent, epsilons=epsilons)
        self._optimizer = Optimizer(setup.optimizer, setup.num_updates * config.optimizer_steps)

    def policy(self, actions: str) -> EpsilonGreedyPolicy:
        """Return the greedy policy; with "sample", as the least exploring environment."""
        return EpsilonGreedyPolicy(self.agent, actions, (min(self.behavior.epsilons),))

    def init(
        self, params: Any, hyperparameters: dict[str, Float[Array, ""]], experience: Experience
    ) -> R2D2State:
        """Return the state at the start of a run, with an empty replay."""
        capacity = self.config.replay_size // self._num_envs
        return R2D2State(
            params=params,
            # Copied, since a donated state must not contain the same buffer twice.
            target=jax.tree.map(jnp.copy, params),
            optimizer=self._optimizer.init({"params": params}),
            hyperparameters=hyperparameters,
            step=jnp.zeros((), jnp.int32),
            replay=make_replay(
                segment_of(experience), self._num_envs, capacity, jnp.result_type(float)
            ),
        )

    def to_checkpoint(self, learner: R2D2State) -> R2D2State:
        return learner if self.config.save_replay else dataclasses.replace(learner, replay=())

    def from_checkpoint(self, saved: R2D2State, fresh: R2D2State) -> R2D2State:
        return saved if self.config.save_replay else dataclasses.replace(saved, replay=fresh.replay)

    def update(
        self, learner: R2D2State, experience: Experience, key: Key[Array, ""]
    ) -> tuple[R2D2State, Metrics]:
        """Add a rollout to the replay, and learn from drawn segments."""
        state = dataclasses.replace(learner, replay=self._insert(learner, experience))

        def learn(state: R2D2State) -> tuple[R2D2State, Metrics]:
            keys = jax.random.split(key, self.config.optimizer_steps)
            state, metrics = jax.lax.scan(self.step, state, keys)
            return state, reduce_metrics(metrics)

        is_filled = state.replay.size * self._num_envs >= self.config.replay_start
        state, metrics = learn_if(is_filled, learn, state)
        metrics |= {
            "finite/reward": is_finite(experience.timesteps.reward),
            "replay/segments": state.replay.size * self._num_envs,
        }
        seen = jax.tree.map(lambda x: x[:, :-1], experience.timesteps)
        params = update_agent_normalizers(self.agent, state.params, seen, self._normalize)
        target = copy_normalizers(state.target, params)
        return dataclasses.replace(state, params=params, target=target), metrics

    def step(self, state: R2D2State, key: Key[Array, ""]) -> tuple[R2D2State, Metrics]:
        """Take one optimizer step on drawn segments."""
        config = self.config
        slot_EN, probability_EN = draw(
            state.replay, key, config.draws, config.burn_in, config.priority_exponent
        )
        count = state.replay.size - config.burn_in
        weight_B = r2d2.importance_weights(
            probability_EN.reshape(-1), count, config.importance_exponent
        )
        before = [take(state.replay, slot_EN - n) for n in range(config.burn_in, 0, -1)]
        batch = take(state.replay, slot_EN)
        params, target = gather_parameters((state.params, state.target))
        memory = self._burn_in(params, before, batch)
        target_q_BSA, _ = run_segment(
            self.agent, target, self._burn_in(target, before, batch), batch.timesteps
        )
        mask_BT = transition_mask(batch.timesteps.last)

        def loss(trainable: dict[str, Any]) -> tuple[Float[Array, ""], Any]:
            q_BSA, reports = run_segment(self.agent, trainable["params"], memory, batch.timesteps)
            error_BT = self._errors(state, q_BSA, target_q_BSA, batch)
            total, metrics = sum_losses(
                {"td": r2d2.sequence_loss(error_BT, mask_BT, weight_B)}, reports
            )
            chosen_BT = jnp.take_along_axis(q_BSA[:, :-1], batch.actions[..., None], axis=-1)
            metrics |= {
                "q": masked_mean(r2d2.unrescale(chosen_BT[..., 0]), mask_BT),
                "td_error": masked_mean(jnp.abs(error_BT), mask_BT),
                "importance_weight": jnp.mean(weight_B),
            }
            return total, (metrics, error_BT)

        (total, (metrics, error_BT)), gradients = jax.value_and_grad(loss, has_aux=True)(
            {"params": params}
        )
        trainable, optimizer, of_step = self._optimizer.step(
            {"params": state.params},
            state.optimizer,
            split_gradients(gradients),
            state.hyperparameters["learning_rate"],
            state.step,
        )
        priority_B = r2d2.sequence_priorities(error_BT, mask_BT, config.largest_error)
        step = state.step + 1
        is_due = step % config.target_period == 0
        after = dataclasses.replace(
            state,
            params=trainable["params"],
            target=copy_if(is_due, trainable["params"], state.target),
            optimizer=optimizer,
            step=step,
            replay=set_priorities(state.replay, slot_EN, priority_B),
        )
        return after, metrics | of_step | {
            "priority": jnp.mean(priority_B),
            "finite/loss": is_finite(total),
            "finite/gradient norm": is_finite(of_step["gradient_norm"]),
            "finite/parameters": is_finite(of_step["parameter_norm"]),
        }

    def _insert(self, state: R2D2State, experience: Experience) -> Replay:
        """Add a rollout, with priorities by the values with which the agent acted."""
        q_BSA = jnp.concatenate([experience.extras, experience.bootstrap[:, None]], axis=1)
        segment = segment_of(experience)
        error_BT = self._errors(state, q_BSA, q_BSA, segment)
        mask_BT = transition_mask(experience.timesteps.last)
        priority_B = r2d2.sequence_priorities(error_BT, mask_BT, self.config.largest_error)
        return insert(state.replay, segment, priority_B)

    def _errors(
        self,
        state: R2D2State,
        q_BSA: Float[Array, "B S A"],
        target_q_BSA: Float[Array, "B S A"],
        segment: Segment,
    ) -> Float[Array, "B T"]:
        steps = add_bonus_to_rewards(segment.timesteps, segment.bonus)
        return r2d2.td_errors(
            q_BSA=q_BSA,
            target_q_BSA=target_q_BSA,
            actions_BT=segment.actions,
            reward_BS=steps.reward.astype(q_BSA.dtype),
            discount_BS=steps.discount.astype(q_BSA.dtype),
            last_BS=steps.last,
            gamma=state.hyperparameters["gamma"],
            num_steps=self.config.n_steps,
        )

    def _burn_in(self, params: Any, before: list[Segment], batch: Segment) -> Any:
        """Return the memory before a segment, after running those that precede it."""
        apply: Any = self.agent.apply
        memory = (before[0] if before else batch).memory
        for segment in before:
            steps = jax.tree.map(lambda x: x[:, :-1], segment.timesteps)
            memory, _ = apply({"params": params}, memory, steps, method="features")
        return jax.lax.stop_gradient(memory)


def segment_of(experience: Experience) -> Segment:
    """Return what the replay keeps of an experience."""
    return Segment(experience.memory, experience.timesteps, experience.actions, experience.bonus)
