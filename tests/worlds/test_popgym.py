"""The environments of POPGym against the package: episodes are replayed in it."""

import collections
import functools
import random

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
from gtrxl_jax.worlds.popgym.labyrinths import (
    FREE,
    GOAL,
    MOVES,
    NO_ACTION,
    OBSTACLE,
    START,
    LabyrinthState,
    draw_maze,
)

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


LABYRINTHS = [name for name in POPGYM if name.startswith("Labyrinth")]
"""The package has these only where mazelib is installed."""


def test_every_level_has_sizes_of_package():
    assert POPGYM.keys() == PACKAGE.keys() | {*LABYRINTHS}
    for name in POPGYM.keys() - {*LABYRINTHS}:
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
    "name",
    [
        "RepeatFirst",
        "CountRecall",
        "Concentration",
        "LabyrinthExplore",
        "MineSweeper",
        "PositionOnlyPendulum",
    ],
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
        ("LabyrinthEscapeEasy-v0", dict(size=9), "size must be even and at least 6, got 9"),
        ("LabyrinthExploreEasy-v0", dict(size=4), "size must be even and at least 6, got 4"),
        ("LabyrinthExploreEasy-v0", dict(episode_length=0), "episode_length must be at least 1"),
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


@pytest.mark.slow
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


@pytest.mark.simulators
@pytest.mark.filterwarnings("ignore:Maze environments:DeprecationWarning")
@pytest.mark.parametrize("name", LABYRINTHS)
def test_labyrinths_match_package(name):
    """Episodes in mazes of the package, by the oracle and by random actions."""
    pytest.importorskip("mazelib")
    env, params = make_env(name)
    package = PACKAGE[name]()
    assert sizes(env.observation_space(params)) == sizes(package.observation_space)
    assert sizes(env.action_space(params)) == sizes(package.action_space)
    step, oracle = jax.jit(env.step_env), jax.jit(env.oracle_action)
    rng, ends = np.random.default_rng(0), set()
    for seed, probability in enumerate(ORACLE):
        first, _ = package.reset(seed=seed)
        square_SS = jnp.asarray(package.maze.grid, jnp.int32)
        start_2 = jnp.asarray(package.maze.start, jnp.int32)
        state = labyrinth_state(square_SS, start_2)
        np.testing.assert_array_equal(first, env.observe(KEY, state, None, params))
        is_over = False
        while not is_over:
            # The first episode cannot leave its row, and so is truncated.
            action = rng.integers(4 if probability else 2)
            if rng.random() < probability:
                action = oracle(state, params)
            expected, reward, ends_there, is_late, _ = package.step(int(action))
            seen, state, *outcome = step(KEY, state, action, params)
            np.testing.assert_array_equal(seen, expected)
            np.testing.assert_allclose(outcome[0], reward, atol=1e-6)
            assert outcome[1] == outcome[2]["success"] == ends_there
            assert env.is_truncated(state, params) == is_late
            is_over = ends_there or is_late
        ends.add("terminated" if ends_there else "truncated")
    assert ends == {"terminated", "truncated"}


def labyrinth_state(square_SS, start_2):
    """Return the state in which an agent enters a maze."""
    is_start_SS = jnp.zeros(square_SS.shape, bool).at[tuple(start_2)].set(True)
    return LabyrinthState(jnp.int32(0), square_SS, is_start_SS, start_2, jnp.int32(NO_ACTION))


MAZE = """
#######
#...#.#
#.###.#
S.#.#.G
#.#.#.#
#.....#
#######
"""
LEFT, RIGHT, UP, DOWN = range(4)
TRANSPOSED = UP, DOWN, LEFT, RIGHT
KEY = jax.random.key(0)  # unused, as nothing but the maze is random


def kinds(rows):
    """Return the kinds of squares that are drawn as letters."""
    return np.array([[".#SG".index(letter) for letter in row] for row in rows])


def play_maze(name, actions, transposed=False):
    """Return the outcomes of actions in `MAZE`, or in it with the axes swapped, and the state.

    An outcome is an observation, reward, end and info; the first is an observation alone.
    """
    env, params = make_env(name, size=6)
    square_SS = kinds(MAZE.split())
    if not env.has_goal:
        square_SS = np.where(square_SS == GOAL, OBSTACLE, square_SS)
    if transposed:
        square_SS, actions = square_SS.T, [TRANSPOSED[action] for action in actions]
    start_2 = jnp.argwhere(square_SS == START)[0].astype(jnp.int32)
    state = labyrinth_state(jnp.asarray(square_SS, jnp.int32), start_2)
    outcomes = [(env.observe(KEY, state, None, params),)]
    step = jax.jit(env.step_env)
    for action in actions:
        observation, state, *outcome = step(KEY, state, action, params)
        outcomes.append((observation, *outcome))
    return jax.device_get(outcomes), state


ESCAPE = [RIGHT, DOWN, DOWN, *4 * [RIGHT], UP, UP, RIGHT]


@pytest.mark.parametrize("transposed", [False, True])
def test_labyrinth_is_escaped(transposed):
    outcomes, _ = play_maze("LabyrinthEscapeEasy-v0", [LEFT, UP, *ESCAPE], transposed)
    _, rewards, ends, infos = zip(*outcomes[1:], strict=True)
    np.testing.assert_allclose(rewards, [*11 * [-1 / 1024], 1 - 1 / 1024], atol=1e-7)
    assert list(ends) == [info["success"] for info in infos] == [*11 * [False], True]


@pytest.mark.parametrize("transposed", [False, True])
def test_view_begins_at_agent_in_first_row_and_column(transposed):
    outcomes, _ = play_maze("LabyrinthEscapeEasy-v0", [LEFT, *ESCAPE], transposed)
    seen = [observation for observation, *_ in outcomes]
    at_door = ["#.#", "S.#", "#.#"]  # cut off at the agent, and filled up with obstacles
    beside = ["#.#", "S.#", "#.#"]  # the agent in the middle
    corner = ["#.#", "#..", "###"]
    at_exit = [".##", ".G#", ".##"]
    for number, view in ((0, at_door), (1, at_door), (2, beside), (4, corner), (-1, at_exit)):
        expected = kinds(view).T if transposed else kinds(view)
        np.testing.assert_array_equal(seen[number][:9], expected.ravel())
    actions = [LEFT, *ESCAPE]
    if transposed:
        actions = [TRANSPOSED[action] for action in actions]
    assert [observation[9] for observation in seen] == [NO_ACTION, *actions]


def test_every_new_square_is_rewarded_once():
    first_branch = [RIGHT, UP, UP, RIGHT, RIGHT]
    back = [LEFT, LEFT, DOWN, DOWN]
    second_branch = [DOWN, DOWN, RIGHT, RIGHT, UP, UP]
    rest = [RIGHT, RIGHT, *4 * [UP]]
    walk = [(UP, 0), *((x, 1) for x in first_branch), *((x, 0) for x in back)]
    walk += [*((x, 1) for x in second_branch), (DOWN, 0), (DOWN, 0), *((x, 1) for x in rest)]
    actions, is_new = zip(*walk, strict=True)
    outcomes, _ = play_maze("LabyrinthExploreEasy-v0", actions)
    _, rewards, ends, infos = zip(*outcomes[1:], strict=True)
    assert sum(is_new) == 6**2 // 2 - 1
    np.testing.assert_allclose(rewards, np.where(is_new, 1 / 17, -1 / 1024), atol=1e-7)
    assert list(ends) == [info["success"] for info in infos]
    assert list(ends) == [*(len(walk) - 1) * [False], True]


@functools.cache
def drawn_mazes(name, count):
    """Return the initial states of many episodes."""
    env, params = make_env(name)
    keys = jax.random.split(jax.random.key(0), count)
    return jax.device_get(jax.jit(jax.vmap(lambda key: env.reset_env(key, params)))(keys))


def moves_from(square_SS, start):
    """Return the number of moves to each square that can be reached, by breadth-first search."""
    moves, queue = {start: 0}, collections.deque([start])
    while queue:
        row, column = place = queue.popleft()
        for change in MOVES:
            after = row + change[0], column + change[1]
            is_inside = min(after) >= 0 and max(after) < len(square_SS)
            if is_inside and after not in moves and square_SS[after] != OBSTACLE:
                moves[after] = moves[place] + 1
                queue.append(after)
    return moves


@pytest.mark.parametrize("name", LABYRINTHS)
def test_labyrinths_are_perfect_mazes(name):
    """All squares can be reached, in one way; the doors are on opposite sides, next to rooms."""
    env, _ = make_env(name)
    observations, states = drawn_mazes(name, 100)
    sides = collections.Counter()
    for b, square_SS in enumerate(states.square_SS):
        rooms = (env.size // 2) ** 2
        assert (square_SS == FREE).sum() == rooms + (rooms - 1)
        assert (square_SS[1::2, 1::2] == FREE).all()
        (start,) = map(tuple, np.argwhere(square_SS == START).tolist())
        assert start == tuple(states.position_2[b])
        assert len(moves_from(square_SS, start)) == (square_SS != OBSTACLE).sum()
        np.testing.assert_array_equal(states.explored_SS[b], square_SS == START)
        assert sorted(x % 2 for x in start) == [0, 1]
        assert {*start} & {0, env.size}
        goals = np.argwhere(square_SS == GOAL).tolist()
        assert len(goals) == env.has_goal
        for goal in goals:
            axis = next(axis for axis in (0, 1) if start[axis] in (0, env.size))
            assert goal[axis] == env.size - start[axis]
            assert goal[1 - axis] % 2 == 1
        sides[tuple(0 if x == 0 else 1 if x == env.size else None for x in start)] += 1
        assert observations[b][9] == NO_ACTION
    assert len(sides) == 4
    assert min(sides.values()) > 10


# Means and standard deviations over 20,000 mazes of mazelib 0.9.16 for each size, drawn with
# HuntAndKill(size // 2, size // 2) and generate_entrances(start_outer=True); one maze of each size
# had a room without a passage, and was left out. A dead end is a free square with one free
# neighbor; doors do not count.
MAZELIB = {
    "LabyrinthEscapeEasy-v0": {"dead ends": (4.175, 0.999), "moves to exit": (21.67, 7.13)},
    "LabyrinthEscapeMedium-v0": {"dead ends": (6.727, 1.377), "moves to exit": (36.01, 12.28)},
    "LabyrinthEscapeHard-v0": {"dead ends": (10.197, 1.766), "moves to exit": (52.09, 17.78)},
}


@pytest.mark.parametrize("name", MAZELIB)
def test_mazes_have_statistics_of_mazelib(name):
    count = 2000
    _, states = drawn_mazes(name, count)
    free = np.pad(states.square_SS == FREE, ((0, 0), (1, 1), (1, 1))).astype(int)
    neighbors = sum(np.roll(free, shift, axis) for shift in (1, -1) for axis in (1, 2))
    drawn = {
        "dead ends": ((free == 1) & (neighbors == 1)).sum((1, 2)),
        "moves to exit": [
            moves_from(square_SS, tuple(position_2.tolist()))[
                tuple(np.argwhere(square_SS == GOAL)[0].tolist())
            ]
            for square_SS, position_2 in zip(states.square_SS, states.position_2, strict=True)
        ],
    }
    for statistic, (mean, deviation) in MAZELIB[name].items():
        error = deviation * np.sqrt(1 / count + 1 / 20000)
        np.testing.assert_allclose(np.mean(drawn[statistic]), mean, atol=4 * error)
        np.testing.assert_allclose(np.std(drawn[statistic]), deviation, rtol=0.1)


@functools.cache
def probabilities_of_mazes():
    """Return the probability of each maze of 3 x 3 rooms, by the rule of "hunt and kill"."""
    side, mazes = 3, collections.Counter()
    rooms = [(row, column) for row in range(side) for column in range(side)]
    # Walks with the passages opened so far and the room reached.
    walks = collections.Counter({(frozenset(), room): 1 / len(rooms) for room in rooms})

    def new_neighbors(room, visited):
        near = [(room[0] + row, room[1] + column) for row, column in MOVES]
        return [room for room in near if room in rooms and room not in visited]

    for _ in range(len(rooms) - 1):
        longer = collections.Counter()
        for (passages, room), probability in walks.items():
            visited = {room, *(end for passage in passages for end in passage)}
            starts = [room]
            if not new_neighbors(room, visited):
                starts = [start for start in visited if new_neighbors(start, visited)]
            for start in starts:
                ends = new_neighbors(start, visited)
                for end in ends:
                    walk = passages | {frozenset((start, end))}, end
                    longer[walk] += probability / len(starts) / len(ends)
        walks = longer
    for (passages, _), probability in walks.items():
        mazes[passages] += probability
    return mazes


def passages_of(square_SS):
    """Return the passages of a maze, as pairs of rooms."""
    passages = set()
    for row, column in np.argwhere(np.asarray(square_SS)[1:-1, 1:-1] == FREE).tolist():
        if row % 2 != column % 2:
            ends = ((row - row % 2, column - column % 2), (row + row % 2, column + column % 2))
            passages.add(frozenset((r // 2, c // 2) for r, c in ends))
    return frozenset(passages)


def mazes_of_mazelib(count):
    generator = pytest.importorskip("mazelib.generate.HuntAndKill").HuntAndKill(3, 3)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002, mazelib draws from it
    return [generator.generate() for _ in range(count)]


def mazes_of_package(count):
    keys = jax.random.split(jax.random.key(0), count)
    return jax.device_get(jax.jit(jax.vmap(lambda key: draw_maze(key, 6)))(keys))


@pytest.mark.parametrize(
    "draw", [mazes_of_package, pytest.param(mazes_of_mazelib, marks=pytest.mark.simulators)]
)
def test_mazes_have_probabilities_of_hunt_and_kill(draw):
    """By chi-squared, over the mazes of 3 x 3 rooms."""
    count, expected = 20_000, probabilities_of_mazes()
    assert sum(expected.values()) == pytest.approx(1)
    drawn = collections.Counter(map(passages_of, draw(count)))
    assert drawn.keys() <= expected.keys()
    squared = sum((drawn[x] - count * p) ** 2 / (count * p) for x, p in expected.items())
    freedom = len(expected) - 1
    assert squared == pytest.approx(freedom, abs=4 * np.sqrt(2 * freedom))


@pytest.mark.parametrize("name", ["LabyrinthEscapeEasy-v0", "LabyrinthExploreEasy-v0"])
def test_oracle_solves_labyrinths(name):
    env, params = make_env(name)
    _, states = drawn_mazes(name, 20)

    def step(state, _):
        action = env.oracle_action(state, params)
        _, after, _, ends, _ = env.step_env(KEY, state, action, params)
        return after, (after.position_2, ends)

    run = jax.vmap(lambda state: jax.lax.scan(step, state, length=120)[1])
    positions, ends = jax.device_get(jax.jit(run)(states))
    assert ends.any(axis=1).all()
    for b, square_SS in enumerate(states.square_SS):
        moves = moves_from(square_SS, tuple(states.position_2[b].tolist()))
        last = np.argmax(ends[b])
        depth = moves[tuple(positions[b, last].tolist())]
        if env.has_goal:
            assert square_SS[tuple(positions[b, last])] == GOAL
            assert last + 1 == depth
        else:
            # A depth-first search, there and back again, but not back from the last square.
            assert last + 1 == 2 * (len(moves) - 1) - depth


def test_picture_of_labyrinth_shows_explored_squares():
    env, params = make_env("LabyrinthEscapeEasy-v0", size=6)
    _, state = play_maze("LabyrinthEscapeEasy-v0", [RIGHT, UP])
    letter_of = {".": Cell.FLOOR, "#": Cell.WALL, "S": Cell.DOWN, "G": Cell.UP}
    cells = np.array([[letter_of[letter] for letter in row] for row in MAZE.split()])
    cells[3, 1], cells[2, 1] = Cell.LIT, Cell.AGENT
    np.testing.assert_array_equal(env.render(state, params), draw_cells(cells, pixels=24))
