"""The interface between a trainer and the host's loop: pure functions and iteration counts."""

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from jax.sharding import Mesh
from jaxtyping import Array, Int, Key, Shaped

from gtrxl_jax.ops.popart import PopArtStatistics


@runtime_checkable
class State(Protocol):
    """The whole state of a run as a flax.struct dataclass of arrays: saving it saves the run."""

    @property
    def params(self) -> Any:
        """The trained network's parameters."""


@runtime_checkable
class Trainer(Protocol):
    """A run as the host sees it, implemented for example by `OnlineTrainer`.

    `init`, `update`, `summarize` and `evaluate` are pure, so that the loop can jit them, repeat
    updates, add a leading axis of seeds, and place their arrays on a mesh.

    Attributes:
      config: the config of the run, with at least `seed`, `num_seeds`, `updates_per_iteration`,
        `evaluation`, `checkpoint` and `on_divergence`, with the meaning that they have in
        `OnlineConfig`.
      title: a few words on what is trained, how and on what.
      environment: name and parameters of the environment, as for `make_env`.
      observation_space, action_space: the spaces of the environment.
      num_iterations: number of iterations of the run.
      steps_per_iteration: number of steps by which an iteration advances the step count of metrics
        and checkpoints.
      progress_metrics: names of the metrics that the console shows.
      on_host: whether the environments are on the host: `evaluate` is then not pure, and is called
        outside of programs.
    """

    config: Any
    title: str
    environment: tuple[str, dict[str, Any]]
    observation_space: Any
    action_space: Any
    num_iterations: int
    steps_per_iteration: int
    progress_metrics: tuple[str, ...]

    @property
    def on_host(self) -> bool: ...

    @property
    def notes(self) -> Sequence[str]:
        """Lines on how it reads its inputs, for the console and the card."""

    @property
    def config_json(self) -> str:
        """The config as JSON, with its kind, to distinguish it from other runs.

        It is complete: a trainer of it acts without the run's data.
        """

    @property
    def tasks(self) -> Sequence[Any]:
        """The environments, as streams; episodes of each are drawn at the end of the run."""

    @property
    def policy(self) -> Any:
        """The trained model as it acts in evaluations, an `acting.policy.Policy`."""

    def programs(
        self,
        compiling: Callable[[], AbstractContextManager[None]] = ...,
        devices: Sequence[Any] | None = None,
    ) -> Any:
        """Return the run's `programs.Programs`."""

    def mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """Return the mesh of the run's devices.

        Args:
          devices: the devices to choose from; by default those that JAX sees.

        Raises:
          ValueError: if there are too few devices, or they do not divide its batch.
        """

    def feed(self, first: int, mesh: Mesh) -> Generator[tuple[Any, Any], None, None]:
        """Yield the stage and the data of each iteration from `first` to the last. Close after use.

        A stage determines the shapes of arrays, for example the lengths of a curriculum. Each stage
        has its own program, compiled on first use.

        Data are a pytree of arrays on the mesh, the same for all seeds, or None if they are
        generated during training. They are an argument of the program, neither constants in it nor
        part of the state, so they are neither compiled nor saved.

        Args:
          first: number of the first iteration, from 1.
          mesh: the mesh returned by `mesh()`.

        Raises:
          ValueError: if the data are invalid or do not fit the run.
        """

    def init(self, seed: Int[Array, ""] | int, *, given: Mapping[str, Any] | None = None) -> Any:
        """Return the `State` of a new run.

        Args:
          seed: the seed.
          given: parameters by path that replace those initialized from the seed:
            `measure_statistics`, and the parameters of `init_from` in `RunConfig`.
        """

    def measure_statistics(self) -> dict[str, Array]:
        """Return the parameters by path that follow from the run's data, rather than a seed."""

    def sampled_hyperparameters(self, state: Any) -> dict[str, Any]:
        """Return the settings that were sampled for a seed, by name, which are leaves of the state.

        For a state of S seeds, they are `[S]`. Seeds that differ in them are never averaged.
        """

    def value_statistics(self, state: Any) -> PopArtStatistics | None:
        """Return the statistics in whose units the values of agents are, leaves of the state.

        None if values are in the units of the rewards, or there are none.
        """

    def to_checkpoint(self, state: Any) -> Any:
        """Return what checkpoints keep of a state: all of it, or some parts replaced by ()."""

    def from_checkpoint(self, saved: Any, fresh: Any) -> Any:
        """Return the state of a resumed run, given what was saved and the state of a new run."""

    def update(self, state: Any, data: Any, stage: Hashable) -> tuple[Any, Any]:
        """Make one update on the data of its iteration; return the new state and a tree of metrics.

        The state counts the updates.
        """

    def summarize(self, metrics: Any, state: Any, data: Any) -> dict[str, Array]:
        """Return the metrics of an iteration, all scalars.

        They include the report of `divergence.reduce_checks`.

        Args:
          metrics: the metrics of the iteration's U updates, `[U, ...]`.
          state: the state after the updates.
          data: the data of the iteration.
        """

    def score_shapes(self) -> dict[str, Shaped[Array, " _"]]:
        """Return scores of zeros, if `on_host`, for their names."""

    def evaluate(self, params: Any, key: Key[Array, ""]) -> dict[str, Shaped[Array, " _"]]:
        """Play fresh episodes; return each score by its name, with one entry per episode.

        What is wrong with the episodes may be among them, by the names of `envs.faults`.
        """
