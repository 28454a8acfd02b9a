"""Policies that do not learn: an environment's oracle and its explorer, and random choices."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import environment
from jaxtyping import Array, Key

from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.custom import wrap_errors
from gtrxl_jax.envs.adapters import inner
from gtrxl_jax.ops.legal import draw_choices
from gtrxl_jax.specs import action_spec
from gtrxl_jax.timestep import TimeStep


@dataclasses.dataclass(frozen=True)
class OraclePolicy(Policy):
    """The environment's built-in solution, which has access to its state.

    Attributes:
      env: an environment with `oracle_action(state, params)`, an action in the layout of
        `specs.ActionSpec`.
      params: its parameters.

    Raises:
      ValueError: if the environment has no `oracle_action`.
    """

    env: environment.Environment
    params: Any

    def __post_init__(self) -> None:
        _require_method(self.env, "oracle_action")

    @property
    def is_privileged(self) -> bool:
        """True: oracles act by the state."""
        return True

    def init(self, params: Any, batch_size: int) -> tuple[()]:
        return ()

    def act(
        self, params: Any, state: tuple[()], timestep: TimeStep, key: Key[Array, ""]
    ) -> tuple[tuple[()], Any, tuple[()]]:
        """Return the oracle's actions."""
        oracle = jax.vmap(lambda state: self.env.oracle_action(state, self.params))
        with wrap_errors("environment", inner(self.env)):
            return (), oracle(timestep.observation), ()


@dataclasses.dataclass(frozen=True)
class ExplorerPolicy(Policy):
    """The environment's built-in player, which sees what an agent sees and remembers all of it.

    Its return is what an agent with a perfect memory can reach. The oracle can do better, since it
    knows what an agent must first find out.

    Attributes:
      env: an environment with `explorer_memory(params)` and `explorer_action(memory, observation,
        params)`, which returns the new memory and an action in the layout of `specs.ActionSpec`.
        If it has `explorer_sight(state, params)`, the content of an image, this takes the place of
        the observation.
      params: its parameters.

    Raises:
      ValueError: if the environment has no `explorer_action`.
    """

    env: environment.Environment
    params: Any

    def __post_init__(self) -> None:
        _require_method(self.env, "explorer_action")

    @property
    def is_privileged(self) -> bool:
        """Whether the environment computes `explorer_sight` from its state."""
        return hasattr(self.env, "explorer_sight")

    def init(self, params: Any, batch_size: int) -> Any:
        """Return the memory before an episode, for each environment."""
        memory = self.env.explorer_memory(self.params)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (batch_size, *x.shape)), memory)

    def act(
        self, params: Any, state: Any, timestep: TimeStep, key: Key[Array, ""]
    ) -> tuple[Any, Any, tuple[()]]:
        """Return the new memories and the explorer's actions."""

        def explore(memory: Any, observation: Any, first: Any) -> Any:
            before = self.env.explorer_memory(self.params)
            memory = jax.tree.map(lambda old, new: jnp.where(first, new, old), memory, before)
            if self.is_privileged:
                observation = self.env.explorer_sight(observation, self.params)
            return self.env.explorer_action(memory, observation, self.params)

        with wrap_errors("environment", inner(self.env)):
            return *jax.vmap(explore)(state, timestep.observation, timestep.first), ()


def _require_method(env: environment.Environment, method: str) -> None:
    if not hasattr(env, method):
        name = type(inner(env)).__name__
        raise ValueError(f"{name} has no {method}: use another policy, such as random or a run")


@dataclasses.dataclass(frozen=True)
class RandomPolicy(Policy):
    """A policy that chooses among the legal actions uniformly at random.

    Attributes:
      action_space: see `gtrxl_jax.specs.action_spec`; bounded.

    Raises:
      ValueError: if the action space is unbounded.
    """

    action_space: Any

    def __post_init__(self) -> None:
        if not np.isfinite(action_spec(self.action_space).continuous).all():
            raise ValueError(f"action_space {self.action_space} is unbounded: use another policy")

    def init(self, params: Any, batch_size: int) -> tuple[()]:
        return ()

    def act(
        self, params: Any, state: tuple[()], timestep: TimeStep, key: Key[Array, ""]
    ) -> tuple[tuple[()], Any, tuple[()]]:
        """Sample from the legal actions."""
        spec = action_spec(self.action_space)
        key_any, key_legal = jax.random.split(key)
        action = spec.sample(key_any, len(timestep.first))
        if timestep.legal is not None:
            choices = draw_choices(key_legal, timestep.legal, spec.discrete)
            action = {**action, "discrete": choices} if spec.is_hybrid else choices[..., 0]
        return (), action, ()
