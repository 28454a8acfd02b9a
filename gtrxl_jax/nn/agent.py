"""The agent: encoder -> memory core -> policy and value.

    core = make_core("gtrxl", preset="small")
    agent = make_agent(core, observation_space, action_space)
    memory = agent.initial_memory(batch_size)
    example = zero_timestep(observation_space, action_space, batch_size, 1)
    params = agent.init(key, memory, example)

Learning, a segment `[B, T]` at a time:

    memory, output = agent.apply(params, memory, timesteps)
    output.policy.log_prob(actions), output.value                          each [B, T]

Acting, a step `[B]` at a time, with the same outputs:

    cache = agent.apply(params, memory, method="start")                    once for these params
    cache, output = agent.apply(params, cache, timestep, method="step")
    action = output.policy.sample(key)
    memory = agent.apply(params, cache, method="finish")
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Float

from gtrxl_jax.nn.encoders import InputEncoder, make_encoder
from gtrxl_jax.nn.heads import PolicyHead, ValueHead
from gtrxl_jax.ops.distributions import ActionDistribution
from gtrxl_jax.specs import action_spec
from gtrxl_jax.timestep import TimeStep


@struct.dataclass
class AgentOutput:
    """What the agent makes of a time step, leading axes `[B]` or `[B, T]`, float32 or wider.

    Attributes:
      policy: the distribution pi(. | s_t) of the next action.
      value: V(s_t) `[...]`, or `[..., N]` with one value for each of N tasks.
    """

    policy: ActionDistribution
    value: jax.Array


class Agent(nn.Module):
    """Encoder, memory core and heads behind the core's contract (see `nn.cores.registry`).

    Stepping through T time steps gives the outputs and the memory of the segment `[B, T]`. Nothing
    of an episode reaches the outputs of the next one.

    Attributes:
      encoder: time steps `[...]` to `[..., D]`.
      core: any memory core of width D.
      policy_head: `[..., D]` to a distribution.
      value_head: `[..., D]` to values.
      memoryless: show the core each step as the first of an episode, which cuts its memory off: the
        control for what memory does. The previous action and reward are still seen.
    """

    encoder: nn.Module
    core: nn.Module
    policy_head: nn.Module
    value_head: nn.Module
    memoryless: bool = False

    def initial_memory(self, batch_size: int) -> Any:
        """The core's memory before anything has been seen; needs no parameters."""
        return self.core.initial_memory(batch_size)

    def __call__(self, memory: Any, timesteps: TimeStep) -> tuple[Any, AgentOutput]:
        """A segment `[B, T]`: the learner's form. No gradient enters the incoming memory."""
        memory, y_BTD = self.features(memory, timesteps)
        return memory, self.heads(y_BTD)

    def features(self, memory: Any, timesteps: TimeStep) -> tuple[Any, Float[Array, "B T D"]]:
        """A segment as far as the core's output, on which both heads stand."""
        return self.core(memory, self.encoder(timesteps), self._first(timesteps))

    def heads(self, y: Float[Array, "... D"]) -> AgentOutput:
        """The policy and the value of the core's output."""
        return AgentOutput(policy=self.policy_head(y), value=self.value_head(y))

    def start(self, memory: Any, num_steps: int | None = None) -> Any:
        """Begin to act from a memory; the core says what announcing `num_steps` saves."""
        return self.core.start(memory, num_steps)

    def step(self, cache: Any, timestep: TimeStep) -> tuple[Any, AgentOutput]:
        """One time step `[B]` of acting; its value can bootstrap the returns up to it."""
        cache, y_BD = self.core.step(cache, self.encoder(timestep), self._first(timestep))
        return cache, self.heads(y_BD)

    def finish(self, cache: Any) -> Any:
        """End acting: the memory as the segment form would have left it."""
        return self.core.finish(cache)

    def _first(self, timestep: TimeStep) -> jax.Array:
        return jnp.ones_like(timestep.first) if self.memoryless else timestep.first


def make_agent(
    core: nn.Module,
    observation_space: Any,
    action_space: Any,
    *,
    encoder: str | nn.Module = "auto",
    encoder_width: int = 256,
    head_width: int = 256,
    num_tasks: int | None = None,
    reward_clip: float | None = None,
    initial_scale: float = 0.5,
    memoryless: bool = False,
) -> Agent:
    """Build an agent around a core for an environment's spaces, in the core's precision.

    Args:
      core: a memory core, for example of `make_core`; its `dtype` and `param_dtype` serve for all.
      observation_space: see `gtrxl_jax.specs.observation_spec`.
      action_space: see `gtrxl_jax.specs.action_spec`.
      encoder: a name for `make_encoder`, or a module from observations to features `[..., F]`.
      encoder_width: F, of the encoders that `make_encoder` builds.
      head_width: hidden units of each head.
      num_tasks: N, one value for each task; None for a single value without an axis of its own.
      reward_clip: if given, the previous reward is clipped to [-reward_clip, reward_clip] as an
        input; the learner's rewards are not.
      initial_scale: of a Gaussian policy, see `PolicyHead`.
      memoryless: see `Agent`.

    Raises:
      ValueError: an unknown encoder, or one that the observations do not fit; an impossible number.
      TypeError: a space that is not supported, or a core that is only a name.
    """
    if not isinstance(core, nn.Module):
        raise TypeError(f"core must be a memory core, not {core!r}: make_core gives one")
    for name, value in {
        "encoder_width": encoder_width,
        "head_width": head_width,
        "num_tasks": 1 if num_tasks is None else num_tasks,
        "reward_clip": 1 if reward_clip is None else reward_clip,
        "initial_scale": initial_scale,
    }.items():
        if not value > 0:
            raise ValueError(f"{name} must be above 0, not {value!r}")
    precision = {"dtype": core.dtype, "param_dtype": core.param_dtype}
    action = action_spec(action_space)
    if isinstance(encoder, str):
        encoder = make_encoder(observation_space, encoder, width=encoder_width, **precision)
    return Agent(
        encoder=InputEncoder(encoder, action, core.width, reward_clip, **precision),
        core=core,
        policy_head=PolicyHead(
            action=action, hidden=head_width, initial_scale=initial_scale, **precision
        ),
        value_head=ValueHead(num_tasks=num_tasks, hidden=head_width, **precision),
        memoryless=memoryless,
    )
