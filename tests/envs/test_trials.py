"""Trials: rewards, ends and boundaries of joined episodes, worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import environment, spaces

from gtrxl_jax import loading
from gtrxl_jax.cli.main import main
from gtrxl_jax.collection import CollectionConfig, CollectionEnvConfig, collect_dataset
from gtrxl_jax.data import datasets
from gtrxl_jax.envs import MultiTaskStream, Stream, Trial, make_env, pad_spaces, time_limit
from gtrxl_jax.envs.check_env import require_consistent_env
from gtrxl_jax.envs.extensions import require_renderer
from gtrxl_jax.nn.agent import make_agent
from gtrxl_jax.nn.cores.registry import make_core
from gtrxl_jax.online.config import EnvConfig
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs import loop
from tests.jobs import small_job

ADD, STOP, REST = range(3)


@struct.dataclass
class CoinsParams(environment.EnvParams):
    max_steps_in_episode: int = 3


@struct.dataclass
class CoinsState(environment.EnvState):
    coin: jax.Array
    coins: jax.Array


class Coins(environment.Environment):
    """ADD earns a coin, whose value is drawn at the reset. STOP, legal from the second step on,
    terminates with success. Episodes are truncated after 3 actions.
    """

    default_params = CoinsParams()
    num_actions, action_names, chance = 3, ("add", "stop", "rest"), 0.25

    def reset_env(self, key, params):
        coin = jax.random.randint(key, (), 1, 1000).astype(jnp.float32)
        state = CoinsState(time=jnp.int32(0), coin=coin, coins=jnp.float32(0))
        return self.see(state), state

    def step_env(self, key, state, action, params):
        reward = jnp.where(action == ADD, state.coin, 0.0)
        state = state.replace(time=state.time + 1, coins=state.coins + (action == ADD))
        stops = action == STOP
        return self.see(state), state, reward, stops, {"success": stops, "coins": state.coins}

    def see(self, state):
        return jnp.stack([state.time.astype(jnp.float32), state.coins])

    def legal_actions(self, state, params):
        return jnp.stack([True, state.time > 0, True]) & True

    def oracle_action(self, state, params):
        return jnp.where(state.time < 2, ADD, STOP).astype(jnp.int32)

    def render(self, state, params):
        return np.full((2, 2, 3), int(state.time), np.uint8)

    def action_space(self, params=None):
        return spaces.Discrete(3)

    def observation_space(self, params=None):
        return spaces.Box(0.0, 3.0, (2,))


class OtherCoins(Coins):
    """Coins whose observations are of another kind."""

    def __init__(self, kind="dict"):
        super().__init__()
        self.kind = kind

    def see(self, state):
        numbers = jnp.stack([state.time, state.coins.astype(jnp.int32)])
        match self.kind:
            case "dict":
                return {"time": state.time, "image": jnp.zeros((8, 8), jnp.uint8)}
            case "tuple":
                return state.time, numbers
            case "image":
                return jnp.zeros((8, 8, 3), jnp.uint8)
            case "reserved":
                return {"new_episode": state.time}
        return numbers if self.kind == "integers" else state.time

    def observation_space(self, params=None):
        time, numbers = spaces.Discrete(4), spaces.Box(0, 3, (2,), jnp.int32)
        match self.kind:
            case "dict":
                image = spaces.Box(0, 255, (8, 8), jnp.uint8)
                return spaces.Dict({"time": time, "image": image})
            case "tuple":
                return spaces.Tuple((time, numbers))
            case "image":
                return spaces.Box(0, 255, (8, 8, 3), jnp.uint8)
            case "reserved":
                return spaces.Dict({"new_episode": time})
        return numbers if self.kind == "integers" else time


def play(stream, actions):
    """Return the time steps and states of one environment that takes the actions, `[T + 1]`."""

    @jax.jit
    def run(key, action_T1):
        start = stream.reset(key)
        _, rest = jax.lax.scan(
            lambda c, action_1: (stream.step(c[0], action_1),) * 2, start, action_T1
        )
        return jax.tree.map(lambda x, y: jnp.concatenate([x[None], y])[:, 0], start, rest)

    states, steps = run(jax.random.key(0), jnp.array(actions)[:, None])
    return steps, states


def test_observe_gives_observations_of_steps():
    """But for the noise, the fourth entry, where an episode begins."""
    env, params = make_env("TMazePassive-v0", corridor_length=1, trial=2)
    key = jax.random.key(0)
    observation, state = env.reset_env(key, params)
    begins = [observation[-1]]
    for action in (0, 1, 0):  # right, then a turn
        observation, state, *_ = env.step_env(key, state, action, params)
        seen = env.observe(key, state, action, params)
        begins.append(seen[-1])
        np.testing.assert_array_equal(seen.at[3].set(0), observation.at[3].set(0))
    assert begins == [1, 0, 1, 0]


def test_rewards_and_flags_of_joined_episodes():
    """The first episode is truncated, the second terminates, and the third is truncated."""
    stream = require_consistent_env(Stream(Trial(Coins(), 3), Coins.default_params, 1))
    steps, states = play(stream, [ADD, REST, ADD, ADD, STOP, REST, ADD, REST, ADD, ADD])
    coin, other = (float(states.env.inner.coin[t]) for t in (0, 9))
    assert coin != other
    #              episode 1     episode 2  episode 3  the next trial
    time = [0, 1, 2, 0, 1, 0, 1, 2, 3, 0, 1]
    np.testing.assert_array_equal(steps.observation[:, 0], time)
    new_episode = [1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0]
    np.testing.assert_array_equal(steps.observation[:, 2], new_episode)
    rewards = coin * np.array([0, 1, 0, 1, 1, 0, 0, 1, 0, 0, 0])
    rewards[-1] = other
    np.testing.assert_array_equal(steps.reward, rewards)
    np.testing.assert_array_equal(np.nonzero(steps.first)[0], [0, 9])
    np.testing.assert_array_equal(np.nonzero(steps.last)[0], [8])
    # The trial terminates, although its last episode was truncated.
    np.testing.assert_array_equal(np.nonzero(steps.discount == 0)[0], [8])
    np.testing.assert_array_equal(steps.action, [0, 0, 2, 0, 0, 1, 2, 0, 2, 0, 0])
    scores = {name: float(value[8]) for name, value in states.episode.scores.items()}
    assert scores == {
        "return": 4 * coin,
        "length": 8,
        "success": pytest.approx(1 / 3),
        "coins": pytest.approx((2 + 1 + 1) / 3),
        **{"return_1": 2 * coin, "return_2": coin, "return_3": coin},
        **{"length_1": 3, "length_2": 2, "length_3": 3},
        **{"success_1": 0, "success_2": 1, "success_3": 0},
    }


def test_world_is_same_in_trial_only():
    env, params = make_env("MultiarmedBanditEasy-v0", trial=3, num_arms=4, episode_length=2)
    _, states = play(Stream(env, params, 1), [0] * 8)
    chances = np.asarray(states.env.inner.chances)
    assert np.all(chances[:7] == chances[0])
    assert np.all(chances[7:] != chances[0])


def test_steps_do_not_repeat_in_trial():
    """Only resets do: the same arm does not always pay at the same pulls."""
    env, params = make_env("MultiarmedBanditEasy-v0", trial=2, num_arms=1, episode_length=64)
    steps, _ = play(Stream(env, params, 1), [0] * 128)
    assert np.any(steps.reward[1:65] != steps.reward[65:])


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("dict", ["image", "new_episode", "time"]),
        ("tuple", 3),
        ("image", ["new_episode", "observation"]),
        ("integers", ["new_episode", "observation"]),
        ("discrete", ["new_episode", "observation"]),
    ],
)
def test_boundary_is_in_observations_of_every_kind(kind, keys):
    stream = Stream(Trial(OtherCoins(kind), 2), Coins.default_params, 1)
    _, timestep = require_consistent_env(stream).reset(jax.random.key(0))
    observation = timestep.observation
    assert (sorted(observation) if isinstance(keys, list) else len(observation)) == keys
    flag = observation[2 if kind == "tuple" else "new_episode"]
    np.testing.assert_array_equal(flag, [1])


def test_extensions_are_of_running_episode():
    env = Trial(Coins(), 2)
    stream = Stream(env, Coins.default_params, 1)
    assert time_limit(env, Coins.default_params) == 6
    steps, states = play(stream, [ADD, ADD, REST, REST])
    np.testing.assert_array_equal(steps.legal[:, STOP], [False, True, True, False, True])
    states = [jax.tree.map(lambda x, t=t: x[t], states.env) for t in range(5)]
    assert [int(env.oracle_action(state, stream.params)) for state in states] == [0, 0, 1, 0, 0]
    pixels = [require_renderer(env).draw(state, stream.params)[0, 0, 0] for state in states]
    assert pixels == [0, 1, 2, 0, 1]
    assert env.action_names == Coins.action_names
    assert env.chance == 0.25
    # What is not of one episode is not of a trial.
    assert not hasattr(make_env("TMazePassive-v0", trial=2)[0], "cue")
    assert not hasattr(make_env("TMazePassive-v0", trial=2)[0], "params_of_length")
    assert not hasattr(make_env("MemoryMaze-9x9-v0", trial=2)[0], "explorer_action")


def test_memory_is_kept_in_trial():
    """The second episode depends on the first, the next trial does not."""
    stream = Stream(Trial(Coins(), 2), Coins.default_params, 1)
    steps, _ = play(stream, [ADD, REST, ADD, ADD, STOP, REST, ADD])
    segment = jax.tree.map(lambda x: x[None], steps)
    core = make_core("lstm", layers=1, width=8)
    agent = make_agent(core, stream.observation_space, stream.action_space, encoder_width=8)
    memory = agent.initial_memory(1)

    @jax.jit
    def influence(key):
        params = agent.init(key, memory, segment)

        def outputs(observation):
            changed = segment.replace(observation=observation)
            return agent.apply(params, memory, changed)[1].value[0]

        return jax.jacobian(outputs)(segment.observation)

    influence_ST = np.abs(influence(jax.random.key(0)))[:, 0].max(axis=-1)
    np.testing.assert_array_equal(np.nonzero(steps.first)[0], [0, 6])
    assert np.all(influence_ST[3:6, 0] > 0)
    assert np.all(influence_ST[6:, :6] == 0)


def test_tasks_of_trials_are_padded():
    """Vectors of different lengths; scores of the episodes that all trials have."""
    names = ("CartPole-v1", "AssociativeRetrieval-v0")
    trials = [Stream(*make_env(name, trial=k), 2) for name, k in zip(names, (2, 3), strict=True)]
    stream = MultiTaskStream(pad_spaces(trials, names))
    state, timestep = jax.jit(stream.reset)(jax.random.key(0))
    assert timestep.observation.shape == (4, 5)
    assert {"return_2", "length_1"} <= state.episode.scores.keys()
    assert "return_3" not in state.episode.scores
    assert time_limit(stream.tasks[1].env, stream.tasks[1].params) == 3 * 10


def test_trial_of_config_reaches_every_task():
    tasks = ({}, {"name": "Acrobot-v1", "trial": 5})
    env = EnvConfig("CartPole-v1", {"gravity": 9.0}, tasks, trial=4)
    assert env.members == (
        ("CartPole-v1", {"gravity": 9.0, "trial": 4}),
        ("Acrobot-v1", {"trial": 5}),
    )
    assert env.overrides == {"gravity": 9.0, "trial": 4}
    assert "trial" not in EnvConfig("CartPole-v1").overrides


@pytest.mark.parametrize(
    ("trial", "error", "message"),
    [
        (0, ValueError, "trial must be at least 1, got 0"),
        (2.5, TypeError, r"trial must be a whole number, got 2\.5"),
    ],
)
def test_invalid_numbers_of_episodes_raise(trial, error, message):
    with pytest.raises(error, match=message):
        make_env("CartPole-v1", trial=trial)


def test_reserved_entry_of_observations_raises():
    with pytest.raises(ValueError, match="have an entry new_episode, which a trial adds: rename"):
        Trial(OtherCoins("reserved"), 2).observation_space()


@pytest.mark.slow
def test_commands_play_trials(tmp_path):
    run, data = tmp_path / "run", tmp_path / "data"
    job = small_job("lstm", env=EnvConfig(f"{__name__}:Coins", trial=2, num_envs=8))
    loop.train(OnlineTrainer(job), folder=run)
    scores, loaded = loading.evaluate(run, 4)
    assert {"return_1", "return_2", "success_2"} <= scores.keys()
    assert loaded.environment == (f"{__name__}:Coins", {"trial": 2})
    scores, _ = loading.evaluate(run, 4, params={"trial": 3})
    assert "return_3" in scores
    main(["play", str(run), "--to", str(tmp_path / "play.gif")])
    assert (tmp_path / "play.gif").exists()
    config = CollectionConfig(CollectionEnvConfig(num_envs=4), policy=str(run), episodes=5)
    assert collect_dataset(config, data).episodes == 5
    assert datasets.load(data).observations.shape[-1] == 3
    assert datasets.load_metadata(data).env_params == {"trial": 2}
