"""Training in environments on the host."""

import dataclasses
import time
import types

import jax
import numpy as np
import pytest

from gtrxl_jax.envs.host.stream import HostEnv, HostStream
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.actors import ActorError, Actors, _Actor
from gtrxl_jax.online.config import ActorsConfig, EnvConfig, preset, with_parts
from gtrxl_jax.online.host import HostTrainer, make_trainer
from gtrxl_jax.online.ppo import PPO
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.parallel.placement import make_mesh
from gtrxl_jax.runs.config import EvaluationConfig
from gtrxl_jax.runs.logging.writers import MetricWriter
from gtrxl_jax.runs.loop import train
from gtrxl_jax.runs.plan import plan
from tests import hosts
from tests.programs import compiled_once

pytestmark = pytest.mark.integration


class Kept(MetricWriter):
    """Keeps all metrics."""

    def __init__(self):
        self.lines = []

    def write(self, step, metrics):
        self.lines.append((int(step), {name: np.array(x) for name, x in metrics.items()}))


def small(name, actors=None, params=None, **changes):
    config = dataclasses.replace(
        preset("debug"),
        env=EnvConfig(name, params=params or {}, num_envs=8),
        core=core_config("gtrxl", "debug"),
        actors=ActorsConfig(**(actors or {})),
        evaluation=EvaluationConfig(episodes=4, interval=0),
        total_steps=8 * 4 * 6,
        unroll=4,
        updates_per_iteration=3,
        devices=1,
    )
    parts = {name: changes.pop(name) for name in ("core", "algorithm") if name in changes}
    return with_parts(dataclasses.replace(config, **changes), **parts)


def run(config, folder=None):
    kept = Kept()
    trained = train(make_trainer(config), writers=[kept], folder=folder)
    return kept.lines, trained


IGNORED = ("steps_per_second", "actors/", "evaluation/")


def learned(lines):
    return [
        (step, {k: v for k, v in metrics.items() if not k.startswith(IGNORED)})
        for step, metrics in lines
    ]


def test_actors_of_r2d2_have_the_epsilons_of_their_environments():
    programs = make_trainer(
        small("tests.hosts:counter", {"count": 2}, core="lstm", algorithm="r2d2")
    ).programs()
    epsilons = programs._trainer.algorithm.behavior.epsilons
    (one, rows), (other, others) = programs._shares
    assert [*rows, *others] == list(range(8))
    assert (*one.policy.epsilons, *other.policy.epsilons) == epsilons
    for part in (one, other):
        part.compile(programs.like.params)


@pytest.mark.slow  # those below are quick, of the steps that are learned from
@pytest.mark.parametrize(
    ("parts", "segments", "devices"),
    [
        ({"algorithm": "ppo", "core": "lstm"}, 2, 1),
        ({"algorithm": "ppo"}, 2, 1),
        ({"algorithm": "vmpo", "core": "lstm"}, 1, 8),
        ({"algorithm": "vmpo"}, 1, 1),
        ({"algorithm": "ppo", "core": "lstm"}, 1, 8),
        ({"algorithm": "r2d2", "core": "lstm"}, 1, 1),
    ],
)
def test_equals_jitted_training_without_a_lag(parts, segments, devices):
    params = {"corridor_length": 2}
    options = {"segments": segments, "total_steps": 8 * 4 * 6 * segments, "devices": devices}
    jitted, expected = run(small("TMazePassive-v0", params=params, **options, **parts))
    hosted, found = run(small("tests.hosts:jitted", {"lag": 0}, params=params, **options, **parts))
    for (step, numbers), (_, others) in zip(learned(jitted), learned(hosted), strict=True):
        assert numbers.keys() == others.keys()
        for name, number in numbers.items():
            np.testing.assert_allclose(
                others[name], number, rtol=1e-3, atol=1e-4, err_msg=f"{name} at {step}"
            )
    for one, other in zip(
        jax.tree.leaves(expected.params_per_seed),
        jax.tree.leaves(found.params_per_seed),
        strict=True,
    ):
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-4)


def counters(monkeypatch):
    """Return the list to which the observations of each update are added, `[rows, T + 1, 4]`."""
    taken, take = [], Actors.take

    def record(self):
        experience = take(self)
        taken.append(
            (np.asarray(experience.timesteps.observation), jax.device_get(experience.timesteps))
        )
        return experience

    monkeypatch.setattr(Actors, "take", record)
    monkeypatch.setattr(hosts.Counter, "made", 0)
    monkeypatch.setattr(hosts.Counter, "failed", 0)
    return taken


def require_whole(taken, segments=1):
    """Check that each environment's steps are there once, from the start of an instance on."""
    rows = len(taken[0][0]) // segments
    restarts = 0
    for row in range(rows):
        before = None
        for observations, steps in taken:
            for segment in range(segments):
                seen = observations[row * segments + segment]
                reward = steps.reward[row * segments + segment]
                instance, _, _, count = seen.T
                assert np.all(instance == instance[0])
                np.testing.assert_array_equal(np.diff(count), 1)
                first = steps.first[row * segments + segment]
                np.testing.assert_array_equal(reward, np.where(first, 0, count))
                if before is None or before[0] != instance[0]:
                    assert count[0] == 1
                    assert first[0]
                    assert segment == 0
                    restarts += before is not None
                else:
                    assert count[0] == before[3]
                before = seen[-1]
    return restarts


@pytest.fixture(scope="module")
def compiled():
    """Let the runs of this module share their programs."""

    def key(trainer):
        config = trainer.config
        return trainer.stream.env.name, config.segments, config.actors.count, config.unroll

    with compiled_once(key):
        yield


def counting(actors=None, **params):
    """Return a run of two actors on counters, of six updates."""
    others = {"core": "lstm", "segments": 2, "total_steps": 8 * 8 * 6}
    return small("tests.hosts:counter", {"count": 2} | (actors or {}), params=params, **others)


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_every_step_is_learned_from_once(lag, compiled, monkeypatch):
    taken = counters(monkeypatch)
    run(counting({"lag": lag}))
    assert len(taken) == 6
    assert require_whole(taken, segments=2) == 0


def test_metrics_are_written_when_an_iteration_ends(compiled, monkeypatch):
    taken, updates = counters(monkeypatch), []
    write = Kept.write
    monkeypatch.setattr(Kept, "write", lambda *line: (updates.append(len(taken)), write(*line)))
    run(counting())
    assert updates == [3, 6]


def test_an_environment_that_fails_is_restarted(compiled, monkeypatch, capsys):
    taken = counters(monkeypatch)
    run(counting(raise_at=7, failures=2))
    # All four environments of an actor, in the first rollout, of which nothing was passed on.
    assert require_whole(taken, segments=2) == 0
    run(counting(raise_at=15, failures=4))
    assert require_whole(taken[6:], segments=2) in (4, 8)
    errors = capsys.readouterr().err
    assert errors.count("RuntimeError: the simulator crashed") == 4
    assert "(restart 1 of 3)" in errors


@pytest.mark.parametrize("fault", ["", "exit"])
def test_an_environment_that_fails_too_often_ends_the_run(fault, compiled, monkeypatch):
    counters(monkeypatch)
    with pytest.raises(ActorError, match="actor .: tests.hosts:counter has failed 3 times"):
        run(counting({"restarts": 2}, raise_at=7, failures=100, fault=fault))


def test_a_wrong_shape_is_named(compiled, monkeypatch, capsys):
    counters(monkeypatch)
    run(counting(raise_at=7, failures=1, fault="shape"))
    assert "observation has shape (3,)" in capsys.readouterr().err


def test_an_environment_that_hangs_ends_the_run(compiled, monkeypatch):
    counters(monkeypatch)
    with pytest.raises(TimeoutError, match="has not answered for 0.5 s: raise actors.timeout"):
        run(counting({"timeout": 0.5}, raise_at=7, failures=1, fault="sleep"))


@pytest.fixture
def actors(monkeypatch):
    """Return actors of eight counters that take no step, for the learner to wait for."""

    def make(act, **config):
        monkeypatch.setattr(_Actor, "run", act)
        stream = HostStream((HostEnv("tests.hosts:counter"),), 8)
        share = types.SimpleNamespace(segments=1), range(8)
        made = Actors([share], stream, ActorsConfig(**config), make_mesh(1, 8), 0, 0)
        made.start(jax.random.key(0))
        return made

    return make


@pytest.mark.parametrize(
    ("processes", "created", "message"),
    [
        (False, 0, "has not answered for 0.1 s: raise actors.timeout, or set actors.processes"),
        (True, 0, "has not answered for 0.1 s: raise actors.timeout$"),
        (False, 8, "been creating its environments, .*, for 0.8 s: raise actors.timeout$"),
    ],
)
def test_what_took_too_long_is_named(processes, created, message, actors, monkeypatch):
    def hang(self):
        self._ask(time.sleep, 2.0, created=created)

    if processes:  # of which the actor has ten more seconds to take notice
        clock = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: 10 * clock())
    with pytest.raises(TimeoutError, match=message):
        actors(hang, timeout=0.1, processes=processes).take()


def test_an_actor_that_has_ended_is_noticed(actors):
    with pytest.raises(ActorError, match="tests.hosts:counter has ended its thread"):
        actors(lambda self: None).take()


def test_a_slow_actor_loses_nothing(compiled, monkeypatch):
    taken = counters(monkeypatch)
    run(counting(slow=0.005))
    assert require_whole(taken, segments=2) == 0


def test_values_have_the_statistics_of_the_parameters_that_acted(compiled, monkeypatch):
    counters(monkeypatch)
    convert, weights = PPO.convert_values, []

    def record(acted, learner):
        weights.append((float(acted[0]), float(learner[0])))

    def recorded(self, learner, experience, acted):
        jax.debug.callback(record, acted.weight_N, learner.popart.weight_N, ordered=True)
        return convert(self, learner, experience, acted)

    monkeypatch.setattr(PPO, "convert_values", recorded)
    run(dataclasses.replace(counting({"lag": 2}), unroll=8, total_steps=8 * 16 * 6))
    acted, learner = zip(*weights, strict=True)
    assert len(set(learner)) == 6
    assert acted == (*[learner[0]] * 3, *learner[1:4])


def test_runs_are_repeatable(compiled, monkeypatch):
    one, other = [], []
    for lines in (one, other):
        counters(monkeypatch)
        lines += run(counting(anonymous=True))[0]
    for (_, numbers), (_, others) in zip(learned(one), learned(other), strict=True):
        for name, number in numbers.items():
            np.testing.assert_array_equal(others[name], number, err_msg=name)


def test_a_run_resumes(tmp_path, compiled, monkeypatch):
    counters(monkeypatch)
    config = counting()
    run(dataclasses.replace(config, total_steps=8 * 8 * 3), tmp_path)
    lines, trained = run(config, tmp_path)
    assert [step for step, _ in lines] == [8 * 8 * 6]
    assert trained.result.steps == 8 * 8 * 6


COUNTER = {"name": "tests.hosts:counter"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_seeds": 2}, "num_seeds 2 are trained in one program"),
        (
            {"actors": {"count": 4}, "env": {"num_envs": 4, "tasks": (COUNTER, COUNTER)}},
            "does not divide over actors.count 4 and 2 tasks: use a multiple of 8",
        ),
        ({"env": {"stagger": True}}, "env.stagger is of jitted environments"),
        ({"env": {"trial": 2}}, "env.trial is of jitted environments"),
        (
            {"env": {"name": "CartPole-v1", "tasks": ({}, COUNTER)}},
            "env.tasks: tests.hosts:counter is on the host, and CartPole-v1 is not",
        ),
        ({"env": {"tasks": ({}, {"name": "CartPole-v1"})}}, "env.tasks: CartPole-v1 is jitted"),
        ({"env": {"name": "gymnasium:CartPole-v9"}}, "CartPole"),
        ({"env": {"name": "gymnasium:os:CartPole-v1"}}, "would import a module"),
        ({"env": {"name": "gymnasium:CartPole-v1", "params": {"wind": 3}}}, "env.params"),
    ],
)
def test_bad_settings_are_named(changes, message):
    env = COUNTER | {"num_envs": 8} | changes.get("env", {})
    config = dataclasses.replace(
        small("tests.hosts:counter"),
        env=EnvConfig(**env),
        actors=ActorsConfig(**changes.get("actors", {})),
        num_seeds=changes.get("num_seeds", 1),
    )
    with pytest.raises(ValueError, match=message):
        make_trainer(config)


def test_where_environments_step_decides_the_trainer():
    assert type(make_trainer(small("tests.hosts:counter"))) is HostTrainer
    assert type(make_trainer(small("TMazePassive-v0"))) is OnlineTrainer
    # With tasks of their own names, env.name is of none of them.
    tasks = EnvConfig("TMazePassive-v0", num_envs=8, tasks=(COUNTER, COUNTER))
    assert type(make_trainer(small("TMazePassive-v0", env=tasks))) is HostTrainer


@pytest.mark.slow
def test_a_plan_is_of_the_learner():
    """Its program exchanges gradients, and has no environments."""
    pytest.importorskip("libtpu")
    made = plan(make_trainer(small("tests.hosts:counter", devices=0)), "v5e:2x2")
    assert {"learn"} <= made.seconds.keys()
    assert not {"act", "env"} & made.seconds.keys()
    assert made.exchanges
    assert made.steps_per_second is None
