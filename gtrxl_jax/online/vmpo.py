"""The learner of V-MPO: it updates a state from a rollout that started at this state.

The online network is applied once to the T + 1 steps. Its values determine the lambda-returns, and
these the new PopArt statistics. The loss is computed in units of the new statistics, and the value
head is rescaled to them with the optimiser's step, so values V change only by that step.

Adam changes a parameter by about the learning rate per update, regardless of its gradient, so the
multipliers would take a thousand updates from 1 to their final values. By default they are updated
separately, by `vmpo.scale_multipliers`.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from gtrxl_jax.acting.rollout import Rollout
from gtrxl_jax.envs.promotion import standard_dtype_promotion
from gtrxl_jax.nn.agent import Agent
from gtrxl_jax.nn.heads import rescale_value_gradient, rescale_value_head
from gtrxl_jax.online.config import OnlineConfig
from gtrxl_jax.online.episodes import Summary, by_task, reported
from gtrxl_jax.online.hyperparameters import Hyperparameters
from gtrxl_jax.online.state import TrainState
from gtrxl_jax.ops import popart, vmpo
from gtrxl_jax.ops.returns import lambda_returns, transition_mask
from gtrxl_jax.parallel.placement import gather_parameters, split_parameters
from gtrxl_jax.runs.divergence import finite, first_nonfinite, in_range
from gtrxl_jax.runs.schedule import warmup_and_decay


class VMPOLearner:
    """The pure functions that learn from a rollout.

    Attributes:
      config: config of the run.
      agent: agent of the run.
      task_B: task of each environment, 0 .. N - 1.
    """

    def __init__(self, config: OnlineConfig, agent: Agent, task_B: Int[Array, " B"]):
        self.config, self.agent, self.task_B = config, agent, task_B
        self._apply: Any = agent.apply
        self.optimiser = optax.scale_by_adam()
        rates = config.optimiser
        # Relative to the peak learning rate, which is one of the hyperparameters.
        self.schedule = warmup_and_decay(1.0, rates.warmup, rates.final, config.num_updates)

    def init(
        self, params: Any, hyperparameters: Hyperparameters
    ) -> tuple[dict[str, Any], optax.OptState]:
        """Return the trainable variables and the initial state of their optimiser."""
        trainable = {"params": params, "multipliers": hyperparameters.multipliers}
        return trainable, self.optimiser.init(trainable)

    def returns(
        self, state: TrainState, rollout: Rollout, value_BS: Float[Array, "B S"]
    ) -> Float[Array, "B T"]:
        """Return the lambda-returns of a rollout, for values in the units of its rewards."""
        steps, dtype = rollout.timesteps, value_BS.dtype
        return lambda_returns(
            reward_BS=steps.reward.astype(dtype),
            discount_BS=steps.discount.astype(dtype),
            last_BS=steps.last,
            value_BS=value_BS,
            gamma=state.hyperparameters.gamma,
            lambda_=state.hyperparameters.gae_lambda,
        )

    def loss(
        self, trainable: dict[str, Any], state: TrainState, rollout: Rollout
    ) -> tuple[Float[Array, ""], tuple[Summary, popart.PopArtStatistics]]:
        """Compute the V-MPO loss on a rollout that started from `state.memory`.

        The gradient of the value head is with respect to the head before it is rescaled.

        Returns:
          The loss; the metrics, and the new PopArt statistics.
        """
        variables = {"params": trainable["params"]}
        (_, y_BSD), recorded = self._apply(
            variables,
            state.memory,
            rollout.timesteps,
            method="features",
            mutable=["metrics", "losses"],
        )
        steps = rollout.timesteps
        task_BS = jnp.broadcast_to(self.task_B[:, None], steps.last.shape)
        mask_BT = transition_mask(steps.last)

        def of_task(output: Array) -> Float[Array, "B S"]:
            return jnp.take_along_axis(output, task_BS[..., None], axis=-1)[..., 0]

        output_BS = of_task(self._apply(variables, y_BSD, method="heads").value)
        value_BS = popart.unnormalise(state.popart, jax.lax.stop_gradient(output_BS), task_BS)
        returns_BT = self.returns(state, rollout, value_BS)
        statistics = state.popart
        if self.config.agent.popart:
            rate = self.config.agent.popart_rate
            statistics = popart.update(statistics, returns_BT, task_BS[:, :-1], mask_BT, rate)
        factor_N, shift_N = popart.conversion(state.popart, statistics)

        def losses(y_BSD: Array, psi_BT: Array | None = None) -> Any:
            """Compute losses and advantages in each task's normalised units, comparable by task."""
            output = self._apply(variables, y_BSD, method="heads")
            return vmpo.vmpo_losses(
                policy=jax.tree.map(lambda x: x[:, :-1], output.policy),
                target_policy=rollout.extras.policy,
                actions=rollout.actions,
                values_BT=(factor_N[task_BS] * of_task(output.value) + shift_N[task_BS])[:, :-1],
                returns_BT=popart.normalise(statistics, returns_BT, task_BS[:, :-1]),
                mask_BT=mask_BT,
                multipliers=trainable["multipliers"],
                hyperparameters=state.hyperparameters.bounds,
                psi_BT=psi_BT,
            )

        terms, metrics, psi_BT = losses(y_BSD)
        if auxiliary := reported(recorded.get("losses", {})):
            terms["auxiliary"] = jnp.sum(jnp.stack(list(auxiliary.values())))
        metrics |= {f"loss/{name}": term for name, term in terms.items()}
        # Reuses psi, since sorting the advantages again would also gather them again.
        metrics |= _shares(lambda y_BSD: losses(y_BSD, psi_BT)[0], jax.lax.stop_gradient(y_BSD))
        total = jnp.sum(jnp.stack(list(terms.values())))
        return total, (metrics | reported(recorded.get("metrics", {})), statistics)

    def learn(self, state: TrainState, rollout: Rollout) -> tuple[TrainState, Summary]:
        """Learn from a rollout that started from `state`, and update the target when it is due."""
        (loss, (metrics, statistics)), gradients = jax.value_and_grad(self.loss, has_aux=True)(
            gather_parameters(state.trainable), state, rollout
        )
        gradients = split_parameters(gradients)
        params, target = state.trainable["params"], state.target
        if self.config.agent.popart:
            old = state.popart
            gradients["params"] = rescale_value_gradient(gradients["params"], old, statistics)
            params = rescale_value_head(params, old, statistics)
            target = rescale_value_head(target, old, statistics)
            metrics |= by_task("popart/mean", statistics.mean_N)
            metrics |= by_task("popart/scale", statistics.scale_N)
        gradient_norm = optax.tree.norm(gradients["params"])
        if clip := self.config.optimiser.clip_norm:
            # XLA fuses this factor into Adam, unlike optax's selection between two gradients.
            factor = jnp.minimum(1.0, clip / gradient_norm)
            gradients["params"] = jax.tree.map(lambda g: factor * g, gradients["params"])
            metrics["gradient_clipped"] = (gradient_norm > clip).astype(gradient_norm.dtype)
        with standard_dtype_promotion():
            steps, optimiser = self.optimiser.update(gradients, state.optimiser)
            decay = self.schedule(state.update.astype(float))
        rate = state.hyperparameters.learning_rate * decay
        trainable = optax.apply_updates(
            {**state.trainable, "params": params}, jax.tree.map(lambda s: -rate * s, steps)
        )
        settings = self.config.vmpo
        if settings.multipliers == "scale":
            trainable["multipliers"] = vmpo.scale_multipliers(
                state.trainable["multipliers"],
                metrics["psi/kl"],
                {part: metrics[f"kl/{part}"] for part in state.trainable["multipliers"].alphas},
                state.hyperparameters.bounds,
                settings.multiplier_rate,
            )
        trainable["multipliers"] = vmpo.project_multipliers(
            trainable["multipliers"], settings.alpha_bounds
        )
        metrics |= {
            "gradient_norm": gradient_norm,
            "parameter_norm": optax.tree.norm(trainable["params"]),
            "learning_rate": rate,
        }
        sound = {
            "observation": finite(rollout.timesteps.observation),
            "reward": finite(rollout.timesteps.reward),
            "loss": finite(loss),
            "gradient norm": finite(gradient_norm),
            "parameters": finite(metrics["parameter_norm"]),
            "temperature": in_range(trainable["multipliers"].temperature),
            "multiplier of the KL": in_range(trainable["multipliers"].alphas),
        }
        metrics["nonfinite"] = first_nonfinite(sound)
        update = state.update + 1
        copy = update % self.config.vmpo.target_period == 0
        state = dataclasses.replace(
            state,
            trainable=trainable,
            target=jax.tree.map(
                lambda new, old: jnp.where(copy, new, old), trainable["params"], target
            ),
            optimiser=optimiser,
            popart=statistics,
            update=update,
        )
        return state, metrics


def _shares(losses: Any, y: Array) -> Summary:
    """Compute each loss's share of the gradient at the core's output: `share/policy`, ...

    The share is the norm of the loss's gradient with respect to y, divided by the sum of the norms
    for `policy`, `value` and `kl`. The entropy bonus is part of `policy`.

    Args:
      losses: function from y to the loss terms by name.
      y: the core's output.
    """
    groups = {"policy": ("policy", "entropy"), "value": ("value",), "kl": ("alpha_",)}

    def total(y: Array, names: tuple[str, ...]) -> Array:
        return sum(term for name, term in losses(y).items() if name.startswith(names))

    norms = {group: optax.tree.norm(jax.grad(total)(y, names)) for group, names in groups.items()}
    everything = sum(norms.values())
    everything = jnp.where(everything > 0, everything, 1)
    return {f"share/{group}": norm / everything for group, norm in norms.items()}
