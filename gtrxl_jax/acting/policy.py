"""The interface by which everything acts, and the policy of an agent."""

import abc
import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from gtrxl_jax.nn.agent import MemoryNetwork
from gtrxl_jax.ops.distributions import SELECTIONS, choose
from gtrxl_jax.specs import action_spec, environment_action
from gtrxl_jax.timestep import TimeStep
from gtrxl_jax.validation import require_choice


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

    @property
    def reads_legal(self) -> bool:
        """Whether it chooses among the legal actions where `timestep.legal` is given."""
        return True

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
          auxiliary outputs, such as the distribution of the actions.
        """

    def attention(self, params: Any, timesteps: TimeStep) -> Float[np.ndarray, "L H S W"] | None:
        """Return the attention of an episode `[S]`; None for policies without attention.

        Returns:
          The weights of each layer and head at each step on the W - 1 steps before it, oldest
          first, and on the step itself.
        """
        return None


class ChosenActions(NamedTuple):
    """What a policy did at a time step of B environments.

    Attributes:
      state: the new state of the policy.
      action: the actions, as the policy chose them.
      extras: what else the policy computed, see `Policy.act`.
      clipped: the actions within their bounds, an input of the next time step.
      environment_action: the actions as the environments take them, in the layout of their space.
    """

    state: Any
    action: Any
    extras: Any
    clipped: Any
    environment_action: Any


def choose_actions(
    policy: Policy, space: Any, params: Any, state: Any, timestep: TimeStep, key: Key[Array, ""]
) -> ChosenActions:
    """Act with a policy in environments of an action space; see `Policy.act` for the arguments."""
    spec = action_spec(space)
    state, action, extras = policy.act(params, state, timestep, key)
    cast = jax.tree.map(lambda x, zero: x.astype(zero.dtype), action, spec.zeros())
    return ChosenActions(state, action, extras, spec.clip(cast), environment_action(space, cast))


@dataclasses.dataclass(frozen=True)
class AgentPolicy(Policy):
    """The policy of an agent; `act` also returns the agent's output.

    Attributes:
      agent: the agent.
      actions: "sample" samples actions, "mode" takes the most likely ones.
    """

    agent: MemoryNetwork
    actions: str = "sample"

    def __post_init__(self) -> None:
        require_choice("actions", self.actions, SELECTIONS)

    def init(self, params: Any, batch_size: int) -> Any:
        """Return a cache over the initial memory."""
        return self.start(params, self.agent.initial_memory(batch_size))

    def start(self, params: Any, memory: Any, num_steps: int | None = None) -> Any:
        """Return a cache over a memory. For `num_steps`, see `nn.core.MemoryCore.start`."""
        return self._apply(params, memory, num_steps, method="start")

    def act(
        self, params: Any, state: Any, timestep: TimeStep, key: Key[Array, ""]
    ) -> tuple[Any, Any, Any]:
        """Choose actions; return the new cache, the actions, and the agent's output."""
        state, output = self._apply(params, state, timestep, method="step")
        return state, self.choose(output, timestep, key), output

    def of_rows(self, rows: Sequence[int]) -> "AgentPolicy":
        """Return the policy of some of the environments, by default the same as of all."""
        return self

    def choose(self, output: Any, timestep: TimeStep, key: Key[Array, ""]) -> Any:
        """Choose actions given the agent's output."""
        return choose(output.policy, self.actions, key)

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


@dataclasses.dataclass(frozen=True)
class ForgetfulPolicy(Policy):
    """A policy that takes every N-th step of an episode for its first, and so forgets all before.

    Attributes:
      policy: the policy.
      every: N.
    """

    policy: Policy
    every: int

    @property
    def is_privileged(self) -> bool:
        return self.policy.is_privileged

    @property
    def reads_legal(self) -> bool:
        return self.policy.reads_legal

    def init(self, params: Any, batch_size: int) -> Any:
        """Return the policy's state, and the number of steps `[B]` since it forgot."""
        return self.policy.init(params, batch_size), jnp.zeros(batch_size, jnp.int32)

    def act(
        self, params: Any, state: Any, timestep: TimeStep, key: Key[Array, ""]
    ) -> tuple[Any, Any, Any]:
        """Choose actions as the policy does."""
        own, since_B = state
        first_B = timestep.first | (since_B == self.every)
        timestep = dataclasses.replace(timestep, first=first_B)
        own, actions, extras = self.policy.act(params, own, timestep, key)
        return (own, jnp.where(first_B, 1, since_B + 1)), actions, extras


CHUNK = 128
"""Number of steps whose attention is recorded at once, which bounds memory for long episodes."""


@functools.partial(jax.jit, static_argnums=0)
def _segment(
    agent: MemoryNetwork, params: Any, memory: Any, timesteps: TimeStep
) -> tuple[Any, Any]:
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
