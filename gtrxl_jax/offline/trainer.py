"""Offline training: an algorithm learns from batches of the data, and its policy is evaluated.

    trainer = OfflineTrainer(config)
    state = trainer.init(seed)  # a pytree, the complete state of the run
    for stage, data in trainer.feed(1, trainer.mesh()):
        state, metrics = make_iteration(trainer, stage)(state, data)  # several updates

An update samples a batch of windows of K segments of T steps, or selects one that was read from
disk, and the algorithm learns from it; see `offline.algorithm`.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Int, Key, Shaped

from gtrxl_jax.acting.evaluation import AnyTask, summarize, zero_episodes
from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.custom import is_custom, wrap_errors
from gtrxl_jax.data.spaces import to_record
from gtrxl_jax.data.trajectories import Trajectories, check
from gtrxl_jax.data.windows import sample_segments
from gtrxl_jax.envs.host.stream import HostStream
from gtrxl_jax.nn.encoders import describe_arrays
from gtrxl_jax.nn.normalizer import normalizer_statistics, update_normalizers
from gtrxl_jax.nn.sequence.model import require_consistent_model
from gtrxl_jax.nn.sequence.registry import make_model
from gtrxl_jax.nn.sequence.trajectory import return_statistics
from gtrxl_jax.offline.algorithm import Metrics, Setup, require_consistent_update
from gtrxl_jax.offline.config import OfflineConfig, to_json
from gtrxl_jax.offline.data import Data, Feed, InMemory, Streamed
from gtrxl_jax.offline.environments import (
    data_spaces,
    evaluation_streams,
    make_stream,
    parameters,
    require_spaces,
    sampling_of,
    trajectories_of,
)
from gtrxl_jax.offline.evaluation import make_play
from gtrxl_jax.parallel.placement import make_mesh
from gtrxl_jax.runs.arrays import replace_arrays
from gtrxl_jax.runs.divergence import is_finite, pop_checks, reduce_checks
from gtrxl_jax.runs.programs import Programs
from gtrxl_jax.segments import Segments, zero_segment
from gtrxl_jax.timestep import zero_timestep
from gtrxl_jax.validation import require_instance, validate


@struct.dataclass
class OfflineState:
    """The complete state of a run, sufficient to resume it.

    Attributes:
      learner: what the algorithm learns with, see `OfflineAlgorithm.init`.
      key: PRNG key of the run; see `_update_keys`.
      update: number of completed updates.
    """

    learner: Any
    key: Key[Array, ""]
    update: Int[Array, ""]

    @property
    def params(self) -> Any:
        """The parameters with which the policy acts."""
        return self.learner.params


class OfflineTrainer:
    """The pure functions of an offline run; implements `Trainer`, whose steps are updates.

    Attributes:
      config: config of the run.
      model: the model that is trained.
      algorithm: the algorithm that trains it.

    Raises:
      TypeError: if the config, or a field, is of another type.
      ValueError: if the config is invalid. Of the data, only the spaces are read, for a run without
        an environment; the rest is read or generated, and checked, before training compiles.
    """

    progress_metrics: tuple[str, ...] = ("loss", "accuracy/last_step", "error")

    def __init__(
        self,
        config: OfflineConfig,
        trajectories: Trajectories | None = None,
        *,
        generated: bool = False,
    ):
        """Create a trainer; `trajectories`, if given, are used instead of `config.data`.

        They are checked on first use, see `data.check`. If they are `generated`, the config alone
        says which they are, see `trajectories_of`.
        """
        remedy = "preset(NAME) of gtrxl_jax.offline returns one"
        require_instance("config", config, OfflineConfig, remedy)
        validate(config)
        self._trajectories = trajectories
        self._is_generated = generated or (trajectories is None and not config.data.path)
        self._sampling = sampling_of(config)
        self._streams = evaluation_streams(config)
        if self._streams:
            stream = next(iter(self._streams.values()))
            spaces = stream.observation_space, stream.action_space
            if trajectories is not None:
                require_spaces(config, trajectories.spaces)
        else:
            of_data = trajectories.spaces if trajectories else data_spaces(config)
            spaces = of_data.observation, of_data.action
            env = dataclasses.replace(config.env, spaces=to_record(of_data))
            config = dataclasses.replace(config, env=env)
        self.config = config
        self.title = f"{config.model.name}, trained offline for {config.subject}"
        self.environment = (config.env.name, parameters(config))
        self.observation_space, self.action_space = spaces
        if config.data.validation:
            self.progress_metrics += ("loss/validation",)
        self.num_iterations = config.num_iterations
        self.steps_per_iteration = config.updates_per_iteration
        model = make_model(config.model, *spaces, config.shape[1], jnp.result_type(float))
        self._reading = describe_arrays(model)
        evaluation = config.evaluation
        setup = Setup(
            model,
            *spaces,
            optimizer=config.optimizer,
            num_updates=self.num_iterations * self.steps_per_iteration,
            unroll=config.unroll,
            is_recurrent=config.model.is_recurrent,
            bptt=config.bptt,
            remat=config.remat,
            actions=evaluation.actions,
            restart_every=config.unroll if evaluation.restart_return else 0,
            memory_noise=evaluation.memory_noise,
        )
        with wrap_errors("algorithm", config.algorithm):
            self.algorithm = config.algorithm.make(setup)
        self.model: Any = self.algorithm.model
        self._require_consistent_parts()

    def _require_consistent_parts(self) -> None:
        """Check a custom model or algorithm before it enters a program."""
        if not (is_custom(self.model) or is_custom(self.algorithm)):
            return
        params = jax.eval_shape(self._init_params, jax.random.key(0))
        segment = self._segment(2)
        require_consistent_model(self.model, params, segment)
        windows = jax.tree.map(lambda x: jnp.stack([x] * self.config.shape[0], axis=1), segment)
        require_consistent_update(self.algorithm, params, windows)

    @functools.cached_property
    def target_return(self) -> float:
        """The return that evaluations ask for; unless configured, it requires the data."""
        given = self.config.evaluation.target_return
        # The first use may be in a program that is being traced.
        with jax.ensure_compile_time_eval():
            return self._data.outcomes().best_tenth if given is None else given

    @functools.cached_property
    def return_scale(self) -> float | None:
        """The divisor of returns-to-go that is chosen from the data; None if none is."""
        if getattr(self.config.model, "return_scale", 1.0) is not None:
            return None
        scale = self.config.data.return_scale or self._data.outcomes().return_scale
        if not 1e-18 <= scale <= 1e18:
            raise ValueError(
                f"the largest return-to-go of the data is {scale:.3g}, whose square is no float32: "
                "scale the rewards"
            )
        return scale

    @property
    def notes(self) -> Sequence[str]:
        """Lines on what the model reads, see `Trainer`; they may require the data."""
        config, scale = self.config, self.return_scale
        # Parameters of another run bring their own scale.
        if scale is None or not config.reads_returns or config.init_from:
            return self._reading
        return [*self._reading, f"returns-to-go are divided by {scale:.4g}, the largest of them"]

    @functools.cached_property
    def config_json(self) -> str:
        """The config with its target return, so that a trained model acts without the data.

        It also has the scale of returns, and the fingerprint of data that were not generated, so
        that a run never resumes on others.
        """
        config = self.config
        data = dataclasses.replace(config.data, return_scale=self.return_scale)
        evaluation = dataclasses.replace(config.evaluation, target_return=self.target_return)
        if not (data.fingerprint or self._is_generated):
            data = dataclasses.replace(data, fingerprint=self._data.fingerprint())
        return to_json(dataclasses.replace(config, evaluation=evaluation, data=data))

    @functools.cached_property
    def policy(self) -> Policy:
        """The algorithm's policy, asked for the target return."""
        target_return = self.target_return
        with wrap_errors("algorithm", self.algorithm):
            return self.algorithm.policy(target_return)

    @property
    def tasks(self) -> tuple[AnyTask, ...]:
        """The environment at the training length; none without an environment."""
        return (make_stream(self.config),) if self.config.env.name else ()

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
                f"the data {config.data.path or 'given'} are not the run's data, their contents "
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
        key_data, _ = _update_keys(_run_keys(self.config.seed)[0])
        return self._data.feed(first, key_data, mesh)

    def measure_statistics(self) -> dict[str, Array]:
        """Return the statistics of the data by which the model normalizes, see `Trainer`."""
        shapes = {"params": jax.eval_shape(self.init, 0).params}
        variables = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        found, scale = normalizer_statistics(variables["params"]), self.return_scale
        returns = {} if scale is None else return_statistics(variables["params"], scale)
        if not self.config.data.normalize or found.keys() == returns.keys():
            return returns
        update = jax.jit(lambda variables, x: update_normalizers(self.model, variables, x))
        for batch in self._data.observations():
            variables = update(variables, batch)
        return normalizer_statistics(variables["params"]) | returns

    def programs(
        self,
        compiling: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        devices: Sequence[Any] | None = None,
    ) -> Programs:
        """Return the programs of the run, see `Trainer.programs`."""
        return Programs(self, compiling, devices)

    def mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """Return the mesh of the devices that share the batch, see `Trainer.mesh`."""
        config = self.config
        return make_mesh(
            config.devices,
            config.batch_size,
            field="batch_size",
            parameter_shards=config.parameter_shards,
            devices=devices,
        )

    def init(
        self, seed: Int[Array, ""] | int, *, given: Mapping[str, Any] | None = None
    ) -> OfflineState:
        """Return the state of a new run, see `Trainer.init`."""
        key, key_network = _run_keys(seed)
        params = replace_arrays(self._init_params(key_network), given or {})
        learner = self.algorithm.init(params, jax.random.fold_in(key_network, 1))
        return OfflineState(learner, key, jnp.zeros((), jnp.int32))

    def _init_params(self, key: Key[Array, ""]) -> Any:
        """Return initial parameters of the model."""

        def forward(model: Any) -> None:
            model(model.initial_memory(1), self._segment(1))

        with wrap_errors("model", self.model):
            return nn.init(forward, self.model)(key).get("params", {})

    def _segment(self, batch: int) -> Segments:
        """Return a segment `[B, T]` of zeros."""
        length = self.config.shape[1]
        timesteps = zero_timestep(self.observation_space, self.action_space, batch, length)
        return zero_segment(timesteps, self.config.algorithm.needs)

    def sampled_hyperparameters(self, state: OfflineState) -> dict[str, Any]:
        """Return {}: all seeds have the settings of the config."""
        return {}

    def value_statistics(self, state: OfflineState) -> None:
        """Return None: models have no normalized values."""
        return

    def to_checkpoint(self, state: OfflineState) -> OfflineState:
        """Return all of the state, see `Trainer.to_checkpoint`."""
        return state

    def from_checkpoint(self, saved: OfflineState, fresh: OfflineState) -> OfflineState:
        """Return all that was saved, see `Trainer.from_checkpoint`."""
        return saved

    def update(self, state: OfflineState, data: Any, stage: Any) -> tuple[OfflineState, Metrics]:
        """Sample a batch, or select the one read for this update, and learn from it."""
        key_data, key_learning = _update_keys(state.key)
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
                self.config.algorithm.needs,
            )
        key = jax.random.fold_in(key_learning, state.update)
        with jax.named_scope("learn"):
            learner, metrics = self.algorithm.update(state.learner, batch, key)
        checks = {
            f"finite/{quantity}": jnp.isfinite(metrics[name])
            for quantity, name in (("loss", "loss"), ("gradient norm", "gradient_norm"))
            if name in metrics
        }
        checks["finite/parameters"] = is_finite(learner.params)
        state = OfflineState(learner, state.key, state.update + 1)
        return state, checks | metrics

    def summarize(self, metrics: dict[str, Any], state: OfflineState, data: Any) -> Metrics:
        """Compute means over an iteration's updates, and the loss of the windows held out."""
        metrics = dict(metrics)
        checks = pop_checks(metrics)
        # What only some updates compute is NaN in the others.
        means = {name: jnp.nanmean(x_U) for name, x_U in metrics.items()}
        _, held_out = data
        if held_out is not None:
            scores = self.algorithm.validate(state.learner, held_out)
            means |= {f"{name}/validation": score for name, score in scores.items()}
        return means | reduce_checks(checks)

    @property
    def on_host(self) -> bool:
        """Whether the environment is on the host, see `Trainer`."""
        return any(isinstance(stream, HostStream) for stream in self._streams.values())

    def score_shapes(self) -> dict[str, Shaped[Array, " E"]]:
        """Return scores of zeros, see `Trainer.score_shapes`."""
        streams: Any = self._streams.values()
        return summarize(zero_episodes(list(streams)))

    def evaluate(self, params: Any, key: Key[Array, ""]) -> dict[str, Shaped[Array, " E"]]:
        """Play fresh episodes of each length: `success/90`, ...; {} without an environment."""
        if not self._streams:
            return {}
        play = make_play(self.policy, self._streams, self.config.evaluation.episodes)
        with wrap_errors("algorithm", self.algorithm):
            return play(params, key)


def _run_keys(seed: Int[Array, ""] | int) -> Key[Array, "2"]:
    """Return the keys of a run's state and of its network's initial parameters."""
    return jax.random.split(jax.random.key(seed))


def _update_keys(key: Key[Array, ""]) -> Key[Array, "2"]:
    """Return the keys for data and for learning; update n uses `fold_in(key, n)` of each."""
    return jax.random.split(key)
