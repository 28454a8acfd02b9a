"""A naive reference of V-MPO's updates: from the definitions, with loops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


@functools.partial(jax.jit, static_argnums=0)
def segment(agent, params, memory, timesteps):
    return agent.apply({"params": params}, memory, timesteps)


def naive_returns(steps, value_BS, gamma, lambda_):
    """Return G by (row, time): V plus the discounted sum of temporal differences."""
    returns = {}
    for b, t in np.ndindex(steps.reward.shape[0], steps.reward.shape[1] - 1):
        if steps.last[b, t]:
            continue
        total, factor, k = value_BS[b, t], 1.0, t
        while True:
            k += 1
            discount = gamma * float(steps.discount[b, k])
            difference = float(steps.reward[b, k]) + discount * value_BS[b, k] - value_BS[b, k - 1]
            total += factor * difference
            factor *= lambda_ * discount
            if steps.last[b, k] or k == steps.reward.shape[1] - 1:
                returns[b, t] = total
                break
    return returns


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.grad, argnums=1, has_aux=True)
def naive_loss(agent, params, memory, rollout, costs, psi_BT, valid_BT, target_BT):
    """Return the network's loss, given all quantities without gradient, and the mean KL.

    The network's value head is already rescaled to the new PopArt statistics.
    """
    _, output = agent.apply({"params": params}, memory, rollout.timesteps)
    rows, times = np.indices(psi_BT.shape)
    log_pi = jax.nn.log_softmax(output.policy.logits)[:, :-1]
    old = jax.nn.log_softmax(rollout.extras.policy.logits)
    value_BT = output.value[rows, times, rows % output.value.shape[-1]]
    kl = jnp.sum(valid_BT * jnp.sum(jnp.exp(old) * (old - log_pi), axis=-1)) / jnp.sum(valid_BT)
    policy = -jnp.sum(psi_BT * log_pi[rows, times, rollout.actions])
    value = 0.5 * jnp.sum(valid_BT * (value_BT - target_BT) ** 2) / jnp.sum(valid_BT)
    entropy = -jnp.sum(valid_BT * jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1)) / jnp.sum(valid_BT)
    alpha, value_cost, entropy_cost = costs
    return policy + value_cost * value + alpha * kl - entropy_cost * entropy, kl


def naive_gradients(trainer, state, rollout):
    """Return rescaled parameters, gradients of the V-MPO loss, PopArt statistics, and psi's KL."""
    config, params = trainer.config, state.params
    eta = float(state.learner.trainable["multipliers"].temperature)
    alpha = float(state.learner.trainable["multipliers"].alphas["categorical"])
    steps = jax.device_get(rollout.timesteps)
    tasks = trainer.stream.num_tasks
    task_B = np.arange(len(steps.reward)) % tasks
    mean_B = np.asarray(state.learner.popart.mean_N)[task_B]
    scale_B = np.sqrt(np.asarray(state.learner.popart.variance_N)[task_B])

    _, output = segment(trainer.agent, params, state.actor.memory, rollout.timesteps)
    normalized_BS = np.stack([output.value[b, :, k] for b, k in enumerate(task_B)])
    value_BS = scale_B[:, None] * normalized_BS + mean_B[:, None]
    if config.algorithm.popart and state.update == 0:  # outputs have no unit yet
        value_BS = np.zeros_like(normalized_BS)
    returns = naive_returns(steps, value_BS, config.algorithm.gamma, config.algorithm.gae_lambda)
    popart = state.learner.popart
    statistics = (np.asarray(popart.mean_N), np.asarray(popart.variance_N))
    if config.algorithm.popart:
        statistics = naive_statistics(state, returns, tasks, config.algorithm.popart_rate)
        params = rescaled(params, state.learner.popart, *statistics)
    mean_B, scale_B = statistics[0][task_B], np.sqrt(statistics[1])[task_B]
    if state.update == 0:  # there were no statistics yet: the head's outputs count as normalized
        value_BS = scale_B[:, None] * normalized_BS + mean_B[:, None]

    advantages = {(b, t): (g - value_BS[b, t]) / scale_B[b] for (b, t), g in returns.items()}
    best = sorted(advantages, key=advantages.get, reverse=True)[: len(advantages) // 2]
    weights = np.exp([advantages[i] / eta for i in best])
    psi_BT, valid_BT, target_BT = np.zeros((3, *rollout.actions.shape))
    for (b, t), weight in zip(best, weights, strict=True):
        psi_BT[b, t] = weight / weights.sum()
    for (b, t), g in returns.items():
        valid_BT[b, t], target_BT[b, t] = 1, (g - mean_B[b]) / scale_B[b]

    costs = alpha, config.algorithm.value_cost, config.algorithm.entropy_cost
    constants = costs, psi_BT, valid_BT, target_BT
    gradient, kl = naive_loss(trainer.agent, params, state.actor.memory, rollout, *constants)
    mean_best = sum(psi_BT[i] * advantages[i] for i in best)
    gradients = {
        "params": gradient,
        "temperature": config.algorithm.epsilon_eta + np.log(weights.mean()) - mean_best / eta,
        "alpha": config.algorithm.epsilon_alpha - float(kl),
    }
    psi_kl = sum(psi_BT[i] * np.log(psi_BT[i] * len(best)) for i in best)
    return params, gradients, statistics, psi_kl


class NaiveAdam:
    """Adam with clipping of the network's gradient and a learning rate schedule."""

    def __init__(self, config):
        self.settings, self.updates, self.count = config.optimizer, config.num_updates, 0
        self.peak = config.learning_rate
        self.first = self.second = None

    def rate(self):
        warmup, u = round(self.settings.warmup * self.updates), self.count - 1
        if u < warmup:
            return self.peak * (1 + (warmup - 1) * u / warmup) / warmup
        decayed = (1 - self.settings.final) * (u - warmup) / (self.updates - warmup)
        return self.peak * (1 - decayed)

    def steps(self, gradients, norm):
        clip = self.settings.clip_norm
        if clip and norm > clip:
            clipped = jax.tree.map(lambda g: g * clip / norm, gradients["params"])
            gradients = gradients | {"params": clipped}
        zeros = jax.tree.map(lambda g: 0 * g, gradients)
        self.first, self.second = self.first or zeros, self.second or zeros
        self.count += 1
        self.first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, self.first, gradients)
        beta_2 = self.settings.beta_2
        self.second = jax.tree.map(
            lambda v, g: beta_2 * v + (1 - beta_2) * g**2, self.second, gradients
        )
        unbias, rate = (1 - 0.9**self.count, 1 - beta_2**self.count), self.rate()
        return jax.tree.map(
            lambda m, v: -rate * (m / unbias[0]) / (np.sqrt(v / unbias[1]) + 1e-8),
            self.first,
            self.second,
        )


def naive_statistics(state, returns, tasks, rate):
    """Return PopArt's mean and variance of each task: exponentially weighted moments."""
    popart = state.learner.popart
    mean_N, variance_N = np.array(popart.mean_N), np.array(popart.variance_N)
    for k in range(tasks):
        mine = np.array([g for (b, _), g in returns.items() if b % tasks == k])
        before, new = float(popart.weight_N[k]), 1 - (1 - rate) ** len(mine)
        share = new / (before * (1 - new) + new)
        square = (1 - share) * (variance_N[k] + mean_N[k] ** 2) + share * np.mean(mine**2)
        mean_N[k] = (1 - share) * mean_N[k] + share * np.mean(mine)
        variance_N[k] = square - mean_N[k] ** 2
    return mean_N, variance_N


def rescaled(params, old, mean_N, variance_N):
    """Rescale the network's value head so that V = scale * output + mean is unchanged.

    The head is unchanged if there were no statistics before.
    """
    if np.all(old.weight_N == 0):
        return params
    head = params["value_head"]["output"]
    scale_N, old_scale_N = np.sqrt(variance_N), np.sqrt(old.variance_N)
    bias_N = (old_scale_N * head["bias"] + old.mean_N - mean_N) / scale_N
    head = {"kernel": head["kernel"] * (old_scale_N / scale_N)[None], "bias": bias_N}
    return {**params, "value_head": {**params["value_head"], "output": head}}
