"""Offline training: predict the actions of trajectories, segment by segment.

    trainer = OfflineTrainer(config)
    state = trainer.init(seed)                                 a pytree that is the whole run
    for stage, data in trainer.feed(1, trainer.mesh()):
        state, metrics = make_iteration(trainer, stage)(state, data)    several updates

An update draws a batch of windows of N segments of K steps, and scans the model over the segments:
memory goes from each to the next, and the gradient back through it. Activations of a segment are
computed again in the backward pass, so memory grows with K and not with N * K.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from gtrxl_jax.data.segments import Segments, default_sampling, sample_segments
from gtrxl_jax.data.trajectories import Trajectories
from gtrxl_jax.envs.promotion import standard_dtype_promotion
from gtrxl_jax.nn.sequence.registry import make_model
from gtrxl_jax.nn.sequence.trajectory import Steps
from gtrxl_jax.offline.config import OfflineConfig, to_json
from gtrxl_jax.offline.data import Data, Feed, InMemory, Streamed
from gtrxl_jax.offline.environments import evaluation_streams, parameters, trajectories_of
from gtrxl_jax.offline.evaluation import SequencePlayer, make_play
from gtrxl_jax.offline.metrics import (
    SUMS,
    Metrics,
    last_steps,
    memory_metrics,
    step_sums,
)
from gtrxl_jax.parallel.placement import (
    gather_parameters,
    make_mesh,
    split_batch,
    split_parameters,
)
from gtrxl_jax.runs.divergence import finite, first_nonfinite, over_updates
from gtrxl_jax.runs.schedule import warmup_and_decay
from gtrxl_jax.timestep import zero_timestep
from gtrxl_jax.validation import validate


@struct.dataclass
class OfflineState:
    """All of a run: saving it is saving the run.

    Attributes:
      params: the model's parameters.
      optimiser: optax's state.
      key: of this run; see `_keys`.
      update: int, batches seen.
    """

    params: Any
    optimiser: optax.OptState
    key: Key[Array, ""]
    update: Int[Array, ""]


class OfflineTrainer:
    """The pure functions of an offline run, made from its config; a `Trainer`.

    Attributes:
      config: the run's, with what to ask for in evaluations.
      model: what is trained.
      player, title, environment, observation_space, action_space, config_json,
        num_iterations, steps_per_iteration: see `Trainer`; a step is an update.

    Raises:
      ValueError: the config cannot be, or its data do not fit; nothing has been compiled.
    """

    shown: tuple[str, ...] = ("loss", "accuracy/last_step")

    def __init__(self, config: OfflineConfig, trajectories: Trajectories | None = None):
        """Make a trainer; `trajectories` stand in for those of `config.data`."""
        validate(config)
        self._trajectories = trajectories
        self._sampling = dataclasses.replace(
            default_sampling(config.task.name),
            **{k: v for k in ("start", "weight") if (v := getattr(config.data, k))},
        )
        self.config = config
        streams = evaluation_streams(config)
        first = next(iter(streams.values()))
        self.title = f"{config.model.name}, trained offline for {config.task.name}"
        self.environment = (config.task.name, parameters(config))
        self.observation_space, self.action_space = first.observation_space, first.action_space
        target = config.evaluation.target_return
        if target is None:
            target = _best_tenth(self._data.returns())
        # Written down with the config: acting needs it, and no data.
        evaluation = dataclasses.replace(config.evaluation, target_return=target)
        config = dataclasses.replace(config, evaluation=evaluation)
        self.config, self.config_json = config, to_json(config)
        self.num_iterations = config.num_iterations
        self.steps_per_iteration = config.updates_per_iteration
        context = config.shape[1]
        self.model: Any = make_model(
            config.model,
            self.observation_space,
            self.action_space,
            context,
            jnp.result_type(float),
        )
        self.player = SequencePlayer(
            self.model,
            target,
            config.context if evaluation.restart_return else 0,
            evaluation.memory_noise,
        )
        self._play = make_play(self.player, streams, evaluation.episodes, evaluation.policy)
        self.optimiser, self.schedule = self._make_optimiser()

    @functools.cached_property
    def _data(self) -> Data:
        """Read or collected when they are first needed: acting needs none."""
        config = self.config
        if self._trajectories is None and config.data.stream:
            return Streamed(config, self._sampling)
        if self._trajectories is None:
            self._trajectories = trajectories_of(config)
        return InMemory(config, self._trajectories)

    def feed(self, first: int, mesh: Mesh) -> Feed:
        """See `Trainer`: stages of the curriculum, and data, see `offline_data`."""
        key_data, _ = _keys(_run_key(self.config.seed)[0])
        return self._data.feed(first, key_data, mesh)

    def mesh(self) -> Mesh:
        """The devices that share the batch."""
        config = self.config
        return make_mesh(
            config.devices,
            config.batch_size,
            field="batch_size",
            parameter_shards=config.parameter_shards,
        )

    def _make_optimiser(self) -> tuple[optax.GradientTransformation, optax.Schedule]:
        """AdamW, and its rate by updates: warm-up and linear decay (RATE's authors)."""
        config = self.config.optimiser
        updates = self.num_iterations * self.steps_per_iteration
        schedule = warmup_and_decay(config.learning_rate, config.warmup, config.final, updates)
        matrices = functools.partial(
            jax.tree_util.tree_map_with_path, lambda path, _: path[-1].key == "kernel"
        )
        optimiser = optax.chain(
            optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
            optax.scale_by_adam(config.beta_1, config.beta_2),
            optax.add_decayed_weights(config.weight_decay, mask=matrices),
        )
        if config.accumulate > 1:
            steps = optax.MultiSteps(optimiser, config.accumulate)
            optimiser = optax.GradientTransformation(steps.init, steps.update)
        return optimiser, schedule

    def init(self, seed: Int[Array, ""] | int) -> OfflineState:
        """The state of a new run."""
        key, key_network = _run_key(seed)
        timestep = zero_timestep(self.observation_space, self.action_space, 1, self.config.shape[1])
        steps = Steps(
            observations=timestep.observation,
            actions=timestep.action,
            returns_to_go=timestep.reward,
            timesteps=timestep.reward.astype(jnp.int32),
            mask=timestep.first,
        )

        def all_of_it(model: Any) -> None:
            model(model.initial_memory(1), steps)

        params = nn.init(all_of_it, self.model)(key_network)["params"]
        with standard_dtype_promotion():
            optimiser = self.optimiser.init(params)
        return OfflineState(params, optimiser, key, jnp.zeros((), jnp.int32))

    def drawn(self, state: OfflineState) -> dict[str, Array]:
        """See `Trainer`: nothing, all seeds have the config's settings."""
        del state
        return {}

    def update(self, state: OfflineState, data: Any, stage: Any) -> tuple[OfflineState, Metrics]:
        """Draw a batch, or take that which was read for this update, and learn from it."""
        key_data, key_dropout = _keys(state.key)
        if isinstance(data, Segments):
            # An iteration begins at a multiple of its updates.
            place = state.update % self.config.updates_per_iteration
            batch = jax.tree.map(
                lambda x: jax.lax.dynamic_index_in_dim(x, place, keepdims=False), data
            )
        else:
            batch = self._draw(data[stage], jax.random.fold_in(key_data, state.update), stage)
        return self.learn(state, batch, jax.random.fold_in(key_dropout, state.update))

    def summarise(self, metrics: Metrics) -> Metrics:
        """Means over an iteration's updates."""
        diverged = over_updates(metrics["nonfinite"])
        return {k: jnp.mean(x_U) for k, x_U in metrics.items() if k != "nonfinite"} | diverged

    def _draw(self, trajectories: Trajectories, key: Key[Array, ""], stage: int) -> Segments:
        config, sampling = self.config, self._sampling
        windows = config.batch_size, *config.windows(stage)
        return sample_segments(trajectories, key, *windows, sampling.start, sampling.weight)

    def learn(
        self, state: OfflineState, batch: Segments, key: Key[Array, ""]
    ) -> tuple[OfflineState, Metrics]:
        """Learn from a batch `[B, N, K]`: a step of the optimiser for each chunk of segments."""
        size, segments, _ = batch.mask.shape
        batch = split_batch(batch)
        chunk = self.config.chunk(segments)
        # [N / C, C, B, K, ...]: chunks of C segments, whose memories the gradient connects.
        chunks, last = jax.tree.map(
            lambda x: jnp.moveaxis(x, 1, 0).reshape(-1, chunk, size, *x.shape[2:]),
            (batch, last_steps(batch.mask)),
        )
        keys = jax.random.split(key, (segments // chunk, chunk))
        memory = self._initial_memory(state.params, size)
        rate = self.schedule(state.update.astype(float))

        def one(carry: Any, inputs: Any) -> Any:
            params, optimiser, memory = carry
            number, chunk, last, keys = inputs
            gradients, (memory, metrics) = jax.grad(self.loss, has_aux=True)(
                gather_parameters(params), memory, chunk, last, keys, number == 0
            )
            gradients = split_parameters(gradients)
            metrics["gradient_norm"] = optax.tree.norm(gradients)
            with standard_dtype_promotion():
                updates, optimiser = self.optimiser.update(gradients, optimiser, params)
            params = optax.apply_updates(params, jax.tree.map(lambda u: -rate * u, updates))
            return (params, optimiser, memory), metrics

        numbers = jnp.arange(segments // chunk, dtype=jnp.int32)
        (params, optimiser, _), metrics = jax.lax.scan(
            one, (state.params, state.optimiser, memory), (numbers, chunks, last, keys)
        )
        sums = {name: jnp.sum(metrics.pop(name)) for name in SUMS}
        metrics = jax.tree.map(jnp.mean, metrics) | {
            "loss": sums["loss"] / sums["steps"],
            "accuracy": sums["correct"] / sums["steps"],
            "accuracy/last_step": sums["last_correct"] / jnp.maximum(sums["last"], 1),
        }
        metrics["learning_rate"] = rate
        sound = {
            "loss": jnp.isfinite(metrics["loss"]),
            "gradient norm": jnp.isfinite(metrics["gradient_norm"]),
            "parameters": finite(params),
        }
        metrics["nonfinite"] = first_nonfinite(sound)
        return OfflineState(params, optimiser, state.key, state.update + 1), metrics

    def _initial_memory(self, params: Any, batch: int) -> Any:
        return self.model.apply({"params": params}, batch, method="initial_memory")

    def loss(
        self,
        params: Any,
        memory: Any,
        chunk: Segments,
        last: Bool[Array, "C B K"],
        keys: Key[Array, " C"],
        is_first: Array | bool,
    ) -> tuple[Float[Array, ""], tuple[Any, Metrics]]:
        """The mean loss over the steps of C segments `[C, B, K]`, in order.

        Args:
          params: the parameters.
          memory: before the first of them; no gradient enters it. The first chunk of a trajectory
            begins from the network's own initial memory, and trains that.
          chunk: the segments.
          last: which steps are the last of a window, for the metrics.
          keys: for dropout.
          is_first: whether the trajectory begins with this chunk.

        Returns:
          The loss; the memory afterwards, and sums for the metrics.
        """
        fresh = self._initial_memory(params, chunk.mask.shape[1])
        memory = jax.tree.map(
            lambda new, old: jnp.where(is_first, new, old), fresh, jax.lax.stop_gradient(memory)
        )

        def one(memory: Any, inputs: Any) -> Any:
            segment, last_BK, key = inputs
            following, policy = self.model.apply(
                {"params": params}, memory, segment, False, rngs={"dropout": key}
            )
            sums = step_sums(policy, segment, last_BK)
            return following, sums | memory_metrics(memory, following)

        # The activations of a single segment are used at once.
        remat = self.config.remat and len(keys) > 1
        step = jax.checkpoint(one) if remat else one
        memory, records = jax.lax.scan(step, memory, (chunk, last, keys))
        sums = {name: jnp.sum(records.pop(name)) for name in SUMS}
        metrics = jax.tree.map(jnp.mean, records) | sums
        return sums["loss"] / jnp.maximum(sums["steps"], 1), (memory, metrics)

    def evaluate(self, params: Any, key: Key[Array, ""]) -> dict[str, Shaped[Array, " E"]]:
        """Play fresh episodes of each length: `success/90`, `return/90`, `length/90`."""
        return self._play(params, key)


def _run_key(seed: Int[Array, ""] | int) -> Key[Array, "2"]:
    """Of a run's state, and of its network's first parameters."""
    return jax.random.split(jax.random.key(seed))


def _keys(key: Key[Array, ""]) -> Key[Array, "2"]:
    """For data and for dropout; update n uses `fold_in` of either, with n."""
    return jax.random.split(key)


def _best_tenth(returns: Float[np.ndarray, " E"]) -> float:
    """The mean return of the best tenth of the episodes."""
    return float(np.sort(returns)[-max(len(returns) // 10, 1) :].mean())
