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

import abc
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float

from gtrxl_jax.nn.auxiliary import PixelControl, RandomDistillation, Reconstruction
from gtrxl_jax.nn.core import MemoryCore, require_consistent_core
from gtrxl_jax.nn.cores.clock import with_clock
from gtrxl_jax.nn.encoders import InputEncoder, make_encoder
from gtrxl_jax.nn.heads import DuelingHead, PolicyHead, ValueHead
from gtrxl_jax.ops.distributions import ActionDistribution
from gtrxl_jax.specs import IMAGE_AXES, ActionSpec, ArraySpec, action_spec, observation_spec
from gtrxl_jax.timestep import TimeStep
from gtrxl_jax.validation import require_choice, require_count, require_number


@struct.dataclass
class AgentOutput:
    """The policy and value at each time step; leading axes `[B]` or `[B, T]`, float32 or wider.

    Attributes:
      policy: the distribution pi(. | s_t) of the next action.
      value: V(s_t) `[...]`, or `[..., N]` with one value for each of N tasks.
    """

    policy: ActionDistribution
    value: Float[Array, "..."]


class MemoryNetwork(nn.Module, abc.ABC, kw_only=True):
    """Encoder, memory core and heads, with the interface of a core (see `nn.core.MemoryCore`).

    Stepping through T time steps returns the same outputs and memory as one call on the segment
    `[B, T]`. No information crosses an episode boundary.

    Attributes:
      encoder: maps time steps `[...]` to `[..., D]`.
      core: any memory core of width D.
      memoryless: present every step to the core as the first of an episode, which disables its
        memory: the ablation of memory. The previous action and reward are still inputs; a clock
        stays at 0.
      reconstruction: an auxiliary loss on the core's output, see `nn.auxiliary`; None for none.
      pixel_control: an auxiliary loss for images, see `nn.auxiliary`; None for none.
      rnd: a `RandomDistillation`, whose loss does not depend on the core; None for none.
    """

    encoder: nn.Module
    core: MemoryCore
    memoryless: bool = False
    reconstruction: nn.Module | None = None
    pixel_control: nn.Module | None = None
    rnd: RandomDistillation | None = None

    @abc.abstractmethod
    def heads(self, y: Float[Array, "... D"], legal: Bool[Array, "... A"] | None) -> Any:
        """Compute the outputs from the core's output, and the steps' legal actions."""

    def initial_memory(self, batch_size: int) -> Any:
        """Return the core's initial memory; needs no parameters."""
        return self.core.initial_memory(batch_size)

    def __call__(self, memory: Any, timesteps: TimeStep) -> tuple[Any, Any]:
        """Run a segment `[B, T]`, as in learning. No gradient flows into the incoming memory."""
        memory, y_BTD = self.features(memory, timesteps)
        return memory, self.heads(y_BTD, timesteps.legal)

    def features(self, memory: Any, timesteps: TimeStep) -> tuple[Any, Float[Array, "B T D"]]:
        """Run the encoder and the core on a segment; return the memory and the heads' input.

        Where an algorithm collects losses, the auxiliary ones are computed.
        """
        memory, y_BTD = self.core(memory, self.encoder(timesteps), self._first(timesteps))
        if self.is_mutable_collection("losses"):
            for auxiliary in (self.reconstruction, self.pixel_control, self.rnd):
                if auxiliary is not None:
                    auxiliary(y_BTD, timesteps)
        return memory, y_BTD

    def encode(self, timesteps: TimeStep) -> Float[Array, "... D"]:
        """Encode time steps of any leading axes, see `nn.normalizer.update_normalizers`."""
        if self.reconstruction is not None:
            self.reconstruction.targets(timesteps)
        if self.rnd is not None:
            self.rnd.bonus(timesteps.observation)
        return self.encoder(timesteps)

    def bonus(self, timesteps: TimeStep) -> Float[Array, "..."]:
        """Return the exploration bonus of each time step's observation; needs `rnd`."""
        assert self.rnd is not None
        return self.rnd.bonus(timesteps.observation)

    def start(self, memory: Any, num_steps: int | None = None) -> Any:
        """Start acting from a memory. For `num_steps`, see the core."""
        return self.core.start(memory, num_steps)

    def step(self, cache: Any, timestep: TimeStep) -> tuple[Any, Any]:
        """Run one acting step `[B]`; its value can bootstrap the returns of earlier steps."""
        cache, y_BD = self.core.step(cache, self.encoder(timestep), self._first(timestep))
        return cache, self.heads(y_BD, timestep.legal)

    def finish(self, cache: Any) -> Any:
        """Finish acting; return the memory that the segment form would have returned."""
        return self.core.finish(cache)

    def _first(self, timestep: TimeStep) -> jax.Array:
        return jnp.ones_like(timestep.first) if self.memoryless else timestep.first


class Agent(MemoryNetwork, kw_only=True):
    """An actor-critic: policy and value on a memory core.

    Attributes:
      policy_head: maps `[..., D]`, and the legal actions or None, to a distribution.
      value_head: maps `[..., D]` to values.
    """

    policy_head: nn.Module
    value_head: nn.Module

    def heads(self, y: Float[Array, "... D"], legal: Bool[Array, "... A"] | None) -> AgentOutput:
        """Compute the policy and the value from the core's output, and the steps' legal actions."""
        return AgentOutput(policy=self.policy_head(y, legal), value=self.value_head(y))


class QNetwork(MemoryNetwork, kw_only=True):
    """Values of the actions on a memory core.

    Attributes:
      q_head: maps `[..., D]`, and the legal actions or None, to values `[..., A]`.
    """

    q_head: nn.Module

    def heads(
        self, y: Float[Array, "... D"], legal: Bool[Array, "... A"] | None
    ) -> Float[Array, "... A"]:
        """Compute Q(s_t, a) for each action; forbidden actions have the lowest number."""
        return self.q_head(y, legal)


def make_agent(
    core: MemoryCore,
    observation_space: Any,
    action_space: Any,
    *,
    encoder: str | nn.Module = "auto",
    encoders: Mapping[str, str] | None = None,
    encoder_width: int = 256,
    image_axes: str = "auto",
    head_width: int = 256,
    num_tasks: int | None = None,
    initial_scale: float = 0.5,
    max_scale: float = 1.0,
    clock: bool = False,
    memoryless: bool = False,
    reconstruction: float = 0.0,
    pixel_control: float = 0.0,
    rnd: float = 0.0,
) -> Agent:
    """Build an agent around a core for an environment's spaces, in the core's precision.

    Args:
      core: a memory core, for example from `make_core`; its `dtype` and `param_dtype` apply to the
        whole agent.
      observation_space: see `gtrxl_jax.specs.observation_spec`.
      action_space: see `gtrxl_jax.specs.action_spec`.
      encoder: a name for `make_encoder`, or a module from observations to features `[..., F]`.
      encoders: the names for single keys of a dict or a tuple, see `make_encoder`; not beside a
        module.
      encoder_width: F, the feature width of the encoders that `make_encoder` builds.
      image_axes: where the channels of images are, see `make_encoder`.
      head_width: hidden units of each head.
      num_tasks: N, one value per task; None for a single value without a task axis.
      initial_scale: initial scale of a Gaussian policy, see `PolicyHead`.
      max_scale: the largest scale of a Gaussian policy.
      clock: add the number of steps since the start of the episode to the core's inputs, see
        `ClockedCore`.
      memoryless: see `Agent`.
      reconstruction: weight of the loss of `nn.auxiliary.Reconstruction`; 0 for none.
      pixel_control: weight of the loss of `nn.auxiliary.PixelControl`, which requires an image and
        a single discrete action; 0 for none.
      rnd: weight of the bonus of `nn.auxiliary.RandomDistillation`; 0 for none.

    Raises:
      ValueError: if the encoder is unknown or does not fit the observations, `encoders` are given
        beside a module, a number is out of range, `image_axes` is unknown, pixel control does not
        fit the spaces, or a custom core returns other shapes than it should.
      TypeError: if a space is not supported, `core` is not a module, or a width is not a whole
        number.
    """
    require_count("head_width", head_width)
    if num_tasks is not None:
        require_count("num_tasks", num_tasks)
    require_number("initial_scale", initial_scale)
    require_number("max_scale", max_scale)
    trunk = _make_trunk(
        core,
        observation_space,
        action_space,
        encoder=encoder,
        encoders=encoders,
        encoder_width=encoder_width,
        image_axes=image_axes,
        clock=clock,
        memoryless=memoryless,
        reconstruction=reconstruction,
        pixel_control=pixel_control,
        rnd=rnd,
    )
    precision = {"dtype": core.dtype, "param_dtype": core.param_dtype}
    return Agent(
        **trunk,
        policy_head=PolicyHead(
            action=action_spec(action_space),
            hidden=head_width,
            initial_scale=initial_scale,
            max_scale=max_scale,
            **precision,
        ),
        value_head=ValueHead(num_tasks=num_tasks, hidden=head_width, **precision),
    )


def make_q_network(
    core: MemoryCore,
    observation_space: Any,
    action_space: Any,
    *,
    head_width: int = 256,
    **trunk: Any,
) -> QNetwork:
    """Build a network of action values around a core, in the core's precision.

    Args:
      core: see `make_agent`.
      observation_space: see `make_agent`.
      action_space: a space of one discrete choice.
      head_width: hidden units of V and of A, see `DuelingHead`.
      **trunk: `encoder`, `encoders`, `encoder_width`, `image_axes`, `clock`, `memoryless`,
        `reconstruction`, `pixel_control` and `rnd` of `make_agent`.

    Raises:
      ValueError: as `make_agent`, and if an action is not one discrete choice.
      TypeError: as `make_agent`.
    """
    require_count("head_width", head_width)
    spec = action_spec(action_space)
    if spec.is_hybrid or spec.num_continuous or len(spec.discrete) != 1:
        raise ValueError(
            f"action values need a single discrete action, not {action_space}: use an algorithm "
            "with a policy, such as ppo"
        )
    trunk = _make_trunk(core, observation_space, action_space, **trunk)
    precision = {"dtype": core.dtype, "param_dtype": core.param_dtype}
    return QNetwork(**trunk, q_head=DuelingHead(spec.discrete[0], hidden=head_width, **precision))


def _make_trunk(
    core: MemoryCore,
    observation_space: Any,
    action_space: Any,
    *,
    encoder: str | nn.Module = "auto",
    encoders: Mapping[str, str] | None = None,
    encoder_width: int = 256,
    image_axes: str = "auto",
    clock: bool = False,
    memoryless: bool = False,
    reconstruction: float = 0.0,
    pixel_control: float = 0.0,
    rnd: float = 0.0,
) -> dict[str, Any]:
    """Return all of a `MemoryNetwork` but its heads; see `make_agent`."""
    if not isinstance(core, MemoryCore):
        raise TypeError(f"core must be a memory core, not {core!r}: make_core builds one")
    require_count("encoder_width", encoder_width)
    require_choice("image_axes", image_axes, IMAGE_AXES)
    costs = {"reconstruction": reconstruction, "pixel_control": pixel_control, "rnd": rnd}
    for name, cost in costs.items():
        require_number(name, cost, at_least=0)
    if encoders and not isinstance(encoder, str):
        raise ValueError(
            f"encoders {dict(encoders)} have no effect beside the module that is the encoder: omit "
            "one of them"
        )
    require_consistent_core(core)
    precision = {"dtype": core.dtype, "param_dtype": core.param_dtype}
    if isinstance(encoder, str):
        encoder = make_encoder(
            observation_space,
            encoder,
            encoders,
            width=encoder_width,
            image_axes=image_axes,
            **precision,
        )
    action = action_spec(action_space)
    trunk = {
        "encoder": InputEncoder(encoder, action, core.width, **precision),
        "core": with_clock(core) if clock else core,
        "memoryless": memoryless,
    }
    if rnd:
        # Shallow clones would share the parameters of the agent's encoder.
        target, predictor = (encoder.clone(_deep_clone=True) for _ in range(2))
        trunk["rnd"] = RandomDistillation(target, predictor, rnd, **precision)
    if not (reconstruction or pixel_control):
        return trunk
    arrays = tuple(jax.tree.leaves(observation_spec(observation_space, channels=image_axes)))
    if reconstruction:
        trunk["reconstruction"] = Reconstruction(arrays, action, reconstruction, **precision)
    if pixel_control:
        trunk["pixel_control"] = _make_pixel_control(arrays, action, pixel_control, precision)
    return trunk


def _make_pixel_control(
    arrays: tuple[ArraySpec, ...], action: ActionSpec, cost: float, precision: dict[str, Any]
) -> PixelControl:
    """Return the auxiliary task for the first image of an observation."""
    images = [number for number, spec in enumerate(arrays) if spec.is_image]
    if not images:
        raise ValueError("pixel_control needs an image, which the observation has not: omit it")
    if action.is_hybrid or action.continuous:
        raise ValueError("pixel_control needs a single discrete action: omit it")
    (choices,) = action.discrete
    return PixelControl(arrays[images[0]], images[0], choices, cost, **precision)
