"""CQL, IQL and TD3+BC against naive loops over single steps in float64, and what they share."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces

from gtrxl_jax.offline.actor_critic import with_following_step
from tests.nn.test_models import act
from tests.offline.critics import (
    ONE_OF_THREE,
    TWO_FLOATS,
    B,
    K,
    S,
    T,
    first_learner,
    make_algorithm,
    naive_q,
    naive_v,
    outputs,
    real_steps,
    scaled,
    windows,
)
from tests.tiers import slow_except

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.integration]
GAMMA, KEY = 0.9, 3


def updated(algorithm, batch, learner):
    """Return the learner and metrics of an update, and the gradient of each network."""
    after, metrics = jax.jit(algorithm.update)(learner, batch, jax.random.key(KEY))
    gradients = {
        name: jax.tree.map(lambda x: x / (1 - 0.9), state[1].mu)
        for name, state in after.optimizers.items()
    }
    return after, metrics, gradients


def assert_equals_naive(gradient, loss, params, value=None):
    """Compare a gradient, and a loss, with those of a naive function of parameters."""
    expected, slopes = jax.jit(jax.value_and_grad(loss))(params)
    if value is not None:
        np.testing.assert_allclose(value, expected, rtol=1e-9)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), gradient, slopes
    )


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def smaller(values):
    """Return the smaller value of two critics at each step."""
    return [jnp.minimum(*pair) for pair in zip(*values, strict=True)]


def scale_of(batch):
    """Return what IQL and TD3+BC divide rewards by at the first batch, and steps with those."""
    steps = real_steps(batch)
    rows, columns = steps.place.T
    later = np.asarray(batch.returns_to_go).reshape(B, S)[rows, columns]
    horizon = 1 / (1 - GAMMA)
    scale = min(np.sqrt(np.mean(later**2)), horizon * np.sqrt(np.mean(steps.rewards**2)))
    return scale, dataclasses.replace(steps, rewards=steps.rewards / scale)


def naive_errors(algorithm, steps, targets):
    """Return the loss of the errors of two critics, as a function of their parameters."""

    def loss(critics):
        values = naive_q(algorithm, critics, steps.observations, steps.actions)
        return sum(
            mean(0.5 * (q - y) ** 2 for q, y in zip(of_one, targets, strict=True))
            for of_one in values
        )

    return loss


def test_discrete_cql_equals_naive_loops():
    algorithm, segments = make_algorithm(
        "cql", ONE_OF_THREE, gamma=GAMMA, alpha=0.7, target_rate=0.005
    )
    batch = windows(ONE_OF_THREE, segments)
    learner, steps = first_learner(algorithm, batch), real_steps(batch)
    after, metrics, gradients = updated(algorithm, batch, learner)
    best = [int(np.argmax(q)) for q in outputs(algorithm, learner.params, steps.following)]
    of_target = outputs(algorithm, learner.targets["actor"], steps.following)
    targets = steps.targets(GAMMA, [q[a] for q, a in zip(of_target, best, strict=True)])

    def loss(params):
        each = []
        values = outputs(algorithm, params, steps.observations)
        for q, a, y in zip(values, steps.actions, targets, strict=True):
            penalty = jnp.log(sum(jnp.exp(one) for one in q)) - q[a]
            each.append(0.5 * (q[a] - y) ** 2 + 0.7 * penalty)
        return mean(each)

    assert_equals_naive(gradients["actor"], loss, learner.params, metrics["loss"])
    moved = jax.tree.map(
        lambda new, old: 0.995 * old + 0.005 * new, after.params, learner.targets["actor"]
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), after.targets["actor"], moved
    )


@pytest.mark.parametrize("space", slow_except([ONE_OF_THREE, TWO_FLOATS], [ONE_OF_THREE]))
def test_iql_equals_naive_loops(space):
    algorithm, segments = make_algorithm(
        "iql", space, gamma=GAMMA, expectile=0.8, inverse_temperature=2.0
    )
    batch = windows(space, segments)
    learner, (scale, steps) = first_learner(algorithm, batch), scale_of(batch)
    after, metrics, gradients = updated(algorithm, batch, learner)
    critics = learner.targets["critics"]
    q = smaller(naive_q(algorithm, critics, steps.observations, steps.actions))

    def loss_of_value(value):
        each = zip(q, naive_v(algorithm, value, steps.observations), strict=True)
        return mean(jnp.where(q < v, 0.2, 0.8) * (q - v) ** 2 for q, v in each)

    assert_equals_naive(gradients["value"], loss_of_value, learner.networks["value"])

    # The other networks learn with the new V.
    value = after.networks["value"]
    now = naive_v(algorithm, value, steps.observations)
    advantages = [y - v for y, v in zip(q, now, strict=True)]
    size = np.sqrt(mean(a**2 for a in advantages))
    weights = [min(np.exp(2.0 * a / size), 100.0) for a in advantages]
    np.testing.assert_allclose(metrics["value"], scale * mean(now), rtol=1e-9)

    def loss_of_actor(params):
        each = []
        output = outputs(algorithm, params, steps.observations)
        for x, a, weight in zip(output, steps.actions, weights, strict=True):
            if space is ONE_OF_THREE:
                log_prob = x[a] - jnp.log(jnp.sum(jnp.exp(x)))
            else:
                error = jnp.tanh(x) - scaled(algorithm, a)  # in half-widths, the scale: 1 and 2
                log_prob = -0.5 * jnp.sum(error**2) - np.log(2 * np.pi) - np.log(2.0)
            each.append(-weight * log_prob)
        return mean(each)

    assert_equals_naive(gradients["actor"], loss_of_actor, learner.params)
    targets = steps.targets(GAMMA, naive_v(algorithm, value, steps.following))
    loss_of_critics = naive_errors(algorithm, steps, targets)
    networks = learner.networks["critics"]
    assert_equals_naive(gradients["critics"], loss_of_critics, networks, metrics["loss"])


def test_td3_bc_equals_naive_loops():
    algorithm, segments = make_algorithm(
        "td3-bc", TWO_FLOATS, gamma=GAMMA, alpha=2.0, target_noise=0.0
    )
    batch = windows(TWO_FLOATS, segments)
    learner, (scale, steps) = first_learner(algorithm, batch), scale_of(batch)
    after, metrics, gradients = updated(algorithm, batch, learner)

    def actions(params, observations):
        return [
            jnp.array([0.0, 2.0]) + jnp.array([1.0, 2.0]) * jnp.tanh(x)
            for x in outputs(algorithm, params, observations)
        ]

    following = actions(learner.targets["actor"], steps.following)
    critics = learner.targets["critics"]
    q = smaller(naive_q(algorithm, critics, steps.following, following))
    loss_of_critics = naive_errors(algorithm, steps, steps.targets(GAMMA, q))
    networks = learner.networks["critics"]
    assert_equals_naive(gradients["critics"], loss_of_critics, networks, metrics["loss"])
    q = naive_q(algorithm, networks, steps.observations, steps.actions)
    np.testing.assert_allclose(metrics["q"], scale * np.mean(q), rtol=1e-9)

    def loss_of_actor(params):
        chosen = actions(params, steps.observations)
        q, _ = naive_q(algorithm, after.networks["critics"], steps.observations, chosen)
        error = mean(
            jnp.mean((scaled(algorithm, a) - scaled(algorithm, data)) ** 2)
            for a, data in zip(chosen, steps.actions, strict=True)
        )
        size = jax.lax.stop_gradient(mean(jnp.abs(one) for one in q))
        return error - 2.0 / size * mean(q)

    assert_equals_naive(gradients["actor"], loss_of_actor, learner.params, metrics["loss/actor"])

    # The actor and the target networks wait for the next but one update.
    later, metrics, _ = updated(algorithm, batch, after)
    jax.tree.map(np.testing.assert_array_equal, later.params, after.params)
    jax.tree.map(np.testing.assert_array_equal, later.targets, after.targets)
    assert np.isnan(metrics["loss/actor"])
    assert metrics["finite/actor"]


@pytest.mark.parametrize(
    ("updates", "gamma", "expected"),
    [(300, 0.99, 0.1), (8000, 0.99, 0.05), (10**6, 0.99, 0.005), (8000, 1, 0.1)],
)
def test_target_networks_follow_so_that_values_converge(updates, gamma, expected):
    """In as many updates as the run has, but not faster or slower than the bounds."""
    algorithm, _ = make_algorithm("iql", ONE_OF_THREE, gamma=gamma)
    algorithm.setup = dataclasses.replace(algorithm.setup, num_updates=updates)
    np.testing.assert_allclose(algorithm.target_rate, expected)
    if expected not in (0.005, 0.1):
        np.testing.assert_allclose((1 - expected * (1 - gamma)) ** updates, 0.02, rtol=0.1)


@pytest.mark.parametrize(
    ("name", "space"),
    slow_except([("iql", ONE_OF_THREE), ("td3-bc", TWO_FLOATS)], [("iql", ONE_OF_THREE)]),
)
def test_rewards_of_every_size_teach_the_same(name, space):
    """Only metrics of values have units; the second update sees a scale of both batches."""
    algorithm, segments = make_algorithm(name, space, gamma=GAMMA)
    batches = [windows(space, segments, seed) for seed in range(2)]
    learner = first_learner(algorithm, batches[0])

    @jax.jit
    def learned(unit):
        later = learner
        for batch in batches:
            batch = batch.replace(
                rewards=unit * batch.rewards, returns_to_go=unit * batch.returns_to_go
            )
            later, metrics = algorithm.update(later, batch, jax.random.key(KEY))
        return later.networks, {name: metrics.pop(name) / unit for name in ("q", "td_error")}

    few, many = learned(1.0), learned(1000.0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9), few, many)


def test_rewards_are_scaled_by_those_of_all_batches():
    algorithm, segments = make_algorithm("iql", ONE_OF_THREE, gamma=1)
    batches = [windows(ONE_OF_THREE, segments, seed) for seed in range(2)]
    learner = first_learner(algorithm, batches[0])
    for batch in batches:
        learner, window = jax.jit(algorithm.prepare)(learner, batch)
    later = np.concatenate([np.asarray(x.returns_to_go)[np.asarray(x.mask)] for x in batches])
    np.testing.assert_allclose(window.scale, np.sqrt(np.mean(later**2)), rtol=1e-12)
    expected = np.asarray(batches[1].rewards).reshape(B, S) / window.scale
    np.testing.assert_allclose(window.rewards, expected, rtol=1e-12)
    empty = first_learner(algorithm, batches[0])
    none = batch.replace(rewards=0 * batch.rewards, returns_to_go=0 * batch.returns_to_go)
    assert jax.jit(algorithm.prepare)(empty, none)[1].scale == 1


def test_target_noise_is_clipped():
    algorithm, _ = make_algorithm("td3-bc", TWO_FLOATS, target_noise=5.0, target_noise_clip=0.25)
    action = jnp.broadcast_to(jnp.array([0.0, 3.9]), (50, 4, 2))
    noisy = algorithm._smooth(action, jax.random.key(0))
    assert np.max(np.abs(noisy[..., 0])) == 0.25
    assert (np.min(noisy[..., 1]), np.max(noisy[..., 1])) == (3.4, 4.0)


@pytest.mark.slow  # two samples of each proposal
def test_continuous_cql_equals_naive_loops():
    """With the actions that it has drawn."""
    algorithm, segments = make_algorithm("cql", TWO_FLOATS, gamma=GAMMA, alpha=0.7, samples=2)
    batch = windows(TWO_FLOATS, segments)
    learner, steps = first_learner(algorithm, batch), real_steps(batch)
    after, metrics, gradients = updated(algorithm, batch, learner)
    rows, columns = steps.place.T
    window = with_following_step(batch)
    keys = jax.random.split(jax.random.key(KEY), 5)
    policy = jax.jit(lambda params: algorithm.read(params, window, None))(learner.params)
    following = jax.tree.map(lambda x: x[:, 1:], policy).sample(keys[0])[rows, columns]
    proposed, log_density = algorithm._propose(policy, keys[1])

    # The proposals: their densities are those of their distributions.
    center, half = np.array([0.0, 2.0]), np.array([1.0, 2.0])
    for n, shift in ((2, 0), (3, 0), (4, 1), (5, 1)):
        at = jax.tree.map(lambda x, shift=shift: x[:, shift : shift + S], policy)
        action = jnp.asarray(center + half * np.asarray(proposed[:, :, n]))
        np.testing.assert_allclose(log_density[:, :, n], at.log_prob(action), rtol=1e-6)
    np.testing.assert_allclose(log_density[:, :, :2], -np.log(2 * 4))
    actions = [center + half * np.asarray(proposed)[rows, columns, n] for n in range(6)]
    densities = [np.asarray(log_density)[rows, columns, n] for n in range(6)]

    q = smaller(naive_q(algorithm, learner.targets["critics"], steps.following, following))
    errors = naive_errors(algorithm, steps, steps.targets(GAMMA, q))

    def loss_of_critics(critics):
        data = naive_q(algorithm, critics, steps.observations, steps.actions)
        drawn = [naive_q(algorithm, critics, steps.observations, a) for a in actions]
        penalty = 0
        for c in range(2):
            for i in range(len(rows)):
                ratios = [jnp.exp(drawn[n][c][i] - densities[n][i]) for n in range(6)]
                penalty += (jnp.log(mean(ratios)) - data[c][i]) / len(rows)
        return errors(critics) + 0.7 * penalty

    networks = learner.networks["critics"]
    assert_equals_naive(gradients["critics"], loss_of_critics, networks, metrics["loss"])
    temperature = jnp.exp(learner.networks["temperature"]["log_temperature"])
    noise = jax.random.normal(keys[4], (B, S, 2), jnp.float64)[rows, columns]

    def loss_of_actor(params):
        chosen, log_probs = [], []
        output = outputs(algorithm, params, steps.observations)
        for x, z in zip(output, noise, strict=True):
            scale = jnp.exp(jnp.clip(x[2:], -5, 2))
            u = x[:2] + scale * z
            chosen.append(center + half * jnp.tanh(u))
            slope = half * (1 - jnp.tanh(u) ** 2)
            log_probs.append(
                -jnp.sum(0.5 * z**2 + jnp.log(scale) + 0.5 * np.log(2 * np.pi) + jnp.log(slope))
            )
        critics = after.networks["critics"]
        q = smaller(naive_q(algorithm, critics, steps.observations, chosen))
        return mean(temperature * p - y for p, y in zip(log_probs, q, strict=True))

    assert_equals_naive(gradients["actor"], loss_of_actor, learner.params, metrics["loss/actor"])
    # By 1 + log 2 in each dimension below the entropy of a uniform policy, log 2 + log 4.
    target_entropy = np.log(8) - 2 * (1 + np.log(2))
    found = gradients["temperature"]["log_temperature"]
    np.testing.assert_allclose(found, metrics["entropy"] - target_entropy, rtol=1e-9)


ALGORITHMS = [
    ("cql", ONE_OF_THREE),
    ("cql", TWO_FLOATS),
    ("iql", ONE_OF_THREE),
    ("td3-bc", TWO_FLOATS),
]


@pytest.mark.parametrize(("name", "space"), slow_except(ALGORITHMS, ALGORITHMS[:1]))
def test_padding_counts_for_nothing(name, space):
    algorithm, segments = make_algorithm(name, space)
    batch = windows(space, segments)
    learner = first_learner(algorithm, batch)
    fill = jnp.where(batch.mask, 0, 7)

    def noise(x):
        return x + fill.reshape(*fill.shape, *(1,) * (x.ndim - 3)).astype(x.dtype)

    other = batch.replace(
        observations=noise(batch.observations),
        rewards=noise(batch.rewards),
        returns_to_go=noise(batch.returns_to_go),
        terminated=batch.terminated | ~batch.mask,
    )
    results = [jax.jit(algorithm.update)(learner, x, jax.random.key(0)) for x in (batch, other)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), *results)


@pytest.mark.parametrize(("name", "space"), slow_except(ALGORITHMS, [ALGORITHMS[0], ALGORITHMS[3]]))
def test_validation_is_an_update_without_dropout(name, space):
    """Also where the actor of TD3+BC does not learn."""
    algorithm, segments = make_algorithm(name, space)
    batch = windows(space, segments)
    learner = first_learner(algorithm, batch)
    _, learned = jax.jit(algorithm.update)(learner, batch, jax.random.key(0))
    algorithm.model = algorithm.model.clone(dropout_rate=0.5)
    waiting = learner.replace(updates=learner.updates + 1)
    found = jax.jit(algorithm.validate)(waiting, batch)
    assert set(found) >= {"loss", "td_error", "q"}
    assert ("accuracy" in found, "error" in found) == (space is ONE_OF_THREE, space is TWO_FLOATS)
    # IQL's update computes the targets of the critics after a step of V.
    for score in found.keys() - ({"loss", "td_error"} if name == "iql" else set()):
        np.testing.assert_allclose(found[score], learned[score], rtol=1e-9)


def test_only_truncated_episodes_bootstrap_from_their_final_observation():
    algorithm, segments = make_algorithm("cql", ONE_OF_THREE)
    batch = windows(ONE_OF_THREE, segments)
    learner = first_learner(algorithm, batch)

    @jax.jit
    def loss(next_observations):
        changed = batch.replace(next_observations=next_observations)
        return algorithm.update(learner, changed, jax.random.key(0))[1]["loss"]

    before, ends = loss(batch.next_observations), np.sum(batch.mask, axis=(1, 2)) - 1
    for b, bootstraps in enumerate([False, True, True]):
        other = batch.next_observations.at[b, 0, ends[b]].add(0.5)
        assert (loss(other) != before) == bootstraps


def test_returns_to_go_are_hidden():
    algorithm, segments = make_algorithm("iql", ONE_OF_THREE, model="dt")
    batch = windows(ONE_OF_THREE, segments)
    window = with_following_step(batch)
    other = with_following_step(batch.replace(returns_to_go=batch.returns_to_go + 1))
    jax.tree.map(np.testing.assert_array_equal, window, other)
    assert np.all(window.steps.returns_to_go == 0)
    assert not algorithm.policy(5.0).is_conditioned


@pytest.mark.parametrize("model", slow_except(["rate", "bc-lstm", "bc-mlp"], ["bc-mlp"]))
def test_windows_are_read_as_they_are_acted(model):
    """At all steps of all segments, and at the step that follows."""
    algorithm, segments = make_algorithm("iql", ONE_OF_THREE, model=model)
    batch = windows(ONE_OF_THREE, segments)
    whole = batch.replace(mask=jnp.ones(batch.mask.shape, bool))
    window = with_following_step(whole)
    params = first_learner(algorithm, batch).params
    read = jax.jit(lambda params: algorithm.read(params, window, None).logits)(params)
    assert read.shape == (B, S + 1, 3)

    @jax.jit
    def acted(params):
        variables = {"params": params}
        state = algorithm.model.apply(variables, B, method="start")
        in_time = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), window.steps)
        step = functools.partial(act, algorithm.model, variables)
        return jax.lax.scan(step, state, in_time)[1].logits

    np.testing.assert_allclose(jnp.moveaxis(acted(params), 0, 1), read, atol=1e-9)


@pytest.mark.parametrize("model", slow_except(["rate", "bc-lstm"], ["bc-lstm"]))
def test_values_do_not_depend_on_later_steps(model):
    algorithm, segments = make_algorithm("iql", ONE_OF_THREE, model=model)
    batch = windows(ONE_OF_THREE, segments)
    window = with_following_step(batch)
    critics = first_learner(algorithm, batch).networks["critics"]

    @jax.jit
    @jax.grad
    def gradient(observations):
        steps = window.steps.replace(observations=observations)
        h = algorithm.critic_features(critics, window.replace(steps=steps))[:, :, :-1]
        return jnp.sum(algorithm.action_values(critics, h, window.actions)[:, :, T] ** 2)

    found = gradient(window.steps.observations)
    assert np.all(found[:, T + 1 :] == 0)
    assert np.all(np.any(found[:, : T + 1] != 0, axis=-1)[2])


@pytest.mark.slow  # tests/offline/test_trainer.py is quick
@pytest.mark.parametrize("bptt", [None, 0])
def test_gradient_horizon(bptt):
    """With bptt 0, no gradient reaches an earlier segment through the memory."""
    algorithm, segments = make_algorithm("iql", ONE_OF_THREE, model="rate", bptt=bptt)
    assert segments == (K, T) == (2, 2)
    batch = windows(ONE_OF_THREE, segments)
    window, params = with_following_step(batch), first_learner(algorithm, batch).params

    @jax.jit
    @jax.grad
    def gradient(observations):
        steps = window.steps.replace(observations=observations)
        policy = algorithm.read(params, window.replace(steps=steps), None)
        return jnp.sum(policy.logits[:, T:S] ** 2)

    found = gradient(window.steps.observations)
    assert np.any(found[:, T:S] != 0)
    assert np.any(found[:, :T] != 0) == (bptt is None)


@pytest.mark.parametrize(
    ("name", "space", "words"),
    [
        ("td3-bc", ONE_OF_THREE, "td3-bc needs continuous actions, not .*: use cql .* or iql"),
        ("cql", spaces.Box(-np.inf, np.inf, (1,), jnp.float32), "bounded .*: use iql"),
        (
            "cql",
            spaces.Dict({"a": ONE_OF_THREE, "b": TWO_FLOATS}),
            "one discrete action or bounded .*: use iql",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_unsupported_actions_are_rejected(name, space, words):
    with pytest.raises(ValueError, match=words) as error:
        make_algorithm(name, space)
    assert "\n" not in str(error.value)
    assert re.search("algorithm.name", str(error.value))
