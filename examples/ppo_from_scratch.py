"""A custom training loop: PPO (Schulman et al. 2017) with a GTrXL, in one file.

    python examples/ppo_from_scratch.py    # solves RepeatPreviousEasy in 100,000 steps

Of the library, only the parts for memory are used: a stream of time steps, whose `first` flags
reset the memory, and an agent, whose two forms have the same outputs. The step form acts: `start`
turns a memory into a cache, and `finish` a cache into a memory. The segment form learns.

Three things differ from PPO without memory:

  - The gradient window. A rollout of T steps is cut into segments of W steps. A segment attends to
    the memory of the steps before it, but no gradient flows into that memory, as in Transformer-XL:
    the agent learns to compute what it stores only from uses at most W steps later.
  - Segments stay whole. An output depends on the steps before it, so an epoch shuffles segments
    rather than steps: a minibatch is a set of segments, each in its order.
  - The memory at the start of each segment is stored with the rollout. The acting parameters
    computed it, so the first minibatch reproduces the acting log-probabilities: its ratios are 1
    (their largest error is printed). Then it is slightly stale, which matters little while clipping
    keeps the policy close; to compute it anew would take all earlier steps of the episode.
"""

import dataclasses
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
import tyro
from flax import struct

from gtrxl_jax import Stream, make_agent, make_core, make_env, update_normalizers, zero_timestep


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings."""

    env: str = "RepeatPreviousEasy-v0"
    seed: int = 0
    total_steps: int = 150_000
    num_envs: int = 64  # B
    rollout: int = 64  # T, steps of each environment between updates
    window: int = 32  # W, the gradient window
    epochs: int = 4
    minibatches: int = 4
    width: int = 64
    memory_size: int = 32  # steps before the segment that each layer attends to
    learning_rate: float = 1e-3
    gamma: float = 0.9  # short, since answers are rewarded at once
    gae_lambda: float = 0.9
    clip: float = 0.2
    value_cost: float = 0.5
    entropy_cost: float = 0.01


@struct.dataclass
class State:
    """What an update changes."""

    params: Any
    optimizer: Any
    acting: Any  # the agent's memory, the state of the environments, and the current time step
    key: jax.Array


@struct.dataclass
class Batch:
    """Segments `[S, W]`, and the memory `[S]` at the start of each."""

    memory: Any
    timesteps: Any
    actions: Any
    log_prob: jax.Array
    advantage: jax.Array
    returns: jax.Array
    mask: jax.Array  # False where the action was ignored, since the episode was over


def make_train(config: Config) -> tuple[Any, Any]:
    """Return the functions `init(key)` and `update(state)`, to be jitted."""
    stream = Stream(*make_env(config.env), num_envs=config.num_envs)
    spaces = stream.observation_space, stream.action_space
    core = make_core("gtrxl", layers=1, width=config.width, memory_size=config.memory_size)
    agent = make_agent(core, *spaces, encoder_width=config.width, head_width=config.width)
    apply: Any = agent.apply
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(config.learning_rate))
    num_windows, num_envs, window = config.rollout // config.window, config.num_envs, config.window
    num_segments = num_windows * num_envs
    if config.rollout % window or num_segments % config.minibatches:
        raise ValueError("window must divide rollout, and minibatches the number of segments")

    def init(key: jax.Array) -> State:
        key, key_params, key_stream = jax.random.split(key, 3)
        memory = agent.initial_memory(num_envs)
        params = agent.init(key_params, memory, zero_timestep(*spaces, num_envs, 1))
        acting = (memory, *stream.reset(key_stream))
        return State(params, optimizer.init(params), acting, key)

    def act_window(params: Any, carry: Any, key: jax.Array) -> Any:
        """Act for W steps from a memory, and keep that memory with what was seen and done."""

        def act(carry: Any, key: jax.Array) -> Any:
            cache, stream_state, timestep = carry
            cache, output = apply(params, cache, timestep, method="step")
            action = output.policy.sample(key)
            stream_state, following = stream.step(stream_state, action)
            arrived = (following.reward, following.discount, following.last)
            done = (timestep, action, output.policy.log_prob(action), output.value, arrived)
            return (cache, stream_state, following), (done, stream_state.episode)

        memory, *rest = carry
        cache = apply(params, memory, window, method="start")
        (cache, *rest), steps = jax.lax.scan(act, (cache, *rest), jax.random.split(key, window))
        return (apply(params, cache, method="finish"), *rest), (memory, steps)

    def estimate_advantages(bootstrap: Any, last: Any, value: Any, arrived: Any) -> Any:
        """GAE (Schulman et al. 2016), arrays `[T, B]`; actions at a `last` step are ignored."""
        reward, discount, next_last = arrived
        next_value = jnp.concatenate([value[1:], bootstrap[None]])
        # A terminated episode has discount 0 at its last step. A truncated one has 1: the value of
        # its last observation counts, but no advantage beyond.
        delta = reward + config.gamma * discount * next_value - value
        decay = config.gamma * config.gae_lambda * jnp.where(next_last, 0.0, discount)

        def back(advantage: Any, step: Any) -> Any:
            delta, decay, is_last = step
            return (jnp.where(is_last, 0.0, delta + decay * advantage),) * 2

        return jax.lax.scan(back, jnp.zeros_like(bootstrap), (delta, decay, last), reverse=True)[1]

    def loss(params: Any, batch: Batch) -> Any:
        _, output = apply(params, batch.memory, batch.timesteps)
        mean = partial(jnp.mean, where=batch.mask)
        centered = batch.advantage - mean(batch.advantage)
        advantage = centered / (jnp.sqrt(mean(centered**2)) + 1e-8)
        ratio = jnp.exp(output.policy.log_prob(batch.actions) - batch.log_prob)
        clipped = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
        policy_loss = -mean(jnp.minimum(ratio * advantage, clipped * advantage))
        value_loss = 0.5 * mean((output.value - batch.returns) ** 2)
        entropy = mean(output.policy.entropy())
        total = policy_loss + config.value_cost * value_loss - config.entropy_cost * entropy
        off = jnp.max(jnp.abs(ratio - 1), where=batch.mask, initial=0.0)
        return total, {"entropy": entropy, "value_loss": value_loss, "ratio_error": off}

    def learn(carry: Any, batch: Batch) -> Any:
        params, optimizer_state = carry
        gradients, metrics = jax.grad(loss, has_aux=True)(params, batch)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return (optax.apply_updates(params, updates), optimizer_state), metrics

    def update(state: State) -> tuple[State, dict[str, jax.Array]]:
        params, (key, key_act, key_learn) = state.params, jax.random.split(state.key, 3)
        keys = jax.random.split(key_act, num_windows)
        acting, played = jax.lax.scan(partial(act_window, params), state.acting, keys)
        memories, (steps, episodes) = played
        cache = apply(params, acting[0], 1, method="start")
        bootstrap = apply(params, cache, acting[2], method="step")[1].value
        timesteps, actions, log_prob, value, arrived = steps  # each [N, W, B]
        whole = (timesteps.last, value, arrived)
        whole = jax.tree.map(lambda x: x.reshape(config.rollout, num_envs), whole)
        advantage = estimate_advantages(bootstrap, *whole).reshape(value.shape)
        rows = (timesteps, actions, log_prob, advantage, advantage + value, ~timesteps.last)
        rows = jax.tree.map(lambda x: x.swapaxes(1, 2), rows)
        # From [N, B] to [S].
        segments = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), Batch(memories, *rows))

        def epoch(carry: Any, key: jax.Array) -> Any:
            order = jax.random.permutation(key, num_segments).reshape(config.minibatches, -1)
            return jax.lax.scan(learn, carry, jax.tree.map(lambda x: x[order], segments))

        keys = jax.random.split(key_learn, config.epochs)
        (params, optimizer_state), metrics = jax.lax.scan(epoch, (params, state.optimizer), keys)
        params = update_normalizers(agent, params, timesteps)  # acted and learned with the old ones
        metrics["return"] = jnp.mean(episodes.episode_return, where=episodes.done)  # may be NaN
        return State(params, optimizer_state, acting, key), metrics

    return init, update


def train(config: Config) -> dict[str, jax.Array]:
    """Train, and print metrics of some of the updates; return the last update's."""
    init, update = map(jax.jit, make_train(config))
    state, began = init(jax.random.key(config.seed)), time.time()
    per_update = config.rollout * config.num_envs
    for steps in range(per_update, config.total_steps + per_update, per_update):
        state, metrics = update(state)
        if steps // per_update % 5 == 1 or steps >= config.total_steps:
            print(
                f"steps {steps}   return {metrics['return']:.3f}   "
                f"entropy {metrics['entropy'].mean():.3f}   ratio error of the first minibatch "
                f"{metrics['ratio_error'][0, 0]:.0e}   {time.time() - began:.0f} s"
            )
    return metrics


if __name__ == "__main__":
    train(tyro.cli(Config))
