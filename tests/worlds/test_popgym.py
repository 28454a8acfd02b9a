"""The environments of POPGym against the package: episodes are replayed in it."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import popgym.envs
import pytest

from gtrxl_jax.envs import Stream, make_env, time_limit
from gtrxl_jax.nn.agent import make_agent
from gtrxl_jax.nn.cores.registry import make_core
from gtrxl_jax.specs import action_spec, environment_action
from gtrxl_jax.timestep import zero_timestep
from gtrxl_jax.worlds.cells import Cell, draw_cells
from gtrxl_jax.worlds.popgym import POPGYM

PACKAGE = {
    entry["id"].removeprefix("popgym-").replace("Cartpole", "CartPole"): cls
    for cls, entry in popgym.envs.ALL.items()
}
EPISODES = 5
ORACLE = np.linspace(0, 1, EPISODES)
"""The probability of the oracle's action in each episode; other actions are random."""


class Chosen:
    """A random number generator of which every draw is chosen."""

    def __init__(self, **draws):
        self.draws = {name: iter(values) for name, values in draws.items()}

    def shuffle(self, cards):
        cards[:] = next(self.draws["shuffle"])

    def choice(self, *args, **kwargs):
        return next(self.draws["choice"])

    def uniform(self, *args, **kwargs):
        return next(self.draws["uniform"])

    def random(self, *args, **kwargs):
        return next(self.draws["random"])


def play(env, params, time=0):
    """Play episodes; return the first observation, and the record of each step, `[B, T, ...]`."""
    spec, space = action_spec(env.action_space(params)), env.action_space(params)

    def step(state, inputs):
        key, by_oracle = inputs
        key_action, key_step = jax.random.split(key)
        action = spec.sample(key_action)
        if hasattr(env, "oracle_action"):
            oracle = env.oracle_action(state, params)
            action = jax.tree.map(lambda x, y: jnp.where(by_oracle, x, y), oracle, action)
        action = environment_action(space, action)
        observation, after, reward, terminated, _ = env.step_env(key_step, state, action, params)
        truncated = env.is_truncated(after, params) & ~terminated
        return after, (state, action, observation, reward, terminated, truncated)

    def episode(key, probability):
        key_reset, key_choice, key_steps = jax.random.split(key, 3)
        length = env.episode_length - time
        by_oracle = jax.random.bernoulli(key_choice, probability, (length,))
        first, state = env.reset_env(key_reset, params)
        state = state.replace(time=jnp.int32(time))
        inputs = jax.random.split(key_steps, length), by_oracle
        return first, *jax.lax.scan(step, state, inputs)[1]

    keys = jax.random.split(jax.random.key(0), EPISODES)
    return jax.device_get(jax.jit(jax.vmap(episode))(keys, jnp.asarray(ORACLE, jnp.float32)))


def order(kinds, kind_of_card):
    """Return cards of the given kinds, no card twice."""
    cards = {kind: list(np.flatnonzero(kind_of_card == kind)) for kind in set(kinds.tolist())}
    return [cards[kind].pop() for kind in kinds.tolist()]


def dealt(kinds, kind_of_card):
    """Return the deck of which the cards of the given kinds are dealt, from its end."""
    return order(kinds, kind_of_card)[::-1]


def flat(observation):
    return np.asarray(observation).astype(float)


def draws_of(name, package, first, states, observations):
    """Return the draws with which the package has the hidden state of an episode."""
    seen = np.concatenate([first[None], observations])
    if name in ("RepeatPrevious", "RepeatFirst"):
        return dict(shuffle=[dealt(seen, package.deck.suits_idx)])
    if name == "HigherLower":
        return dict(shuffle=[dealt(seen, package.deck.ranks_idx)])
    if name == "Autoencode":
        return dict(shuffle=[dealt(seen[: package.deck.num_cards, 1], package.deck.suits_idx)])
    if name == "CountRecall":
        return dict(shuffle=[dealt(column, package.deck_idx_type) for column in seen.T])
    if name == "Concentration":
        return dict(shuffle=[order(states.cards[0], package.deck_idx_type)])
    if name == "MineSweeper":
        return dict(choice=[np.flatnonzero(states.mines[0])])
    if name == "MultiarmedBandit":
        return dict(random=[states.chances[0], *(1.0 - observations)])
    if "CartPole" in name:
        return dict(
            uniform=[[z[0] for z in (states.x, states.x_dot, states.theta, states.theta_dot)]]
        )
    if "Pendulum" in name:
        return dict(uniform=[[states.theta[0], states.theta_dot[0]]])
    return {}


def prepare(name, package, state):
    """Give the package the state of a step, where rounding would otherwise accumulate."""
    if "CartPole" in name:
        package.state = [float(z) for z in (state.x, state.x_dot, state.theta, state.theta_dot)]
        package.num_steps = int(state.time)
    if "Pendulum" in name:
        package.state = [float(state.theta), float(state.theta_dot)]
    if name == "Battleship" and state.time == 0:
        package.board = state.ships.astype(np.int8)


def replay(name, package, played):
    """Compare an episode with the package's; return its return and how it ended."""
    first, states, actions, observations, rewards, terminated, truncated = played
    if draws := draws_of(name, package, first, states, observations):
        package.np_random = Chosen(**draws)
    np.testing.assert_allclose(flat(package.reset()[0]), first, atol=1e-6)
    for t in range(len(rewards)):
        state, action = jax.tree.map(lambda x, t=t: x[t], (states, actions))
        prepare(name, package, state)
        if not isinstance(action, (tuple, np.ndarray)):
            action = int(action)
        seen, reward, ends, is_late, _ = package.step(action)
        np.testing.assert_allclose(flat(seen), observations[t], atol=1e-5)
        np.testing.assert_allclose(reward, rewards[t], atol=1e-6)
        assert ends == terminated[t]
        assert (is_late and not ends) == truncated[t]
        if terminated[t] or truncated[t]:
            return rewards[: t + 1].sum(dtype=float), "terminated" if ends else "truncated"
    raise AssertionError("the episode does not end")


# The levels are those of the smallest or of the most intricate settings.
@pytest.mark.parametrize(
    ("name", "level", "ends", "best"),
    [
        ("RepeatPrevious", "Medium", {"terminated"}, 1),
        ("RepeatFirst", "Easy", {"terminated"}, 1),
        ("Autoencode", "Easy", {"terminated"}, 1),
        ("CountRecall", "Medium", {"terminated"}, 1),
        ("HigherLower", "Easy", {"terminated"}, None),
        ("Concentration", "Easy", {"terminated", "truncated"}, 1),
        ("MineSweeper", "Easy", {"terminated", "truncated"}, 1),
        ("Battleship", "Easy", {"terminated", "truncated"}, 1),
        ("MultiarmedBandit", "Easy", {"truncated"}, None),
        ("PositionOnlyCartPole", "Easy", {"terminated"}, None),
        ("VelocityOnlyCartPole", "Easy", {"terminated"}, None),
        ("PositionOnlyPendulum", "Hard", {"truncated"}, None),
    ],
)
def test_episodes_match_package(name, level, ends, best):
    env, params = make_env(f"{name}{level}-v0")
    played = play(env, params)
    package = PACKAGE[f"{name}{level}-v0"]()
    episodes = [
        replay(name, package, jax.tree.map(lambda x, b=b: x[b], played)) for b in range(EPISODES)
    ]
    assert {end for _, end in episodes} == ends
    if best is not None:
        assert episodes[-1][0] == pytest.approx(best, abs=1e-5)
        assert episodes[0][0] < best


def test_cart_pole_is_truncated_as_in_package():
    env, params = make_env("PositionOnlyCartPoleEasy-v0")
    played = play(env, params, time=195)
    package = PACKAGE["PositionOnlyCartPoleEasy-v0"]()
    for b in range(EPISODES):
        episode = jax.tree.map(lambda x, b=b: x[b], played)
        reward, end = replay("PositionOnlyCartPole", package, episode)
        assert end == "truncated"
        assert reward == pytest.approx(5 / 200)


@pytest.mark.parametrize("name", ["NoisyPositionOnlyCartPole", "NoisyPositionOnlyPendulum"])
def test_noise_has_standard_deviation_of_level(name):
    """Noise is added to the noiseless observation and clipped, as in the package."""
    env, params = make_env(f"{name}Medium-v0")
    package = PACKAGE[f"{name}Medium-v0"]()
    np.testing.assert_allclose(env.noise_sigma, package.noise_sigma[0])
    clean, _ = make_env(f"{name.removeprefix('Noisy')}Easy-v0")
    _, state = clean.reset_env(jax.random.key(1), params)
    truth = np.asarray(clean.observe(jax.random.key(2), state, None, params))
    keys = jax.random.split(jax.random.key(3), 4000)
    observed = jax.vmap(lambda key: env.observe(key, state, None, params))(keys)
    package.np_random = np.random.default_rng(4)
    expected = np.stack([package.add_noise_to_obs(truth) for _ in keys])
    for statistic in (np.mean, np.std):
        np.testing.assert_allclose(statistic(observed, 0), statistic(expected, 0), atol=0.015)
    assert (np.abs(observed) <= package.observation_space.high + 1e-6).all()


def sizes(space):
    """Return the parts of a space: numbers of choices, or bounds."""
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return space.nvec.astype(int).tolist()
    if hasattr(space, "spaces"):
        return [size for child in space.spaces for size in sizes(child)]
    if hasattr(space, "n"):
        return [int(space.n)]
    if np.issubdtype(space.dtype, np.integer):
        return (np.asarray(space.high) + 1).tolist()
    bounds = [np.broadcast_to(bound, space.shape) for bound in (space.low, space.high)]
    return np.stack(bounds).astype(float).round(5).tolist()


def test_every_level_has_sizes_of_package():
    assert POPGYM.keys() == {name for name in PACKAGE if not name.startswith("Labyrinth")}
    for name in POPGYM:
        env, params = make_env(name)
        package = PACKAGE[name]()
        assert sizes(env.observation_space(params)) == sizes(package.observation_space), name
        assert sizes(env.action_space(params)) == sizes(package.action_space), name
        lengths = [getattr(package, x, None) for x in ("max_episode_length", "episode_length")]
        if name.startswith("HigherLower"):
            lengths = [package.deck_size - 1]
        assert time_limit(env, params) in lengths, name


def test_ships_are_placed_as_in_package():
    env, params = make_env("BattleshipEasy-v0")
    keys = jax.random.split(jax.random.key(0), 2000)
    _, states = jax.jit(jax.vmap(lambda key: env.reset_env(key, params)))(keys)
    package = PACKAGE["BattleshipEasy-v0"]()
    package.reset(seed=0)
    boards = np.stack([package.reset()[0] or package.board for _ in range(1000)])
    np.testing.assert_array_equal(states.ships.sum((1, 2)), 12)
    # The standard deviation of a difference is at most sqrt(1/4 (1/1000 + 1/2000)) = 0.02.
    np.testing.assert_allclose(states.ships.mean(0), boards.mean(0), atol=0.08)
    neighbors = (states.ships[:, 1:] & states.ships[:, :-1]).sum((1, 2)).mean()
    expected = (boards[:, 1:] & boards[:, :-1]).sum((1, 2)).mean()
    np.testing.assert_allclose(neighbors, expected, atol=0.5)


@pytest.mark.parametrize(
    "name", ["RepeatFirst", "CountRecall", "Concentration", "MineSweeper", "PositionOnlyPendulum"]
)
def test_agents_play_in_streams(name):
    """By abstract evaluation: observations and actions have the layout that agents use."""
    stream = Stream(*make_env(f"{name}Hard-v0"), num_envs=2)
    spaces = stream.observation_space, stream.action_space
    agent = make_agent(make_core("gtrxl", preset="debug"), *spaces)

    def play(key):
        memory = agent.initial_memory(2)
        params = agent.init(key, memory, zero_timestep(*spaces, 2, 1))
        state, timestep = stream.reset(key)
        cache = agent.apply(params, memory, method="start")
        _, output = agent.apply(params, cache, timestep, method="step")
        return timestep, stream.step(state, output.policy.sample(key))[1]

    first, second = jax.eval_shape(play, jax.random.key(0))
    assert first == second


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("RepeatPreviousEasy-v0", dict(k=52), "k must be from 1 to 51 for 52 cards, got 52"),
        ("RepeatFirstEasy-v0", dict(num_decks=0), "num_decks must be at least 1, got 0"),
        ("CountRecallEasy-v0", dict(kinds=3), r"kinds must be 2 \(colors\), 4 \(suits\) or 13"),
        ("ConcentrationEasy-v0", dict(kinds=4), r"kinds must be 2 \(colors\) or 13 \(ranks\)"),
        ("MineSweeperEasy-v0", dict(num_mines=14), "num_mines must be from 1 to .* = 13, got 14"),
        ("BattleshipEasy-v0", dict(size=5), "size must be at least 6, got 5"),
        ("MultiarmedBanditEasy-v0", dict(num_arms=0), "num_arms must be at least 1, got 0"),
        (
            "NoisyPositionOnlyPendulumEasy-v0",
            dict(noise_sigma=-0.1),
            "noise_sigma must be at least",
        ),
    ],
)
def test_invalid_settings_raise(name, overrides, message):
    with pytest.raises(ValueError, match=message):
        make_env(name, **overrides)


UNKNOWN, *SUITS = draw_cells(np.array([[Cell.FLOOR, Cell.AGENT, Cell.UP, Cell.DOWN, Cell.LIT]]), 1)[
    0
].tolist()
"""The colors of a card that is not shown, and of the suits."""


def cards_in_picture(image, cards):
    return image[24 + 12 : -3 * 24 : 24, 24 + 12 : -24 : 24].reshape(-1, 3).tolist()[:cards]


def test_picture_of_repeat_previous_shows_recent_cards():
    env, params = make_env("RepeatPreviousMedium-v0")
    _, state = env.reset_env(jax.random.key(0), params)
    for steps in (1, 40):
        for number in range(steps):
            _, state, *_ = env.step_env(jax.random.key(number), state, 0, params)
        shown = cards_in_picture(env.render(state, params), env.k)
        known = min(int(state.time) + 1, env.k)
        assert shown[: env.k - known] == [UNKNOWN] * (env.k - known)
        assert shown[env.k - known :] == [SUITS[card] for card in state.recent[env.k - known :]]


def test_picture_of_autoencode_shows_cards_seen_and_not_yet_recited():
    env, params = make_env("AutoencodeEasy-v0")
    (phase, _), state = env.reset_env(jax.random.key(0), params)
    step = jax.jit(env.step_env)
    for number in range(env.episode_length):
        shown = cards_in_picture(env.render(state, params), env.num_cards)
        known = number + 1 if phase else 2 * env.num_cards - 1 - number
        assert shown[known:] == [UNKNOWN] * (env.num_cards - known)
        assert shown[:known] == [SUITS[card] for card in state.cards[:known]]
        if not phase:
            assert state.cards[known - 1] == env.oracle_action(state, params)
        (phase, _), state, *_ = step(jax.random.key(number), state, 0, params)
