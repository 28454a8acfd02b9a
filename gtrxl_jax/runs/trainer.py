"""What the host's loop asks of a trainer: a few pure functions, and how often to call them."""

from collections.abc import Generator, Hashable
from typing import Any, Protocol

from jax.sharding import Mesh
from jaxtyping import Array, Int, Key, Shaped


class State(Protocol):
    """A flax.struct dataclass of arrays that is the whole run: saving it is saving the run."""

    @property
    def params(self) -> Any:
        """The trained network's parameters."""


class Trainer(Protocol):
    """A run as the host sees it; `OnlineTrainer` is one.

    `init`, `update`, `summarise` and `evaluate` are pure, so that the loop can jit them, repeat
    updates, give them a leading axis of seeds, and place their arrays on a mesh.

    Attributes:
      config: the run's, with at least `seed`, `num_seeds`, `updates_per_iteration`, `evaluation`,
        `checkpoint` and `on_divergence`, which mean what they mean in `OnlineConfig`.
      config_json: the same as JSON, with its kind, so that it can be told from other runs.
      title: in a few words, what is trained, how and on what.
      environment: its name and its parameters, as `make_env` takes them.
      observation_space, action_space: the environment's.
      player: what is trained, as it acts: an `evaluation.Player`.
      num_iterations: how many there are.
      steps_per_iteration: what an iteration adds to the step that metrics and checkpoints are filed under.
      shown: the metrics that tell at a glance how the run is going.
    """

    config: Any
    config_json: str
    title: str
    environment: tuple[str, dict[str, Any]]
    observation_space: Any
    action_space: Any
    player: Any
    num_iterations: int
    steps_per_iteration: int
    shown: tuple[str, ...]

    def mesh(self) -> Mesh:
        """The devices of the run.

        Raises:
          ValueError: there are too few, or they cannot share its batch.
        """

    def feed(self, first: int, mesh: Mesh) -> Generator[tuple[Any, Any], None, None]:
        """The stage and the data of each iteration from number `first` to the last. To be closed.

        Stages are what arrays' shapes depend on, a curriculum's lengths for example: each has a
        program of its own, compiled when it is first needed.

        Data are a pytree of arrays on the mesh, the same for all seeds, or None where they are made
        as they are needed. An argument of the program, not a constant in it, and no part of the
        state: they are neither compiled nor saved.

        Args:
          first: counts from 1.
          mesh: of `mesh()`.

        Raises:
          ValueError: the data are not sound, or do not fit the run.
        """

    def init(self, seed: Int[Array, ""] | int) -> Any:
        """The `State` of a new run."""

    def drawn(self, state: Any) -> dict[str, Shaped[Array, "*S"]]:
        """The settings that were drawn for a seed, by name; of a state of S seeds, for each.

        Seeds that differ in them are never averaged over.
        """

    def update(self, state: Any, data: Any, stage: Hashable) -> tuple[Any, Any]:
        """One update, on what `feed` gave its iteration. Returns the new state, and a tree of numbers.

        Updates are counted by the state.
        """

    def summarise(self, metrics: Any) -> dict[str, Array]:
        """The metrics of an iteration, all scalars, from those of its U updates, `[U, ...]`.

        Among them is the report of `divergence.over_updates`.
        """

    def evaluate(self, params: Any, key: Key[Array, ""]) -> dict[str, Shaped[Array, " E"]]:
        """Play fresh episodes: each score by its name, with an entry for each episode."""
