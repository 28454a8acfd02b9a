"""What offline algorithms with critics share: windows, networks, targets, optimizer steps.

A critic is a sequence model of the actor's kind with parameters of its own, and a head:

    h_t = features(o_1, a_1, ..., o_t)        Q(h_t, a)    V(h_t)

The features are of the history up to the step's observation, and do not depend on its action, which
the head gets beside them. So values are causal, and those of any number of actions require a single
run of the model.

The return-to-go, an input of RATE and Decision Transformers, is always 0, for actors and critics,
in learning and in acting: it would tell a critic the future that it has to predict.

Each window is read with the step that followed it (`with_following_step`), so that every step of
the data, also the last one before a truncation, has the value of its next step.

Dimensions in names, besides the usual ones: C critics; S steps of a window, K T; W = S + 1.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from gtrxl_jax.custom import describe_part
from gtrxl_jax.nn.normalizer import copy_normalizers
from gtrxl_jax.nn.sequence.values import ActionValue
from gtrxl_jax.offline.algorithm import Metrics, OfflineAlgorithm, OfflineAlgorithmConfig, Setup
from gtrxl_jax.offline.policy import SequencePolicy
from gtrxl_jax.ops.imitation import action_scores
from gtrxl_jax.ops.losses import masked_mean, value_loss
from gtrxl_jax.ops.moments import Moments, merge, moments_of
from gtrxl_jax.ops.promotion import standard_dtype_promotion
from gtrxl_jax.parallel.placement import gather_parameters, split_batch, split_gradients
from gtrxl_jax.segments import Segments, zero_segment
from gtrxl_jax.specs import action_spec
from gtrxl_jax.timestep import zero_timestep
from gtrxl_jax.validation import number


@dataclasses.dataclass(frozen=True)
class ActorCriticConfig(OfflineAlgorithmConfig):
    """Settings of every algorithm with critics."""

    gamma: float = number(0.99, at_most=1)
    """Discount factor."""
    target_rate: float | None = number(None, at_most=1)
    """The part of the difference by which target networks follow the trained ones in each update
    (Polyak averaging). By default 4 / ((1 - gamma) updates), in [0.005, 0.1], so that the values
    of a run's end have converged."""
    head_width: int = 256
    """Hidden units of a critic's head."""

    needs: ClassVar[tuple[str, ...]] = ("rewards", "terminated", "next_observations")
    reads_returns: ClassVar[bool] = False


Loss = Callable[[Any, Key[Array, ""] | None], tuple[Float[Array, ""], Metrics]]
"""A function of a network's parameters, and of a PRNG key for dropout or None, to a loss and
metrics."""


@struct.dataclass
class ActorCriticLearner:
    """What learning changes.

    Attributes:
      networks: the parameters of each trained network; "actor" is the model that acts.
      targets: the parameters of each target network.
      optimizers: the state of each network's optimizer.
      updates: number of completed updates.
      magnitudes: moments of the rewards, and of the returns-to-go, of all batches, see `prepare`.
    """

    networks: dict[str, Any]
    targets: dict[str, Any]
    optimizers: dict[str, optax.OptState]
    updates: Int[Array, ""]
    magnitudes: Moments

    @property
    def params(self) -> Any:
        """The parameters with which the policy acts."""
        return self.networks["actor"]


@struct.dataclass
class Window:
    """Windows of S steps, and the step that followed each.

    Attributes:
      steps: `[B, S + 1]`; at the end of an episode, its final observation with no action.
      actions: the actions of the S steps.
      rewards: their rewards, divided by the scale.
      terminated: whether the episode terminated with them.
      mask: which of the S steps are real.
      scale: a value of 1 in the units of the data's rewards.
    """

    steps: Segments
    actions: Any
    rewards: Float[Array, "B S"]
    terminated: Bool[Array, "B S"]
    mask: Bool[Array, "B S"]
    scale: Float[Array, ""]


class ActorCritic(OfflineAlgorithm):
    """An actor, critics, and target networks.

    Subclasses implement `make_networks`, `critic_loss` and `update`.

    Attributes:
      config: the algorithm's settings.
      action: the layout of the actions.
      critic: the name of the network that learns the values of actions.
      with_targets: the names of the networks that have a target network.
      scales_rewards: whether `prepare` scales rewards.
    """

    critic: ClassVar[str] = "critics"
    with_targets: ClassVar[tuple[str, ...]] = ("critics",)
    scales_rewards: ClassVar[bool] = True
    config: ActorCriticConfig

    def __init__(self, config: ActorCriticConfig, setup: Setup):
        super().__init__(config, setup)
        if not (hasattr(self.model, "features") and hasattr(self.model, "head")):
            raise ValueError(
                f"algorithm.name {config.name} needs features and a head, which "
                f"{describe_part('model', self.model)} does not have: add them, see "
                "gtrxl_jax.nn.sequence.model, or use imitation"
            )
        self.action = action_spec(setup.action_space)
        self.optimizer, self.schedule = setup.optimizer.make(setup.num_updates)
        self._action_value = ActionValue(config.head_width, jnp.result_type(float))

    @property
    def target_rate(self) -> float:
        """The target rate of the config, or one that suits the number of updates.

        Target networks follow in 1 / rate updates, and values look one step further each time. The
        error of values that are 0 at first then decays as exp(-(1 - gamma) rate moves): to 2 % if
        the targets move at every update, and to 13 % in TD3+BC, where they move at every second.
        """
        if self.config.target_rate is not None:
            return self.config.target_rate
        least, most = 0.005, 0.1  # The papers' rate, and one that still averages.
        needed = (1 - self.config.gamma) * self.setup.num_updates / 4
        return most if needed * most < 1 else max(1 / needed, least)

    def make_networks(self, params: Any, key: Key[Array, ""]) -> dict[str, Any]:
        """Return the initial parameters of the networks besides the actor, by name."""
        return {"critics": self.make_critics(params, key)}

    def init(self, params: Any, key: Key[Array, ""]) -> ActorCriticLearner:
        networks = {"actor": params, **self.make_networks(params, key)}
        with standard_dtype_promotion():
            optimizers = {name: self.optimizer.init(x) for name, x in networks.items()}
        return ActorCriticLearner(
            networks=networks,
            # Copied, since a donated state must not contain the same buffer twice.
            targets={name: jax.tree.map(jnp.copy, networks[name]) for name in self.with_targets},
            optimizers=optimizers,
            updates=jnp.zeros((), jnp.int32),
            magnitudes=Moments(*(jnp.zeros(n, jnp.result_type(float)) for n in ((), 2, 2))),
        )

    def policy(self, target_return: float) -> SequencePolicy:
        """Return the policy, which is not conditioned on a return."""
        policy = super().policy(target_return)
        assert isinstance(policy, SequencePolicy)
        return dataclasses.replace(policy, is_conditioned=False)

    @abc.abstractmethod
    def critic_loss(self, learner: ActorCriticLearner, window: Window, key: Key[Array, ""]) -> Loss:
        """Return the loss of the network `critic`, with the metrics "loss", "td_error" and "q".

        Args:
          learner: the learner.
          window: the windows.
          key: the PRNG key of the update.
        """

    def validate(self, learner: ActorCriticLearner, batch: Segments) -> Metrics:
        """Return the critics' loss and errors, and the scores of predicted actions, of a batch.

        There is no dropout.
        """
        learner, window = self.prepare(learner, batch)
        networks = gather_parameters(learner.networks)
        loss = self.critic_loss(learner, window, jax.random.key(0))
        _, metrics = loss(networks[self.critic], None)
        scores = mean_scores(current_steps(self.read(networks["actor"], window, None)), window)
        return {name: metrics[name] for name in ("loss", "td_error", "q")} | scores

    # Networks.

    def make_critic(
        self, params: Any, key: Key[Array, ""], head: nn.Module, *inputs: Array
    ) -> dict[str, Any]:
        """Return initial parameters of a critic: of its sequence model, "history", and its "head".

        Args:
          params: the actor's parameters, whose statistics of observations the critic shares.
          key: a PRNG key.
          head: maps features `[B, T, D]`, and further inputs, to values.
          inputs: examples of the further inputs, for one step of one window.
        """
        key_history, key_head = jax.random.split(key)
        spaces = self.setup.observation_space, self.setup.action_space
        step = zero_segment(zero_timestep(*spaces, 1, 1))

        def features(model: Any) -> Any:
            return model.features(model.initial_memory(1), step)[1]

        h_BTD, variables = nn.init_with_output(features, self.model)(key_history)
        history = copy_normalizers(variables.get("params", {}), params)
        return {"history": history, "head": head.init(key_head, h_BTD, *inputs)["params"]}

    def make_critics(self, params: Any, key: Key[Array, ""]) -> dict[str, Any]:
        """Return initial parameters of two independent critics Q(h, a), stacked."""
        action = jnp.zeros((1, 1, 1, self.action.num_features), jnp.result_type(float))

        def one(key: Key[Array, ""]) -> dict[str, Any]:
            return self.make_critic(params, key, self._action_value, action)

        return jax.vmap(one)(jax.random.split(key))

    def read(
        self, params: Any, window: Window, key: Key[Array, ""] | None, method: str = "__call__"
    ) -> Any:
        """Run a sequence model on windows, segment by segment.

        Args:
          params: the model's parameters.
          window: the windows.
          key: a PRNG key for dropout; None for no dropout.
          method: "__call__" for the policy at each of the S + 1 steps, or "features".
        """
        setup, apply = self.setup, self.model.apply
        batch, num_steps = window.mask.shape
        memory = apply({"params": params}, batch, method="initial_memory")

        def one(memory: Any, segment: Segments, number: Array) -> Any:
            if setup.bptt is not None:
                is_cut = (number > 0) & (number % (setup.bptt + 1) == 0)
                memory = jax.tree.map(
                    lambda x: jnp.where(is_cut, jax.lax.stop_gradient(x), x), memory
                )
            rngs = None if key is None else {"dropout": jax.random.fold_in(key, number)}
            return apply({"params": params}, memory, segment, key is None, rngs=rngs, method=method)

        if not setup.is_recurrent:
            return one(memory, window.steps, jnp.zeros((), jnp.int32))[1]
        length = setup.unroll
        segments = jax.tree.map(
            lambda x: jnp.moveaxis(x[:, :-1].reshape(batch, -1, length, *x.shape[2:]), 1, 0),
            window.steps,
        )
        numbers = jnp.arange(num_steps // length, dtype=jnp.int32)
        step = jax.checkpoint(one) if setup.remat and len(numbers) > 1 else one
        memory, outputs = jax.lax.scan(
            lambda m, inputs: step(m, *inputs), memory, (segments, numbers)
        )
        outputs = jax.tree.map(
            lambda x: jnp.moveaxis(x, 0, 1).reshape(batch, num_steps, *x.shape[3:]), outputs
        )
        following = jax.tree.map(lambda x: x[:, -1:], window.steps)
        _, last = one(memory, following, jnp.asarray(len(numbers), jnp.int32))
        return jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), outputs, last)

    def critic_features(
        self, critics: Any, window: Window, key: Key[Array, ""] | None = None
    ) -> Float[Array, "C B W D"]:
        """Return the features h of two critics, at the W = S + 1 steps of windows."""

        def one(history: Any) -> Array:
            return self.read(history, window, key, "features")

        return jax.vmap(one)(critics["history"])

    def action_values(
        self, critics: Any, h_CBSD: Float[Array, "C B S D"], actions: Any
    ) -> Float[Array, "C B S"]:
        """Return Q(h, a) of two critics for one action at each step."""
        features = self.action.features(actions, h_CBSD.dtype)
        return self.values_of_features(critics, h_CBSD, features[..., None, :])[..., 0]

    def values_of_features(
        self, critics: Any, h_CBSD: Float[Array, "C B S D"], features: Float[Array, "B S N F"]
    ) -> Float[Array, "C B S N"]:
        """Return Q(h, a) of two critics for N actions at each step, given their features."""

        def one(head: Any, h_BSD: Array) -> Any:
            return self._action_value.apply({"params": head}, h_BSD, features)

        return jax.vmap(one)(critics["head"], h_CBSD)

    # Learning.

    def prepare(
        self, learner: ActorCriticLearner, batch: Segments
    ) -> tuple[ActorCriticLearner, Window]:
        """Return windows. With `scales_rewards`, rewards are scaled so that values are of order 1.

        Adam's steps are as large for values of hundreds as for values of order 1: networks would
        require many updates to reach the former. The scale is the smaller of two estimates of how
        large values are: the root mean square of the returns-to-go, which are not discounted, and
        that of 1 / (1 - gamma) equal rewards. Both average over all batches so far, so the scale
        soon settles.
        """
        window, gamma = with_following_step(batch), self.config.gamma
        if not self.scales_rewards:
            return learner, window
        returns_BS = batch.returns_to_go.reshape(window.mask.shape)
        both_BS2 = jnp.stack([window.rewards, returns_BS], axis=-1)
        magnitudes = merge(learner.magnitudes, moments_of(both_BS2, 1, window.mask))
        rewards, returns = jnp.sqrt(magnitudes.variance + jnp.square(magnitudes.mean))
        scale = jnp.minimum(returns, rewards / (1 - gamma)) if gamma < 1 else returns
        scale = jnp.where(scale > 0, scale, 1)
        learner = dataclasses.replace(learner, magnitudes=magnitudes)
        return learner, dataclasses.replace(window, rewards=window.rewards / scale, scale=scale)

    def step(
        self,
        learner: ActorCriticLearner,
        name: str,
        loss: Callable[[Any], tuple[Float[Array, ""], Any]],
    ) -> tuple[ActorCriticLearner, Any, Metrics]:
        """Take an optimizer step on one network.

        Args:
          learner: the learner.
          name: the network.
          loss: maps the network's parameters to a loss, and auxiliary outputs.

        Returns:
          The learner, the auxiliary outputs of the loss, and metrics.
        """
        params = learner.networks[name]
        (total, aux), gradients = jax.value_and_grad(loss, has_aux=True)(gather_parameters(params))
        gradients = split_gradients(gradients)
        rate = self.schedule(learner.updates.astype(float))
        with standard_dtype_promotion():
            changes, state = self.optimizer.update(gradients, learner.optimizers[name], params)
        params = optax.apply_updates(params, jax.tree.map(lambda x: -rate * x, changes))
        norm = optax.tree.norm(gradients)
        metrics = {
            f"gradient_norm/{name}": norm,
            f"finite/{name}": jnp.isfinite(total) & jnp.isfinite(norm),
        }
        learner = dataclasses.replace(
            learner,
            networks=learner.networks | {name: params},
            optimizers=learner.optimizers | {name: state},
        )
        return learner, aux, metrics

    def step_critic(
        self, learner: ActorCriticLearner, loss: Loss, key: Key[Array, ""]
    ) -> tuple[ActorCriticLearner, Metrics]:
        """Take an optimizer step on the network `critic`, with dropout."""
        learner, of_loss, metrics = self.step(
            learner, self.critic, lambda params: loss(params, key)
        )
        return learner, metrics | of_loss

    def td_loss(self, window: Window, target_BS: Float[Array, "B S"]) -> Loss:
        """Return the `twin_loss` of the data's actions, for two critics."""

        def loss(critics: Any, key: Key[Array, ""] | None) -> Any:
            h_CBSD = self.critic_features(critics, window, key)[:, :, :-1]
            q_CBS = self.action_values(critics, h_CBSD, window.actions)
            total, metrics = twin_loss(q_CBS, target_BS, window.mask)
            return total, in_reward_units(metrics, window) | {"loss": total}

        return loss

    def move_targets(self, learner: ActorCriticLearner) -> ActorCriticLearner:
        """Move the target networks towards the trained ones."""
        trained = {name: learner.networks[name] for name in self.with_targets}
        targets = optax.incremental_update(trained, learner.targets, self.target_rate)
        return dataclasses.replace(learner, targets=targets)

    def finish(
        self, learner: ActorCriticLearner, metrics: Metrics
    ) -> tuple[ActorCriticLearner, Metrics]:
        """Increment the update counter, and add the learning rate to the metrics."""
        rate = self.schedule(learner.updates.astype(float))
        learner = dataclasses.replace(learner, updates=learner.updates + 1)
        return learner, metrics | {"learning_rate": rate}


def with_following_step(batch: Segments) -> Window:
    """Return windows of K segments as S = K T steps, with the step that followed each.

    The following step is put after the last real step, where there may be padding. It has an
    observation, but no action. Returns-to-go are 0.

    Args:
      batch: `[B, K, T]`, with the optional fields that `ActorCriticConfig` needs.
    """
    batch = split_batch(batch)
    size = len(batch.mask)
    flat: Segments = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[3:]), batch)
    count_B = jnp.sum(flat.mask, axis=1, dtype=jnp.int32)
    place_W = jnp.arange(flat.mask.shape[1] + 1, dtype=jnp.int32)

    def pad(x: Array) -> Array:
        return jnp.pad(x, [(0, 0), (0, 1)] + [(0, 0)] * (x.ndim - 2))

    def observe(x: Array, following: Array) -> Array:
        def one(x: Array, following: Array, count: Array) -> Array:
            last = jax.lax.dynamic_index_in_dim(following, count - 1, keepdims=True)
            return jax.lax.dynamic_update_slice_in_dim(x, last, count, axis=0)

        return jax.vmap(one)(pad(x), following, count_B)

    steps = Segments(
        observations=jax.tree.map(observe, flat.observations, flat.next_observations),
        actions=jax.tree.map(pad, flat.actions),
        returns_to_go=jnp.zeros_like(pad(flat.returns_to_go)),
        timesteps=flat.timesteps[:, :1] + place_W[None],
        mask=place_W[None] <= count_B[:, None],
    )
    rewards, terminated = flat.rewards, flat.terminated
    assert rewards is not None  # as the config needs them
    assert terminated is not None
    scale = jnp.ones((), rewards.dtype)
    return Window(steps, flat.actions, rewards, terminated, flat.mask, scale)


def in_reward_units(metrics: Metrics, window: Window) -> Metrics:
    """Convert values of a window to the units of the data's rewards."""
    return {name: window.scale * value for name, value in metrics.items()}


def twin_loss(
    q_CBS: Float[Array, "C B S"], target_BS: Float[Array, "B S"], mask_BS: Bool[Array, "B S"]
) -> tuple[Float[Array, ""], Metrics]:
    """Return the sum of the `value_loss` of two critics, and metrics."""
    total = sum(value_loss(q_BS, target_BS, mask_BS) for q_BS in q_CBS)
    metrics = {
        "q": masked_mean(jnp.mean(q_CBS, axis=0), mask_BS),
        "td_error": masked_mean(jnp.mean(jnp.abs(q_CBS - target_BS[None]), axis=0), mask_BS),
    }
    return jnp.asarray(total), metrics


def mean_scores(policy: Any, window: Window) -> Metrics:
    """Return the means of `action_scores` over the real steps of windows.

    Args:
      policy: the actor's distributions at the S steps.
      window: the windows.
    """
    scores = action_scores(policy, window.actions)
    dtype = window.rewards.dtype
    return {name: masked_mean(x.astype(dtype), window.mask) for name, x in scores.items()}


def current_steps(x: Any) -> Any:
    """Return the first S of the S + 1 steps of windows, from arrays `[B, S + 1, ...]`."""
    return jax.tree.map(lambda x: x[:, :-1], x)


def next_steps(x: Any) -> Any:
    """Return the last S of the S + 1 steps of windows, from arrays `[B, S + 1, ...]`."""
    return jax.tree.map(lambda x: x[:, 1:], x)
