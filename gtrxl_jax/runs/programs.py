"""The compiled programs of a run."""

import contextlib
import functools
import os
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from gtrxl_jax.envs import faults
from gtrxl_jax.parallel import hosts
from gtrxl_jax.parallel.placement import gather_parameters, shardings
from gtrxl_jax.platforms import platform
from gtrxl_jax.runs.arrays import each_seed
from gtrxl_jax.runs.directory import Folder
from gtrxl_jax.runs.params import initial_params
from gtrxl_jax.runs.trainer import Trainer


class Programs:
    """The programs of a run, over its seeds and devices, each compiled on first use.

    Several seeds are trained in one program; on CPU they are processed in turn, see `over_seeds`.

    Args:
      trainer: the run.
      compiling: makes a context in which each program is compiled.
      devices: the devices to choose from, see `Trainer.mesh`. They may be of a topology that this
        machine lacks; the programs can then be compiled and not be run.

    Attributes:
      mesh: the devices of the run.
      like: shapes, dtypes and shardings of the run's state.
      updates: number of updates of a program.
      is_blocking: whether a call of an iteration's program returns only when it has ended.

    Raises:
      ValueError: if the requested devices are not available.
    """

    is_blocking = False

    def __init__(
        self,
        trainer: Trainer,
        compiling: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        devices: Sequence[Any] | None = None,
    ):
        config = trainer.config
        self.mesh: Mesh = trainer.mesh(devices)
        self._everywhere = NamedSharding(self.mesh, PartitionSpec())
        self._trainer = trainer
        self._compiling = compiling
        self.updates: int = config.updates_per_iteration
        self._several = config.num_seeds > 1
        self._seeds: Any = config.seed
        if self._several:
            self._seeds = np.arange(config.seed, config.seed + config.num_seeds)

        def init(seeds: Any, given: Mapping[str, Any]) -> Any:
            def of_one(seed: Any, given: Mapping[str, Any]) -> Any:
                return trainer.init(seed, given=given)

            return self._of_all(of_one)(seeds, given)

        with jax.set_mesh(self.mesh):
            self._options = compiler_options()
            init_options = compiler_options(runs_once=True)
        shapes = jax.eval_shape(init, self._seeds, {})
        self._placed = shardings(shapes, self.mesh, seeds=self._several)
        self.like = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, self._placed
        )
        self._init = jax.jit(init, out_shardings=self._placed, compiler_options=init_options)
        self._iterations: dict[Hashable, Callable[..., Any]] = {}

        def evaluate(params: Any, number: Any) -> Any:
            keys = self._evaluation_keys(number)
            return self._of_all(trainer.evaluate)(gather_parameters(params), keys)

        self._evaluate = jax.jit(
            evaluate, out_shardings=self._everywhere, compiler_options=self._options
        )
        self._evaluation: Callable[..., Any] | None = None

    def _of_all(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return over_seeds(function) if self._several else function

    def _evaluation_keys(self, number: Any) -> Array:
        """Return keys for fresh episodes in every evaluation, equal for all configs of a seed."""
        base = jax.random.fold_in(jax.random.key(2**31 - 1), number)
        of_one = functools.partial(jax.random.fold_in, base)
        return (jax.vmap(of_one) if self._several else of_one)(self._seeds)

    def init(self, folder: Folder | None = None) -> Any:
        """Return the state of a new run, with its `measure_statistics` and `initial_params`.

        A folder that has a checkpoint, from which the run resumes, has no initial parameters.
        """
        statistics: dict[str, Any] = self._trainer.measure_statistics()
        if self._several:
            seeds = len(self._seeds)
            statistics = {name: np.stack([array] * seeds) for name, array in statistics.items()}
        return self._init(self._seeds, statistics | initial_params(self._trainer, folder))

    def feed(self, first: int) -> Generator[tuple[Any, Any], None, None]:
        """Yield stages and data from iteration `first` on, see `Trainer`. Close after use."""
        return self._trainer.feed(first, self.mesh)

    def iteration(self, stage: Hashable, data: Any) -> Callable[..., Any]:
        """Return the program of a stage for such data, from (state, data) to new state and metrics.

        It donates the state.
        """
        if stage not in self._iterations:
            with self._compiling():
                self._iterations[stage] = self.lower(stage, data).compile()
        return self._iterations[stage]

    def lower(self, stage: Hashable, data: Any) -> jax.stages.Lowered:
        """Lower the program of `iteration`; data may be of `jax.ShapeDtypeStruct`."""
        of_one = make_iteration(self._trainer, stage)

        def iteration(state: Any, data: Any) -> Any:
            return self._of_all(lambda state: of_one(state, data))(state)

        program = jax.jit(
            iteration,
            donate_argnums=0,
            out_shardings=(self._placed, self._everywhere),
            compiler_options=self._options,
        )
        with jax.set_mesh(self.mesh):
            return program.lower(self.like, data)

    def has_compiled(self, stage: Hashable) -> bool:
        """Return whether the program of a stage has been compiled."""
        return stage in self._iterations

    def score_names(self) -> list[str]:
        """Return the names of the scores that `evaluate` returns."""
        if self._trainer.on_host:
            return faults.score_names(jax.eval_shape(self._trainer.score_shapes))
        return faults.score_names(jax.eval_shape(self._evaluate, self.like.params, 0))

    def evaluate(self, params: Any, number: int) -> dict[str, Float[np.ndarray, "*S E"]]:
        """Return the scores after iteration `number`: `[E]`, or `[S, E]` for several seeds.

        They include the faults of the episodes, see `envs.faults`.
        """
        if self._trainer.on_host:
            return self._evaluate_on_host(params, number)
        if self._evaluation is None:
            with self._compiling():
                self._evaluation = self.lower_evaluation().compile()
        with jax.set_mesh(self.mesh):
            scores = self._evaluation(params, number)
        return {name: np.array(score, np.float64) for name, score in scores.items()}

    def _evaluate_on_host(self, params: Any, number: int) -> dict[str, Float[np.ndarray, "*S E"]]:
        """Return the scores of the first process, whose simulators may differ from the others'.

        Raises:
          FaultError: in every process, if there is a fault in one of them.
        """
        keys, fault, scores = self._evaluation_keys(number), None, {}
        try:
            of_seed = [
                self._trainer.evaluate(own, keys[n] if self._several else keys)
                for n, own in enumerate(self.to_host(params))
            ]
            scores = jax.tree.map(lambda *x: np.stack(x), *of_seed)
        except faults.FaultError as error:
            fault = error
        # All processes save together, and so must agree on what follows.
        if hosts.all_max(fault is not None):
            raise fault or faults.FaultError("an episode had a fault in another process of the run")
        scores = jax.tree.map(lambda x: np.array(x, np.float64), hosts.of_first(scores))
        return scores if self._several else jax.tree.map(lambda x: x[0], scores)

    def lower_evaluation(self) -> jax.stages.Lowered:
        """Lower the program of `evaluate`."""
        with jax.set_mesh(self.mesh):
            return self._evaluate.lower(self.like.params, 0)

    def to_host(self, params: Any) -> list[Any]:
        """Return the parameters of each seed, unsplit, on this process's first device."""
        whole = jax.jit(lambda x: x, out_shardings=self._everywhere)(params)
        local = jax.tree.map(lambda x: x.addressable_data(0), whole)
        return each_seed(self._trainer.config.num_seeds, local)


def make_iteration(trainer: Trainer, stage: Hashable = None) -> Callable[..., tuple[Any, Any]]:
    """Return an iteration of a stage as a pure function.

    The function maps (state, data) to the new state and metrics. It scans over the updates. Even on
    CPU, this is faster than a host loop over updates, and compiles in about the same time.
    """

    def iteration(state: Any, data: Any = None) -> tuple[Any, Any]:
        def update(state: Any, _: None) -> tuple[Any, Any]:
            return trainer.update(state, data, stage)

        state, metrics = jax.lax.scan(update, state, length=trainer.config.updates_per_iteration)
        return state, trainer.summarize(metrics, state, data)

    return iteration


def over_seeds(function: Callable[..., Any]) -> Callable[..., Any]:
    """Map `function` over a leading axis of seeds in its arguments and results.

    On an accelerator, seeds are vectorized. On CPU, one seed uses all cores, and the caches hold
    the activations of one seed but not of all, so seeds are processed in turn within one program.
    """
    if platform() != "cpu":
        return jax.vmap(function)
    return lambda *arguments: jax.lax.map(lambda of_one: function(*of_one), arguments)


def compiler_options(*, runs_once: bool = False) -> dict[str, int] | None:
    """Return options for `jax.jit` that shorten compilation.

    On CPU, most of the compilation time is spent by LLVM on small kernels. For a program that runs
    once, such as a run's initialization, this is wasted: at level 0, compilation takes half the
    time. A program that runs often spends its time in matrix products, which are precompiled: at
    level 2 instead of 3, compilation takes five sixths of the time and the program runs as fast.

    Args:
      runs_once: whether the program runs only once.

    Returns:
      The options. None, for XLA's defaults, on accelerators and if XLA_FLAGS sets the level.
    """
    name = "xla_backend_optimization_level"
    if platform() != "cpu" or name in os.environ.get("XLA_FLAGS", ""):
        return None
    return {name: 0 if runs_once else 2}
