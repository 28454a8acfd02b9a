"""Policies: the one interface by which agents, models of trajectories and oracles act."""

import abc
import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import environment
from jaxtyping import Array, Float, Key

from gtrxl_jax.custom import naming_part
from gtrxl_jax.envs.adapters import inner
from gtrxl_jax.nn.agent import Agent, AgentOutput
from gtrxl_jax.ops.distributions import POLICIES, choose
from gtrxl_jax.ops.legal import draw_choices
from gtrxl_jax.specs import action_spec
from gtrxl_jax.timestep import TimeStep
from gtrxl_jax.validation import check_choice


class Policy(abc.ABC):
    """Acts in B environments.

        state = policy.init(params, batch_size)
        state, action, extras = policy.act(params, state, timestep, key)      once per time step

    Both are pure. See `acting.rollout` for what plays a policy in environments.
    """

    @property
    def is_privileged(self) -> bool:
        """Whether `timestep.observation` is the environments' state, not their observations."""
        return False

    @abc.abstractmethod
    def init(self, params: Any, batch_size: int) -> Any:
        """Return the state before the first time step, a pytree of arrays."""

    @abc.abstractmethod
    def act(
        self, params: Any, state: Any, timestep: TimeStep, key: Key[Array, ""]
    ) -> tuple[Any, Any, Any]:
        """Choose actions.

        Args:
          params: parameters of the policy's network; () if it has none.
          state: the state returned by `init` or by the previous `act`.
          timestep: `[B]`; where it is the `first` of an episode, the policy forgets all that came
            before.
          key: a PRNG key, a new one for each call.

        Returns:
          The new state; actions `[B]` in the layout of `specs.ActionSpec`; and a pytree `[B]` of
          whatever else the policy computed, such as the distribution of the actions.
        """

    def attention(self, params: Any, timesteps: TimeStep) -> Float[np.ndarray, "L H S W"] | None:
        """Return the attention of an episode `[S]`; None for policies without attention.

        Returns:
          The weights of each layer and head at each step on the W - 1 steps before it, oldest
          first, and on the step itself.
        """
        return None


@dataclasses.dataclass(frozen=True)
class AgentPolicy(Policy):
    """The policy of an agent; `act` also returns its `AgentOutput`.

    Attributes:
      agent: the agent.
      actions: "sample" samples actions, "mode" takes the most likely ones.
    """

    agent: Agent
    actions: str = "sample"

    def __post_init__(self) -> None:
        check_choice("actions", self.actions, POLICIES)

    def init(self, params: Any, batch_size: int) -> Any:
        """Return a cache over the initial memory."""
        return self.start(params, self.agent.initial_memory(batch_size))

    def start(self, params: Any, memory: Any, num_steps: int | None = None) -> Any:
        """Return a cache over a memory. For `num_steps`, see `nn.core.MemoryCore.start`."""
        return self._apply(params, memory, num_steps, method="start")

    def act(
        self, params: Any, state: Any, timestep: TimeStep, key: Key[Array, ""]
    ) -> tuple[Any, Any, AgentOutput]:
        """Choose actions; return the new cache, the actions, and the agent's output."""
        state, output = self._apply(params, state, timestep, method="step")
        return state, choose(output.policy, self.actions, key), output

    def finish(self, params: Any, state: Any) -> Any:
        """Return the memory from a cache."""
        return self._apply(params, state, method="finish")

    def attention(self, params: Any, timesteps: TimeStep) -> Float[np.ndarray, "L H S W"] | None:
        """Return the attention that the agent's core reports."""
        steps = len(timesteps.first)
        memory, windows = self.agent.initial_memory(1), []
        for begin in range(0, steps, CHUNK):
            # Pad the last chunk with copies of the last step, so that all chunks share one program.
            # This does not change earlier steps, since attention is causal.
            index = np.minimum(np.arange(begin, begin + CHUNK), steps - 1)
            chunk = jax.tree.map(lambda x, i=index: x[None, i], timesteps)
            memory, recorded = _segment(self.agent, params, memory, chunk)
            if not recorded:
                return None
            windows.append(np.stack([weights[0] for weights in in_order(recorded)]))
        return np.concatenate(windows, axis=2)[:, :, :steps]

    def _apply(self, params: Any, *arguments: Any, method: str) -> Any:
        apply: Any = self.agent.apply
        return apply({"params": params}, *arguments, method=method)


CHUNK = 128
"""Number of steps whose attention is recorded at once, which bounds memory for long episodes."""


@functools.partial(jax.jit, static_argnums=0)
def _segment(agent: Agent, params: Any, memory: Any, timesteps: TimeStep) -> tuple[Any, Any]:
    """Return the memory after a segment, and the attention that the core has sown."""
    apply: Any = agent.apply
    (memory, _), recorded = apply({"params": params}, memory, timesteps, mutable="attention")
    return memory, recorded.get("attention", {}).get("core", {})


def in_order(recorded: Any) -> list[Float[np.ndarray, "B H T S"]]:
    """Return the attention weights that each layer has sown, in order of layers."""

    def place(item: Any) -> list[Any]:
        # Compare numbers by value, so that blocks_10 comes after blocks_2.
        parts = re.split(r"(\d+)", jax.tree_util.keystr(item[0]))
        return [int(part) if part.isdigit() else part for part in parts]

    layers = sorted(jax.tree.leaves_with_path(recorded), key=place)
    return [np.asarray(weights) for _, weights in layers]


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
        if not hasattr(self.env, "oracle_action"):
            name = type(inner(self.env)).__name__
            raise ValueError(f"{name} has no oracle_action: use another policy")

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
        with naming_part("environment", inner(self.env)):
            return (), oracle(timestep.observation), ()


@dataclasses.dataclass(frozen=True)
class ExplorerPolicy(Policy):
    """The environment's built-in player, which sees what an agent sees and remembers all of it.

    Its return is what an agent with a perfect memory can reach; the oracle's is not, where the
    agent has to find out first what the oracle knows.

    Attributes:
      env: an environment with `explorer_memory(params)` and `explorer_action(memory, observation,
        params)`, which returns the new memory and an action in the layout of `specs.ActionSpec`.
        If it has `explorer_sight(state, params)`, what there is to see in an image, this takes the
        place of the observation.
      params: its parameters.

    Raises:
      ValueError: if the environment has no `explorer_action`.
    """

    env: environment.Environment
    params: Any

    def __post_init__(self) -> None:
        if not hasattr(self.env, "explorer_action"):
            raise ValueError(
                f"{type(inner(self.env)).__name__} has no explorer_action: use another policy"
            )

    @property
    def is_privileged(self) -> bool:
        """Whether the environment computes from its state what there is to see."""
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

        with naming_part("environment", inner(self.env)):
            return *jax.vmap(explore)(state, timestep.observation, timestep.first), ()


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
