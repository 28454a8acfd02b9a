"""Online training: V-MPO on a batch of jitted environments, rollout and learner in one program.

    trainer = OnlineTrainer(config)
    state = trainer.init(seed)                    a pytree that is the whole run
    state, metrics = trainer.visit(state)         several updates, without the host

Both are pure functions: jit them, vmap them over seeds and hyperparameters, shard their state.
An update is: T steps of acting with the target network, over a cache that is projected once; one
forward and backward pass of the online network over the T + 1 steps; one step of the optimiser.

The outputs of acting are those of the target network on the segment (a core's acting equals its
learning), so the target's distributions are taken from the rollout and not computed again.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float, Int, Key

from gtrxl_jax.envs.promotion import ordinary_promotion
from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.envs.stream import EpisodeStats, Stream, StreamState
from gtrxl_jax.nn.agent import Agent, make_agent
from gtrxl_jax.nn.cores import make_core
from gtrxl_jax.nn.heads import rescale_value_head
from gtrxl_jax.ops import popart, vmpo
from gtrxl_jax.ops.returns import n_step_returns, transition_mask
from gtrxl_jax.spaces import action_spec, environment_action, zero_timestep
from gtrxl_jax.timestep import TimeStep
from gtrxl_jax.training.config import OnlineConfig, validate

Metrics = dict[str, Float[Array, ""]]


@struct.dataclass
class Hyperparameters:
    """The numbers that may differ between the seeds of one program.

    Attributes:
      learning_rate: peak rate of Adam.
      gamma: discount factor.
      bounds: V-MPO's epsilons.
      multipliers: the initial temperature and alphas.
    """

    learning_rate: Float[Array, ""]
    gamma: Float[Array, ""]
    bounds: vmpo.VMPOHyperparameters
    multipliers: vmpo.Multipliers


@struct.dataclass
class TrainState:
    """All of a run: saving it is saving the run.

    Attributes:
      learned: {"network": the online parameters, "multipliers": `Multipliers`}.
      target: parameters of the target network, which acts.
      optimiser: optax's state for `learned`.
      popart: statistics of the returns; None without PopArt.
      stream: the environments.
      timestep: `[B]`, where the environments stand.
      memory: the core's, before `timestep`.
      key: of this run; update n uses `fold_in(key, n)`.
      update: int, updates made.
      hyperparameters: see there.
    """

    learned: dict[str, Any]
    target: Any
    optimiser: optax.OptState
    popart: popart.PopArtStatistics | None
    stream: StreamState
    timestep: TimeStep
    memory: Any
    key: Key[Array, ""]
    update: Int[Array, ""]
    hyperparameters: Hyperparameters


@struct.dataclass
class Rollout:
    """T steps of B environments.

    Attributes:
      timesteps: `[B, T + 1]`, the bootstrap step included.
      actions: `[B, T]`, in the policy's layout.
      policy: `[B, T]`, the target's distributions.
      episodes: `[B, T]`, statistics on arriving at steps 1 .. T.
    """

    timesteps: TimeStep
    actions: Any
    policy: Any
    episodes: EpisodeStats


def make_stream(config: OnlineConfig) -> Stream:
    """The environments of a run."""
    return Stream(*make_env(config.env.name, **config.env.params), num_envs=config.env.num_envs)


def make_run_agent(config: OnlineConfig, stream: Stream) -> Agent:
    """The agent of a run."""
    settings = dataclasses.asdict(config.agent)
    popart_on = settings.pop("popart")
    return make_agent(
        make_core(config.core),
        stream.observation_space,
        stream.action_space,
        num_tasks=1 if popart_on else None,
        **settings,
    )


class OnlineTrainer:
    """The pure functions of an online run, made from its config.

    Attributes:
      config: the run's.
      stream: its environments.
      agent: its agent.

    Raises:
      ValueError: the config cannot be; nothing has been compiled.
    """

    def __init__(self, config: OnlineConfig):
        validate(config)
        self.config = config
        self.stream = make_stream(config)
        self.agent = make_run_agent(config, self.stream)
        self._apply: Any = self.agent.apply
        clip = config.optimiser.clip_norm
        network = [optax.clip_by_global_norm(clip)] if clip else []
        self.optimiser = optax.partition(
            {
                "network": optax.chain(*network, optax.scale_by_adam()),
                "multipliers": optax.scale_by_adam(),
            },
            {"network": "network", "multipliers": "multipliers"},
        )
        updates, peak = config.num_updates, config.optimiser
        warmup = round(peak.warmup * updates)
        self.schedule = optax.join_schedules(
            [
                optax.linear_schedule(1 / max(warmup, 1), 1.0, warmup),
                optax.linear_schedule(1.0, peak.final, max(updates - warmup, 1)),
            ],
            [warmup],
        )

    def hyperparameters(self, key: Key[Array, ""]) -> Hyperparameters:
        """The config's numbers; those under `sweep` drawn with the key."""
        settings, sweep = self.config.vmpo, self.config.sweep
        keys = iter(jax.random.split(key, 5))

        def number(name: str, fixed: float) -> Array:
            bounds, key = getattr(sweep, name), next(keys)
            if bounds is None:
                return jnp.asarray(fixed, jnp.float32)
            low, high = (jnp.log(jnp.asarray(z, jnp.float32)) for z in bounds)
            return jnp.exp(jax.random.uniform(key, minval=low, maxval=high))

        learning_rate = number("learning_rate", self.config.optimiser.learning_rate)
        epsilon_eta = number("epsilon_eta", settings.epsilon_eta)
        parts = {
            "categorical": (
                number("epsilon_alpha", settings.epsilon_alpha),
                settings.initial_alpha,
            ),
            "mean": (number("epsilon_mean", settings.epsilon_mean), settings.initial_alpha_mean),
            "covariance": (
                number("epsilon_covariance", settings.epsilon_covariance),
                settings.initial_alpha_covariance,
            ),
        }
        spec = action_spec(self.stream.action_space)
        used = (["mean", "covariance"] if spec.num_continuous else []) + (
            ["categorical"] if spec.discrete else []
        )
        return Hyperparameters(
            learning_rate=learning_rate,
            gamma=jnp.asarray(settings.gamma, jnp.float32),
            bounds=vmpo.VMPOHyperparameters(epsilon_eta, {p: parts[p][0] for p in used}),
            multipliers=vmpo.Multipliers(
                jnp.asarray(settings.initial_eta, jnp.float32),
                {p: jnp.asarray(parts[p][1], jnp.float32) for p in used},
            ),
        )

    def init(
        self, seed: Int[Array, ""] | int, hyperparameters: Hyperparameters | None = None
    ) -> TrainState:
        """The state of a new run. `hyperparameters` stand in for those of the config."""
        key, key_network, key_stream, key_sweep = jax.random.split(jax.random.key(seed), 4)
        hyperparameters = hyperparameters or self.hyperparameters(key_sweep)
        batch = self.config.env.num_envs
        memory = self.agent.initial_memory(1)
        example = zero_timestep(self.stream.observation_space, self.stream.action_space, 1, 1)
        network = self.agent.init(key_network, memory, example)["params"]
        learned = {"network": network, "multipliers": hyperparameters.multipliers}
        stream, timestep = self.stream.reset(key_stream)
        return TrainState(
            learned=learned,
            # A copy: donating the state must not give one buffer away twice.
            target=jax.tree.map(jnp.copy, network),
            optimiser=self.optimiser.init(learned),
            popart=popart.init(1) if self.config.agent.popart else None,
            stream=stream,
            timestep=timestep,
            memory=self.agent.initial_memory(batch),
            key=key,
            update=jnp.zeros((), jnp.int32),
            hyperparameters=hyperparameters,
        )

    def rollout(
        self, state: TrainState, key: Key[Array, ""]
    ) -> tuple[Any, StreamState, TimeStep, Rollout]:
        """Act for T steps with the target network.

        Returns:
          Memory, environments and time step afterwards, and what happened.
        """
        variables = {"params": state.target}
        space = self.stream.action_space

        def step(carry: Any, key: Array) -> Any:
            cache, stream, timestep = carry
            cache, output = self._apply(variables, cache, timestep, method="step")
            action = output.policy.sample(key)
            stream, following = self.stream.step(stream, environment_action(space, action))
            record = (timestep, action, output.policy, stream.episode)
            return (cache, stream, following), record

        cache = self._apply(variables, state.memory, self.config.unroll, method="start")
        (cache, stream, timestep), records = jax.lax.scan(
            step, (cache, state.stream, state.timestep), jax.random.split(key, self.config.unroll)
        )
        timesteps, actions, policy, episodes = jax.tree.map(lambda x: x.swapaxes(0, 1), records)
        timesteps = jax.tree.map(
            lambda x_BT, x_B: jnp.concatenate([x_BT, x_B[:, None]], axis=1), timesteps, timestep
        )
        memory = self._apply(variables, cache, method="finish")
        return memory, stream, timestep, Rollout(timesteps, actions, policy, episodes)

    def loss(
        self, learned: dict[str, Any], state: TrainState, rollout: Rollout
    ) -> tuple[Float[Array, ""], tuple[Metrics, Float[Array, "B T"]]]:
        """V-MPO's loss on a rollout that started from `state.memory`, its metrics, and G."""
        (_, output), recorded = self._apply(
            {"params": learned["network"]}, state.memory, rollout.timesteps, mutable=["metrics"]
        )
        steps = rollout.timesteps
        mask_BT = transition_mask(steps.last)
        value_BS, scale = output.value, jnp.ones(())
        if state.popart is not None:
            scale = state.popart.scale_N[0]
            task_BS = jnp.zeros(steps.last.shape, jnp.int32)
            value_BS = popart.unnormalise(state.popart, output.value[..., 0], task_BS)
        returns_BT = n_step_returns(
            reward_BS=steps.reward,
            discount_BS=steps.discount,
            last_BS=steps.last,
            value_BS=jax.lax.stop_gradient(value_BS),
            gamma=state.hyperparameters.gamma,
        )
        # With PopArt the loss is in normalised units, and so are its advantages.
        shift = 0.0 if state.popart is None else state.popart.mean_N[0]
        loss, metrics = vmpo.vmpo_loss(
            policy=jax.tree.map(lambda x: x[:, :-1], output.policy),
            target_policy=rollout.policy,
            actions=rollout.actions,
            values_BT=(value_BS[:, :-1] - shift) / scale,
            returns_BT=(returns_BT - shift) / scale,
            mask_BT=mask_BT,
            multipliers=learned["multipliers"],
            hyperparameters=state.hyperparameters.bounds,
        )
        return loss, (metrics | _gate_openings(recorded), returns_BT)

    def update(self, state: TrainState) -> tuple[TrainState, tuple[Metrics, EpisodeStats]]:
        """Roll out, learn, and copy the online network to the target when its time has come."""
        key = jax.random.fold_in(state.key, state.update)
        memory, stream, timestep, rollout = self.rollout(state, key)
        gradients, (metrics, returns_BT) = jax.grad(self.loss, has_aux=True)(
            state.learned, state, rollout
        )
        with ordinary_promotion():
            steps, optimiser = self.optimiser.update(gradients, state.optimiser)
            rate = state.hyperparameters.learning_rate * self.schedule(state.update)
        learned = optax.apply_updates(state.learned, jax.tree.map(lambda s: -rate * s, steps))
        learned["multipliers"] = vmpo.project_multipliers(learned["multipliers"])
        metrics |= {
            "gradient_norm": optax.global_norm(gradients["network"]),
            "parameter_norm": optax.global_norm(learned["network"]),
            "learning_rate": rate,
        }
        target, statistics = state.target, state.popart
        if statistics is not None:
            mask_BT = transition_mask(rollout.timesteps.last)
            task_BT = jnp.zeros(mask_BT.shape, jnp.int32)
            new = popart.update(statistics, returns_BT, task_BT, mask_BT)
            learned["network"] = rescale_value_head(learned["network"], statistics, new)
            target = rescale_value_head(target, statistics, new)
            metrics |= {"popart/mean": new.mean_N[0], "popart/scale": new.scale_N[0]}
            statistics = new
        update = state.update + 1
        copy = update % self.config.vmpo.target_period == 0
        state = dataclasses.replace(
            state,
            learned=learned,
            target=jax.tree.map(
                lambda new, old: jnp.where(copy, new, old), learned["network"], target
            ),
            optimiser=optimiser,
            popart=statistics,
            stream=stream,
            timestep=timestep,
            memory=memory,
            update=update,
        )
        return state, (metrics, rollout.episodes)

    def visit(self, state: TrainState) -> tuple[TrainState, Metrics]:
        """Several updates. Metrics are means over the updates, and over the episodes that ended."""

        def one(state: TrainState, _: None) -> Any:
            state, (metrics, episodes) = self.update(state)
            return state, (metrics, _summarise(episodes))

        state, (metrics, episodes) = jax.lax.scan(one, state, length=self.config.updates_per_visit)
        ended = jnp.sum(episodes.pop("ended"))
        means = jax.tree.map(jnp.mean, metrics)
        # Without an episode that ended there is nothing to report: NaN.
        means |= {f"episode/{name}": jnp.sum(x) / ended for name, x in episodes.items()}
        return state, means | {"episode/ended": ended}


def _summarise(episodes: EpisodeStats) -> Metrics:
    """Sums over the episodes that ended."""
    done_BT = episodes.done.astype(jnp.float32)
    numbers = {"return": episodes.episode_return, "length": episodes.length}
    if episodes.success is not None:
        numbers["success"] = episodes.success
    sums = {name: jnp.sum(done_BT * x.astype(jnp.float32)) for name, x in numbers.items()}
    return sums | {"ended": jnp.sum(done_BT)}


def _gate_openings(recorded: Any) -> Metrics:
    """The mean opening of each gate: `gate/block_0/attention`."""
    blocks = recorded.get("metrics", {}).get("core", {})
    return {
        f"gate/{block.replace('blocks', 'block')}/{gate.removesuffix('_gate')}": opening
        for block, gates in blocks.items()
        for gate, (opening,) in ((name, records["opening"]) for name, records in gates.items())
    }
