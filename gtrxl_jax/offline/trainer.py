"""Offline training: predict the actions of trajectories, segment by segment.

    trainer = OfflineTrainer(config)
    state = trainer.init(seed)  # a pytree, the complete state of the run
    for stage, data in trainer.feed(1, trainer.mesh()):
        state, metrics = make_iteration(trainer, stage)(state, data)  # several updates

An update samples a batch of windows of N segments of K steps and scans the model over the segments.
The memory is passed from each segment to the next, and the gradient flows back through it. A
segment's activations are recomputed in the backward pass, so memory usage grows with K instead of
N * K.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key, Real, Shaped

from gtrxl_jax.custom import is_custom, naming_part
from gtrxl_jax.data.segments import sample_segments
from gtrxl_jax.data.spaces import to_record
from gtrxl_jax.data.trajectories import Trajectories, check
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.nn.encoders import describe_arrays
from gtrxl_jax.nn.normalizer import statistics, update_normalizers
from gtrxl_jax.nn.sequence.registry import make_model
from gtrxl_jax.offline.config import OfflineConfig, to_json
from gtrxl_jax.offline.consistency import require_consistent_model, zero_segment
from gtrxl_jax.offline.data import Data, Feed, InMemory, Streamed
from gtrxl_jax.offline.environments import (
    data_spaces,
    evaluation_streams,
    make_stream,
    parameters,
    sampling_of,
    trajectories_of,
)
from gtrxl_jax.offline.evaluation import SequencePolicy, make_play
from gtrxl_jax.offline.metrics import (
    Metrics,
    over_segments,
    segment_by_segment,
    step_means,
)
from gtrxl_jax.offline.optimizer import make_optimizer
from gtrxl_jax.ops.promotion import standard_dtype_promotion
from gtrxl_jax.parallel.placement import (
    gather_parameters,
    make_mesh,
    split_batch,
    split_parameters,
)
from gtrxl_jax.runs.arrays import replace_arrays
from gtrxl_jax.runs.divergence import finite, first_nonfinite, over_updates
from gtrxl_jax.segments import Segments
from gtrxl_jax.specs import action_spec
from gtrxl_jax.timestep import zero_timestep
from gtrxl_jax.validation import validate


@struct.dataclass
class OfflineState:
    """The complete state of a run, sufficient to resume it.

    Attributes:
      params: parameters of the model.
      optimizer: state of the optax optimizer.
      key: PRNG key of the run; see `_keys`.
      update: int, number of completed updates.
    """

    params: Any
    optimizer: optax.OptState
    key: Key[Array, ""]
    update: Int[Array, ""]


class OfflineTrainer:
    """The pure functions of an offline run; implements `Trainer`.

    Attributes:
      config: config of the run.
      model: the model that is trained.
      title, notes, environment, observation_space, action_space, num_iterations,
        steps_per_iteration: see `Trainer`; a step is an update.

    Raises:
      ValueError: if the config is invalid. Of the data, only the spaces are read, for a run without
        an environment; the rest is read or generated, and checked, before training compiles.
    """

    shown: tuple[str, ...] = ("loss", "accuracy/last_step", "error")

    def __init__(self, config: OfflineConfig, trajectories: Trajectories | None = None):
        """Create a trainer; `trajectories`, if given, are used instead of `config.data`.

        They are checked on first use, see `data.check`.
        """
        validate(config)
        self._trajectories = trajectories
        self._sampling = sampling_of(config)
        self._streams = evaluation_streams(config)
        if self._streams:
            stream = next(iter(self._streams.values()))
            spaces = stream.observation_space, stream.action_space
        else:
            of_data = trajectories.spaces if trajectories else data_spaces(config)
            spaces = of_data.observation, of_data.action
            task = dataclasses.replace(config.task, spaces=to_record(of_data))
            config = dataclasses.replace(config, task=task)
        self.config = config
        self.title = f"{config.model.name}, trained offline for {config.subject}"
        self.environment = (config.task.name, parameters(config))
        self.observation_space, self.action_space = spaces
        if config.data.validation:
            self.shown += ("loss/validation",)
        self.num_iterations = config.num_iterations
        self.steps_per_iteration = config.updates_per_iteration
        self.model: Any = make_model(config.model, *spaces, config.shape[1], jnp.result_type(float))
        self.notes: Sequence[str] = describe_arrays(self.model)
        updates = self.num_iterations * self.steps_per_iteration
        self.optimizer, self.schedule = make_optimizer(config.optimizer, updates)
        if is_custom(self.model):
            params = jax.eval_shape(self.init, 0).params
            require_consistent_model(self.model, params, self._segment(2))

    @functools.cached_property
    def target_return(self) -> float:
        """The return that evaluations ask for; unless configured, it requires the data."""
        given = self.config.evaluation.target_return
        # The first use may be in a program that is being traced.
        with jax.ensure_compile_time_eval():
            return self._data.outcomes().best_tenth if given is None else given

    @functools.cached_property
    def config_json(self) -> str:
        """The config with its target return, so that a trained model acts without the data.

        It also has the fingerprint of a dataset, so that a run never resumes on another.
        """
        config, data = self.config, self.config.data
        evaluation = dataclasses.replace(config.evaluation, target_return=self.target_return)
        if not data.fingerprint and (data.path or not config.task.name):
            data = dataclasses.replace(data, fingerprint=self._data.fingerprint())
        return to_json(dataclasses.replace(config, evaluation=evaluation, data=data))

    @functools.cached_property
    def policy(self) -> SequencePolicy:
        """The model, asked for the target return."""
        evaluation = self.config.evaluation
        return SequencePolicy(
            self.model,
            action_spec(self.action_space),
            self.target_return,
            evaluation.policy,
            self.config.context if evaluation.restart_return else 0,
            evaluation.memory_noise,
        )

    @property
    def tasks(self) -> tuple[Stream, ...]:
        """The environment at the training length; none without an environment."""
        return (make_stream(self.config),) if self.config.task.name else ()

    @functools.cached_property
    def _data(self) -> Data:
        """The data, read or generated on first use, since acting does not require them.

        Raises:
          ValueError: if they are not those whose fingerprint the config has; see also
            `trajectories_of`.
        """
        config, data = self.config, self._source()
        recorded = config.data.fingerprint
        if recorded and data.fingerprint() != recorded:
            raise ValueError(
                f"the data {config.data.path or 'given'} are not those of the run, their contents "
                "differ: restore the data of the run, or start another one"
            )
        return data

    def _source(self) -> Data:
        config = self.config
        if self._trajectories is None and config.data.stream:
            return Streamed(config, self._sampling)
        if self._trajectories is None:
            self._trajectories = trajectories_of(config)
        else:
            check(self._trajectories)
        return InMemory(config, self._sampling, self._trajectories)

    def feed(self, first: int, mesh: Mesh) -> Feed:
        """Yield the curriculum's stage and the data of each iteration, see `Data.feed`."""
        key_data, _ = _keys(_run_key(self.config.seed)[0])
        return self._data.feed(first, key_data, mesh)

    def measured(self) -> dict[str, Array]:
        """Return the statistics of the data by which the model normalizes, see `Trainer`."""
        shapes = {"params": jax.eval_shape(self.init, 0).params}
        variables = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        if not self.config.data.normalize or not statistics(variables["params"]):
            return {}
        update = jax.jit(lambda variables, x: update_normalizers(self.model, variables, x))
        for batch in self._data.observations():
            variables = update(variables, batch)
        return statistics(variables["params"])

    def mesh(self) -> Mesh:
        """Return the mesh of the devices that share the batch."""
        config = self.config
        return make_mesh(
            config.devices,
            config.batch_size,
            field="batch_size",
            parameter_shards=config.parameter_shards,
        )

    def init(
        self, seed: Int[Array, ""] | int, *, given: Mapping[str, Any] | None = None
    ) -> OfflineState:
        """Return the state of a new run, see `Trainer.init`."""
        key, key_network = _run_key(seed)

        def all_of_it(model: Any) -> None:
            model(model.initial_memory(1), self._segment(1))

        with naming_part("model", self.model):
            initial = nn.init(all_of_it, self.model)(key_network).get("params", {})
        params = replace_arrays(initial, given or {})
        with standard_dtype_promotion():
            optimizer = self.optimizer.init(params)
        return OfflineState(params, optimizer, key, jnp.zeros((), jnp.int32))

    def _segment(self, batch: int) -> Segments:
        """Return a segment `[B, K]` of zeros."""
        length = self.config.shape[1]
        return zero_segment(zero_timestep(self.observation_space, self.action_space, batch, length))

    def drawn(self, state: OfflineState) -> dict[str, Any]:
        """Return {}, since all seeds have the settings of the config, see `Trainer.drawn`."""
        return {}

    def update(self, state: OfflineState, data: Any, stage: Any) -> tuple[OfflineState, Metrics]:
        """Sample a batch, or select the one read for this update, and learn from it."""
        key_data, key_dropout = _keys(state.key)
        data, _ = data
        if isinstance(data, Segments):
            # Iterations begin at multiples of `updates_per_iteration`.
            place = state.update % self.config.updates_per_iteration
            batch = jax.tree.map(
                lambda x: jax.lax.dynamic_index_in_dim(x, place, keepdims=False), data
            )
        else:
            trajectories, of_stages = data
            batch = sample_segments(
                trajectories,
                jax.random.fold_in(key_data, state.update),
                self.config.batch_size,
                *self.config.windows(stage),
                self._sampling.start,
                self._sampling.weight,
                of_stages[stage],
            )
        return self.learn(state, batch, jax.random.fold_in(key_dropout, state.update))

    def summarize(
        self, metrics: dict[str, Real[Array, " U"]], state: OfflineState, data: Any
    ) -> Metrics:
        """Compute means over an iteration's updates, and the loss of the windows held out."""
        diverged = over_updates(metrics["nonfinite"])
        means = {k: jnp.mean(x_U) for k, x_U in metrics.items() if k != "nonfinite"}
        _, held_out = data
        if held_out is not None:
            means |= self.validate(state.params, held_out)
        return means | diverged

    def validate(self, params: Any, batch: Segments) -> Metrics:
        """Return the loss and the scores of predictions of a batch `[B, N, K]`, without dropout."""
        params = gather_parameters(params)
        segments, last = segment_by_segment(split_batch(batch))
        memory = self._initial_memory(params, len(batch.mask))
        _, (sums, _) = over_segments(self.model, params, memory, segments, last)
        return step_means(sums, "/validation")

    def learn(
        self, state: OfflineState, batch: Segments, key: Key[Array, ""]
    ) -> tuple[OfflineState, Metrics]:
        """Learn from a batch `[B, N, K]`, with one optimizer step for each chunk of segments.

        A chunk in which every window is padding is skipped.
        """
        size, segments, _ = batch.mask.shape
        chunk = self.config.chunk(segments)
        # [N / C, C, B, K, ...]: chunks of C segments; the gradient does not cross chunks.
        chunks, last = jax.tree.map(
            lambda x: x.reshape(-1, chunk, *x.shape[1:]), segment_by_segment(split_batch(batch))
        )
        keys = jax.random.split(key, (segments // chunk, chunk))
        memory = self._initial_memory(state.params, size)
        rate = self.schedule(state.update.astype(float))

        def one(carry: Any, inputs: Any) -> Any:
            params, optimizer, memory = carry
            number, chunk, last, keys = inputs
            gradients, (memory, (sums, means)) = jax.grad(self.loss, has_aux=True)(
                gather_parameters(params), memory, chunk, last, keys, number == 0
            )
            gradients = split_parameters(gradients)
            means["gradient_norm"] = optax.tree.norm(gradients)
            with standard_dtype_promotion():
                updates, following = self.optimizer.update(gradients, optimizer, params)
            moved = optax.apply_updates(params, jax.tree.map(lambda u: -rate * u, updates))
            is_real = sums["steps"] > 0
            params, optimizer = jax.tree.map(
                lambda new, old: jnp.where(is_real, new, old),
                (moved, following),
                (params, optimizer),
            )
            return (params, optimizer, memory), (sums, means, is_real)

        numbers = jnp.arange(segments // chunk, dtype=jnp.int32)
        (params, optimizer, _), (sums, means, is_real) = jax.lax.scan(
            one, (state.params, state.optimizer, memory), (numbers, chunks, last, keys)
        )
        means = jax.tree.map(lambda x: jnp.mean(x, where=is_real), means)
        metrics = means | step_means(jax.tree.map(jnp.sum, sums))
        metrics["learning_rate"] = rate
        sound = {
            "loss": jnp.isfinite(metrics["loss"]),
            "gradient norm": jnp.isfinite(metrics["gradient_norm"]),
            "parameters": finite(params),
        }
        metrics["nonfinite"] = first_nonfinite(sound)
        return OfflineState(params, optimizer, state.key, state.update + 1), metrics

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
    ) -> tuple[Float[Array, ""], tuple[Any, tuple[Metrics, Metrics]]]:
        """Compute the mean loss over the steps of C consecutive segments `[C, B, K]`.

        Args:
          params: parameters of the model.
          memory: memory before the first segment; no gradient enters it. It is ignored in the first
            chunk of a trajectory, which starts from the network's trainable initial memory.
          chunk: the segments.
          last: which steps are the last of a window, for the metrics.
          keys: PRNG keys for dropout, one for each segment.
          is_first: whether this is the first chunk of a trajectory.

        Returns:
          The loss; the final memory, and what `over_segments` returns with it.
        """
        fresh = self._initial_memory(params, chunk.mask.shape[1])
        memory = jax.tree.map(
            lambda new, old: jnp.where(is_first, new, old), fresh, jax.lax.stop_gradient(memory)
        )
        # With a single segment, the backward pass uses the activations immediately.
        remat = self.config.remat and len(keys) > 1
        memory, metrics = over_segments(self.model, params, memory, chunk, last, keys, remat)
        sums, _ = metrics
        return sums["loss"] / jnp.maximum(sums["steps"], 1), (memory, metrics)

    def evaluate(self, params: Any, key: Key[Array, ""]) -> dict[str, Shaped[Array, " E"]]:
        """Play fresh episodes of each length: `success/90`, ...; {} without an environment."""
        if not self._streams:
            return {}
        return make_play(self.policy, self._streams, self.config.evaluation.episodes)(params, key)


def _run_key(seed: Int[Array, ""] | int) -> Key[Array, "2"]:
    """Return the keys of a run's state and of its network's initial parameters."""
    return jax.random.split(jax.random.key(seed))


def _keys(key: Key[Array, ""]) -> Key[Array, "2"]:
    """Return the keys for data and for dropout; update n uses `fold_in(key, n)` of each."""
    return jax.random.split(key)
