"""Simulators themselves, in an environment of their own: `make simulators`."""

import itertools
import json
import re

import jax
import numpy as np
import pytest

from gtrxl_jax.cli.main import main
from gtrxl_jax.envs.host.simulators import make_host_env
from gtrxl_jax.envs.host.stream import HostEnv, HostStream
from gtrxl_jax.runs.logging.writers import read_metrics
from gtrxl_jax.specs import action_spec, environment_action, observation_spec
from tests.processes import EXPERIMENTS

pytestmark = [pytest.mark.simulators, pytest.mark.filterwarnings("ignore")]  # their warnings

SHORT = {"limit": 12}

SIMULATORS = {
    "atari": HostEnv("gymnasium:ALE/Pong-v5", {}, {"atari": 84, "stack": 4} | SHORT),
    "box2d": HostEnv("gymnasium:LunarLander-v3", {}, SHORT),
    "envpool": HostEnv("envpool:Pong-v5", {"max_episode_steps": 12}),
    "envpool's CartPole": HostEnv("envpool:CartPole-v1"),
    "memory-maze": HostEnv("memory-maze:9x9", {}, SHORT),
    "minigrid": HostEnv("gymnasium:BabyAI-GoToLocal-v0", {}, SHORT),
    "mujoco": HostEnv("gymnasium:Hopper-v5", {}, SHORT),
    "popgym": HostEnv("gymnasium:popgym-RepeatPreviousEasy-v0", {}, SHORT),
    "vizdoom": HostEnv("gymnasium:VizdoomBasic-v1", {}, {"keys": "screen"} | SHORT),
    "two-colors": HostEnv("vizdoom:two-colors", {"max_steps_in_episode": 12}),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, in which ViZDoom and MuJoCo leave files."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(params=SIMULATORS)
def env(request, folder):
    env = SIMULATORS[request.param]
    try:
        if env.facts.can_render:
            drawing = env.make(render=True)
            drawing.reset()
            drawing.render()
            drawing.close()
    except (AttributeError, ImportError) as error:  # OpenGL's are of both kinds
        if isinstance(error, AttributeError) and not re.search("'e?gl[A-Z]", str(error)):
            raise
        pytest.skip(str(error))
    return env


def test_time_steps_and_frames(env):
    stream = HostStream((env,), 2)
    spec, actions = observation_spec(stream.observation_space), action_spec(stream.action_space)
    with stream.open(0, render=env.can_render) as envs:
        arrivals = [envs.reset()]
        for number in range(30):
            action = actions.sample(jax.random.key(number), 2)
            action = environment_action(stream.action_space, action)
            arrivals.append(envs.step(jax.device_get(action)))
        frames = envs.render()
    for arrival in arrivals:
        for one, x in zip(jax.tree.leaves(spec), jax.tree.leaves(arrival.observation), strict=True):
            assert x.shape == (2, *one.shape)
        assert np.isfinite(arrival.reward).all()
    for before, after in itertools.pairwise(arrivals):
        np.testing.assert_array_equal(after.first, before.last)
    assert any(arrival.last.any() for arrival in arrivals)
    assert len(frames) == (2 if env.can_render else 0)
    for frame in frames:
        assert frame.dtype == np.uint8
        assert frame.ndim == 3
        assert frame.std() > 1


def test_an_agent_trains(env, folder):
    def option(name, values):
        words = [str(word).lower() for pair in values.items() for word in pair]
        return [name, *words] if words else []

    is_image = len(jax.tree.leaves(observation_spec(env.facts.observation_space))[0].shape) > 1
    options = [
        *("train", "--preset", "debug", "--folder", "run", "--devices", "1"),
        *("--env.name", env.name, "--env.num-envs", "2"),
        *("--actors.count", "2", "--actors.timeout", "600"),  # a maze takes long
        *option("--env.params", env.params),
        *option("--env.wrappers", env.wrappers),
        *(["--agent.encoder", "nature"] if is_image else []),
        *("--unroll", "4", "--total-steps", "24", "--updates-per-iteration", "1"),
        *("--evaluation.episodes", "2"),
    ]
    main(options)
    metrics = read_metrics(folder / "run" / "metrics.jsonl")
    assert len(metrics["step"]) == 3
    assert np.isfinite(metrics["gradient_norm"]).all()


@pytest.fixture
def two_colors(folder):
    pytest.importorskip("vizdoom")
    env = make_host_env("vizdoom:two-colors", {}, {})
    yield env
    env.close()


def number_of(image, channel):
    """Return the number of pixels in which a channel exceeds the others, as in posts."""
    rest = np.delete(image.astype(int), channel, axis=-1).max(-1)
    return int((image[..., channel] > 2 * rest).sum())


def walk(env, kind):
    """Walk to the nearest item of a kind; return the last reward and the last two `info`."""
    game, info = env.unwrapped._game, {}
    for _ in range(200):
        objects = game.get_state().objects
        (agent,) = (x for x in objects if x.name == "DoomPlayer")
        offsets = [
            complex(x.position_x - agent.position_x, x.position_y - agent.position_y)
            for x in objects
            if x.name.endswith(kind)
        ]
        turn = np.angle(min(offsets, key=abs) * np.exp(-1j * np.deg2rad(agent.angle)), deg=True)
        action = 2 if abs(turn) < 10 else 3 * (abs(turn) < 40) + (turn < 0)
        before = info
        _, reward, terminated, _, info = env.step(action)
        if terminated or info["right"] + info["wrong"] > 0:
            break
    return reward, before, info


def test_the_oracle_of_two_colors_survives_by_right_items(folder):
    pytest.importorskip("vizdoom")
    env = make_host_env("vizdoom:two-colors", {"size": 5, "items": 1}, {})
    right = wrong = 0
    for seed in range(4):
        env.reset(seed=seed)
        for _ in range(300):
            _, _, terminated, _, info = env.step(env.unwrapped.oracle_action())
            assert not terminated
        right, wrong = right + info["right"], wrong + info["wrong"]
    env.close()
    assert right > 30
    assert wrong < right / 5


def test_the_pillar_of_two_colors_disappears(two_colors):
    seen = set()
    for seed in range(8):
        observation, _ = two_colors.reset(seed=seed)
        names = {x.name for x in two_colors.unwrapped._game.get_state().objects}
        color = next(k for k, name in enumerate(("RedPillar", "GreenPillar")) if name in names)
        middle = (slice(20, 30), slice(52, 60))  # above the items
        assert number_of(observation[middle], color) > 20
        seen.add(color)
        if len(seen) == 2:
            break
    assert seen == {0, 1}
    for step in range(1, 46):  # turning, to the left and back
        observation, *_ = two_colors.step(step % 2)
        names = {x.name for x in two_colors.unwrapped._game.get_state().objects}
        assert any("Pillar" in name for name in names) == (step < 45)
    assert number_of(observation[middle], color) == 0


def test_the_room_of_two_colors_is_empty_for_a_while(folder):
    pytest.importorskip("vizdoom")
    params = {"size": 5, "items": 2, "pillar_steps": 20, "empty_steps": 30}
    env = make_host_env("vizdoom:two-colors", params, {})
    for seed in range(2):
        env.reset(seed=seed)
        colors, taken = [], []
        for step in range(1, 81):
            *_, info = env.step(env.unwrapped.oracle_action())
            names = [x.name for x in env.unwrapped._game.get_state().objects]
            items = sorted(name for name in names if name.endswith(("Heals", "Harms")))
            assert len(items) == (0 if 20 <= step < 50 else 4)
            colors.append(tuple(items))
            taken.append(info["right"] + info["wrong"])
        assert len({*colors}) == 2  # the same kinds of items come back
        assert taken[18] >= 1  # some are taken before and after, and none by the script
        assert taken[20] == taken[48]
        assert taken[-1] > taken[48]
    env.close()


def test_rewards_of_two_colors_follow_the_color(two_colors):
    for seed, (kind, reward, change) in enumerate([("Harms", 0.02, -25), ("Heals", 1.02, 25)] * 2):
        two_colors.reset(seed=seed)
        for _ in range(96):
            two_colors.step(0)  # and the acid takes 30
        earned, before, info = walk(two_colors, kind)
        assert earned == pytest.approx(reward)
        assert (info["right"], info["wrong"]) == ((0, 1) if kind == "Harms" else (1, 0))
        assert info["health"] - before["health"] in (change, change - 10)  # at times with the acid


def test_acid_of_two_colors_kills(two_colors):
    two_colors.reset(seed=0)
    health = []
    terminated = False
    while not terminated:
        _, reward, terminated, truncated, info = two_colors.step(0)
        assert not truncated
        health.append(info["health"])
    assert reward == 0.0
    assert health == [100 - 10 * (step // 32) for step in range(1, 321)]


def test_seeds_of_two_colors_repeat_episodes(two_colors):
    episodes = []
    for seed in (3, 3, 4):
        observation, _ = two_colors.reset(seed=seed)
        episodes.append([observation, *(two_colors.step(2)[0] for _ in range(10))])
    np.testing.assert_array_equal(episodes[0], episodes[1])
    assert not np.array_equal(episodes[0][0], episodes[2][0])


def test_models_learn_from_the_oracle_of_two_colors(folder, monkeypatch, capsys):
    """At sizes too small for meaningful results."""
    pytest.importorskip("vizdoom")
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    import rate_two_colors_doom as study

    for name, value in {"COLLECTED": 4, "EPISODES": 3, "ENVS": 2, "STEPS": 200}.items():
        monkeypatch.setattr(study, name, value)
    study.STUDY.run(study.Settings(seeds=1, steps=1, results=folder, data=folder / "made"))
    lines = (folder / "rate_two_colors_doom.jsonl").read_text().splitlines()
    scores = {one["labels"]["model"]: one["scores"] for one in map(json.loads, lines)}
    assert scores.keys() == {"data", "RATE", "DT", "BC-LSTM", "oracle", "random"}
    assert scores["oracle"]["return"] > 8
    taken = {
        kind: sum(x for name, x in scores["oracle"].items() if name.startswith(kind))
        for kind in ("right/", "wrong/")
    }
    assert taken["right/"] > 5 * taken["wrong/"]
    assert "| RATE | 1 |" in capsys.readouterr().out


def test_the_pillar_of_two_colors_tells_its_color(folder, monkeypatch):
    pytest.importorskip("vizdoom")
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    from rate_two_colors import ARGUMENTS
    from rate_two_colors_doom import color_of_pillar

    env = make_host_env("vizdoom:two-colors", ARGUMENTS, {})
    colors = []
    for seed in range(40):
        observation, _ = env.reset(seed=seed)
        names = {x.name for x in env.unwrapped._game.get_state().objects}
        colors.append(
            ("RedPillar", "GreenPillar").index((names & {"RedPillar", "GreenPillar"}).pop())
        )
        assert color_of_pillar(observation) == colors[-1]
    env.close()
    assert 10 < sum(colors) < 30
