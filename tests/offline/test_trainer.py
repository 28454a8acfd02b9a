"""The offline trainer: gradients, curriculum, evaluation and config errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.acting.collecting import collect
from gtrxl_jax.acting.scripted import RandomPolicy
from gtrxl_jax.data.outcomes import Outcomes
from gtrxl_jax.data.windows import sample_segments
from gtrxl_jax.envs import make_env
from gtrxl_jax.envs.faults import score_names
from gtrxl_jax.offline.config import OfflineConfig, from_json, preset, to_json
from gtrxl_jax.offline.environments import trajectories_of
from gtrxl_jax.offline.imitation import Chunk
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.runs.loop import train
from gtrxl_jax.runs.programs import make_iteration
from gtrxl_jax.validation import validate
from tests.jobs import changed  # registers its environments too
from tests.tiers import slow_except

pytestmark = pytest.mark.integration

DEBUG = preset("debug")
QUICK = {"model__name": "bc-lstm"}
"""A model that passes a memory between segments and compiles faster than RATE."""


@pytest.fixture(scope="module")
def trajectories():
    return trajectories_of(changed(DEBUG, curriculum=True))


def make(trajectories, **changes):
    return OfflineTrainer(changed(DEBUG, **changes), trajectories)


def start(trainer):
    return jax.jit(trainer.init)(0)


def learn(trainer, learner, batch):
    """Return the learner and the metrics after an update."""
    return jax.jit(trainer.algorithm.update)(learner, batch, jax.random.key(1))


def first_learner(trainer):
    return start(trainer).learner


def data_of(trainer):
    """Return the data of the first iteration, and the windows that are held out."""
    return next(trainer.feed(1, trainer.mesh()))[1]


def batch_of(trainer):
    (whole, of_stages), _ = data_of(trainer)
    key = jax.random.key(3)
    return sample_segments(whole, key, 8, 2, 4, episodes=of_stages[-1])


def gradients(trainer, batch, weigh):
    """Return the gradient of the trainer's loss on all segments of a batch, modified by `weigh`.

    `weigh` maps the segments to some whose mask keeps the relevant steps.
    """
    state, algorithm = start(trainer), trainer.algorithm
    segments = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), batch)
    chunk = Chunk(weigh(segments), jnp.zeros(segments.mask.shape, bool))
    keys = jax.random.split(jax.random.key(0), segments.mask.shape[0])
    memory = algorithm.initial_memory(state.params, 8)

    def loss(params):
        return algorithm.loss(params, memory, chunk, keys, True)[0]

    return jax.jit(jax.grad(loss))(state.params)


@pytest.mark.slow  # it learns
def test_trainer_overfits_one_batch(trajectories):
    trainer = make(trajectories, optimizer__learning_rate=3e-3, optimizer__warmup=0.0)
    state, batch = start(trainer), batch_of(trainer)
    learner, update = state.learner, jax.jit(trainer.algorithm.update)
    losses = []
    for n in range(30):
        learner, metrics = update(learner, batch, jax.random.key(n))
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.3 * losses[0]
    assert metrics["accuracy"] > 0.8


@pytest.mark.slow
def test_remat_preserves_gradients(trajectories):
    """Recomputation uses the same dropout. (Adam's first step would amplify rounding errors.)"""
    batch = batch_of(make(trajectories))
    found = []
    for remat in (True, False):
        trainer = make(trajectories, remat=remat, model__dropout=0.2)
        found.append(gradients(trainer, batch, lambda chunk: chunk))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), *found)


@pytest.mark.parametrize(
    ("bptt", "steps"), slow_except([(None, 1), (1, 1), (0, 2)], {(1, 1), (0, 2)})
)
def test_one_optimizer_step_per_chunk(trajectories, bptt, steps):
    trainer = make(trajectories, bptt=bptt, **QUICK)
    learner, _ = learn(trainer, first_learner(trainer), batch_of(trainer))
    assert learner.optimizer[1].count == steps
    assert learner.updates == 1


def test_chunk_of_padding_is_skipped(trajectories):
    """Whatever is after the end of all windows: neither momentum nor weight decay moves."""
    trainer = make(trajectories, bptt=0, **QUICK)
    batch = batch_of(trainer)
    padded = batch.replace(mask=batch.mask.at[:, 1].set(False))
    first = jax.tree.map(lambda x: x[:, :1], batch)
    states, metrics = zip(
        *(learn(trainer, first_learner(trainer), b) for b in (padded, first)), strict=True
    )
    jax.tree.map(np.testing.assert_array_equal, states[0].params, states[1].params)
    jax.tree.map(np.testing.assert_array_equal, states[0].optimizer, states[1].optimizer)
    jax.tree.map(np.testing.assert_array_equal, *metrics)


def test_continuous_actions_have_an_error_in_their_units():
    """They are from -1 to 1, and the model's are nearly 0."""
    env, params = make_env("Echo-v0")
    acting = RandomPolicy(env.action_space(params))
    data = collect(env, params, acting, 64, jax.random.key(0))
    trainer = make(data, env__name="Echo-v0", evaluation__lengths=(), **QUICK)
    _, metrics = learn(trainer, first_learner(trainer), batch_of(trainer))
    assert {"error", "error/last_step"} <= set(metrics)
    assert not [name for name in metrics if name.startswith("accuracy")]
    assert 0.3 < metrics["error"] < 0.9


@pytest.mark.parametrize("bptt", slow_except([None, 0], [0]))
def test_valve_learns_only_through_connected_segments(trajectories, bptt):
    """With bptt 0, the gradient of the valve is exactly 0."""
    trainer = make(trajectories, bptt=bptt, optimizer__weight_decay=1e-30)
    before = first_learner(trainer)
    after, _ = learn(trainer, before, batch_of(trainer))

    def change(name):
        """Return the largest change of a part's parameters in an update without decay."""
        old, new = before.params[name], after.params[name]
        moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), new, old)
        return max(map(float, jax.tree.leaves(moved)))

    assert change("blocks_0") > 1e-6
    assert change("valve") > 1e-6 if bptt is None else change("valve") == 0


def test_first_segment_does_not_train_valve(trajectories):
    """Its loss trains the initial memory tokens, regardless of the horizon."""
    whole = make(trajectories)
    batch = batch_of(whole)

    def first_only(chunk):
        return chunk.replace(mask=chunk.mask.at[1:].set(False))

    gradient = gradients(whole, batch, first_only)
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(gradient["valve"]))
    assert np.any(gradient["initial_tokens"] != 0)


def test_padding_does_not_affect_update(trajectories):
    """The last step of windows of 8 steps is padding, since the episodes have 7 actions."""
    trainer = make(trajectories, **QUICK)
    batch = batch_of(trainer)
    assert not np.any(batch.mask[:, -1, -1])
    noise = jnp.where(batch.mask[..., None], batch.observations, 9.0)
    batches = batch, batch.replace(observations=noise)
    found = [learn(trainer, first_learner(trainer), b) for b in batches]
    jax.tree.map(np.testing.assert_array_equal, *(learner.params for learner, _ in found))
    assert np.all(np.isfinite(jax.tree.leaves(found[0][1])))


def test_curriculum_stages(trajectories):
    trainer = make(trajectories, curriculum=True, total_updates=40, **QUICK)
    stages, (data, *_) = zip(*trainer.feed(1, trainer.mesh()), strict=True)
    assert stages == (0, 0, 1, 1)
    (whole, of_stages), _ = data
    assert [int(np.max(whole.length[index])) for index in of_stages] == [3, 7]
    assert [len(index) for index in of_stages] == [32, 64]
    state = start(trainer)
    for stage in (0, 1):
        state, metrics = jax.jit(make_iteration(trainer, stage))(state, data)
        assert np.isfinite(metrics["loss"])
    assert state.update == 20


@pytest.mark.parametrize(
    ("iterations", "stages"), [(1, [2]), (2, [1, 2]), (3, [0, 1, 2]), (5, [0, 0, 1, 1, 2])]
)
def test_curriculum_ends_with_all_segments(iterations, stages):
    config = changed(
        DEBUG, curriculum=True, segments=3, total_updates=iterations, updates_per_iteration=1
    )
    assert [config.stage(n) for n in range(1, iterations + 1)] == stages


def test_curriculum_holds_data_once(trajectories):
    trainer = make(trajectories, curriculum=True, devices=1)
    held = sum(x.nbytes for x in jax.tree.leaves(data_of(trainer)))
    given = sum(x.nbytes for x in jax.tree.leaves(trajectories))
    assert held == given + 4 * (32 + 64)


@pytest.mark.slow
def test_memoryless_model_sees_all_segments(trajectories):
    trainer = make(trajectories, model__name="dt")
    assert trainer.model.context == 8
    _, metrics = jax.jit(make_iteration(trainer, 0))(start(trainer), data_of(trainer))
    assert np.isfinite(metrics["loss"])
    assert "memory/change" not in metrics


@pytest.mark.slow
def test_gradient_accumulation(trajectories):
    """Two updates with accumulate 2 take one step with the mean gradient."""
    trainer = make(trajectories, optimizer__accumulate=2, optimizer__warmup=0.0, **QUICK)
    before, batch = first_learner(trainer), batch_of(trainer)
    once, _ = learn(trainer, before, batch)
    jax.tree.map(np.testing.assert_array_equal, once.params, before.params)
    twice, _ = learn(trainer, once, batch)
    single = make(trajectories, optimizer__warmup=0.0, **QUICK)
    expected, _ = learn(single, first_learner(single), batch)
    scale = float(trainer.algorithm.schedule(1) / single.algorithm.schedule(0))
    jax.tree.map(
        lambda a, b, c: np.testing.assert_allclose(a - c, scale * (b - c), atol=1e-6),
        twice.params,
        expected.params,
        before.params,
    )


def test_evaluation_at_every_length(trajectories):
    trainer = make(trajectories, evaluation__lengths=(6, 9))
    scores = jax.jit(trainer.evaluate)(start(trainer).params, jax.random.key(0))
    names = {f"{s}/{n}" for s in ("success", "return", "length") for n in (6, 9)}
    assert set(score_names(scores)) == names
    assert scores["length/9"].shape == (16,)
    assert np.all((scores["length/6"] <= 6) & (scores["length/9"] <= 9))


@pytest.mark.parametrize(
    ("changes", "steps"),
    [({"unroll": 1, "segments": 1}, 1), ({"evaluation__lengths": (9, 2)}, 2)],
)
def test_episodes_that_are_too_short_are_named(trajectories, changes, steps):
    message = (
        f"env.name TMazePassive-v0 has no episodes of {steps} steps, .*: increase unroll, segments "
        "or evaluation.lengths"
    )
    with pytest.raises(ValueError, match=message):
        make(trajectories, **changes)


def test_wrappers_of_jitted_environments_are_refused():
    message = "env.wrappers are of environments on the host, unlike TMazePassive-v0: omit them"
    with pytest.raises(ValueError, match=message):
        OfflineTrainer(changed(DEBUG, env__wrappers={"limit": 9}))


def test_trials_have_no_lengths():
    config = changed(DEBUG, env__params={"trial": 2})
    with pytest.raises(ValueError, match="evaluation.lengths is not supported by TMazePassive-v0"):
        OfflineTrainer(config)
    trainer = OfflineTrainer(changed(config, evaluation__lengths=()))
    assert trainer.environment == ("TMazePassive-v0", {"trial": 2})


def test_default_target_return(trajectories):
    assert make(trajectories).policy.target_return == 1.0
    assert make(trajectories, evaluation__target_return=0.25).policy.target_return == 0.25


@pytest.mark.parametrize(
    ("returns", "length", "terminated", "expected"),
    [
        # Pendulum: all episodes end by the time limit, and some were cut.
        ([-200.0] * 20 + [-4.0] * 3, [200] * 20 + [4] * 3, [0] * 23, -200.0),
        # CartPole: a good episode is as long as the limit.
        ([9.0, 30.0, 500.0, 20.0], [9, 30, 500, 20], [1, 1, 0, 0], 500.0),
        # A task with a way to fail: cut episodes have not failed yet.
        ([0.0, -1.0, -1.0, 0.0], [3, 9, 7, 5], [0, 1, 1, 0], -1.0),
        # One that ends by success, later than the cuts.
        ([-8.0, -9.0, -1.0, -1.0], [8, 9, 1, 1], [1, 1, 0, 0], -8.0),
        # Demonstrations of any length, none of which terminates: they may all be whole.
        ([5.0, 7.0, 3.0], [50, 70, 90], [0, 0, 0], 7.0),
        ([5.0], [50], [0], 5.0),
    ],
)
def test_episodes_that_were_cut_do_not_set_the_target(returns, length, terminated, expected):
    outcomes = Outcomes(
        returns_E=np.array(returns),
        largest_E=np.abs(returns),
        length_E=np.array(length, np.int32),
        terminated_E=np.array(terminated, bool),
        lacks_action_E=np.zeros(len(returns), bool),
    )
    assert outcomes.best_tenth == expected


def test_target_return_of_data_with_cut_episodes(trajectories):
    """The oracle's returns are 1; what is cut has 0, or, with these rewards, 5."""
    cut = np.arange(trajectories.num_episodes) % 4 == 0
    data = trajectories.replace(
        terminated=trajectories.terminated & ~cut,
        length=np.where(cut, 1, trajectories.length).astype(np.int32),
        rewards=np.where(cut[:, None], np.float32(5), trajectories.rewards),
    )
    assert make(data).target_return == 1.0


def test_trainer_is_created_without_data(monkeypatch):
    """Neither are episodes played, nor is a dataset opened."""
    for name in ("collect", "DatasetReader"):
        monkeypatch.delattr(f"gtrxl_jax.offline.environments.{name}")
    for path in ("", "nowhere"):
        trainer = OfflineTrainer(changed(DEBUG, data__path=path))
        jax.eval_shape(trainer.init, 0)
        with pytest.raises(NameError):
            _ = trainer.config_json


def test_target_return_is_known_to_compiled_programs():
    """Its first use may be while a program is traced."""
    trainer = OfflineTrainer(changed(DEBUG, evaluation__lengths=(8,), model__name="bc-mlp"))
    scores = jax.jit(trainer.evaluate)(start(trainer).params, jax.random.key(0))
    assert scores["return/8"].shape == (16,)
    assert trainer.target_return == 1.0
    assert trainer.config.evaluation.target_return is None
    assert from_json(trainer.config_json).evaluation.target_return == 1.0


@pytest.mark.usefixtures("unchecked")
def test_environment_without_oracle_raises():
    config = changed(DEBUG, env__name="MemoryChain-v0", evaluation__lengths=(), segments=2)
    with pytest.raises(ValueError, match="oracle"):
        train(OfflineTrainer(config))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unroll": 0}, "unroll must be at least 1"),
        ({"segments": 4, "bptt": 2}, "bptt 2"),
        ({"evaluation__actions": "best"}, "evaluation.actions"),
        ({"data__start": "middle"}, "data.start"),
        ({"model__valve": "ca"}, "model.valve"),
        ({"optimizer__beta_2": 1.5}, "optimizer.beta_2 must be at most 1"),
        ({"env__name": "TMaze"}, "TMazePassive-v0"),
        ({"env__name": "MemoryChain-v0", "evaluation__lengths": (9,)}, "evaluation.lengths"),
        ({"evaluation__lengths": (2,)}, "at least 3"),
        ({"data__path": "nowhere"}, "nowhere"),
        ({"data__stream": True, "data__path": "nowhere"}, "nowhere"),
        ({"data__stream": True}, "data.stream requires .* set data.path"),
        ({"data__stream": True, "data__path": "x", "num_seeds": 2}, "num_seeds is 2: run the"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_invalid_configs_raise(changes, words, monkeypatch):
    monkeypatch.setattr("gtrxl_jax.runs.programs.Programs.init", None)
    with pytest.raises((ValueError, FileNotFoundError), match=words) as error:
        train(OfflineTrainer(changed(DEBUG, **changes)))
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("unchecked")
def test_trajectories_of_another_environment_raise(trajectories):
    with pytest.raises(ValueError, match="the data given have .*, but env.name CartPole-v1 has"):
        make(trajectories, env__name="CartPole-v1", evaluation__lengths=())


def test_given_trajectories_are_known(trajectories):
    """Those of the oracle are known by the config."""
    given, generated = (OfflineTrainer(DEBUG, trajectories, generated=x) for x in (False, True))
    recorded = from_json(given.config_json)
    assert recorded.data.fingerprint
    assert not from_json(generated.config_json).data.fingerprint
    other = OfflineTrainer(recorded, trajectories.replace(rewards=2 * trajectories.rewards))
    with pytest.raises(ValueError, match="the data given are not the run's data"):
        data_of(other)


@pytest.mark.parametrize("model", [{"name": "dt"}, {"name": "elmur"}, {"memory_tokens": 0}])
def test_noise_requires_memory_tokens(model):
    noisy = changed(DEBUG, evaluation__memory_noise=True)
    validate(noisy)
    without = changed(noisy, **{f"model__{field}": value for field, value in model.items()})
    with pytest.raises(ValueError, match="evaluation.memory_noise replaces memory tokens, and mo"):
        validate(without)


def test_curriculum_without_short_episodes_raises():
    config = DEBUG
    with pytest.raises(ValueError, match="curriculum requires episodes of at most 4 steps"):
        data_of(OfflineTrainer(changed(config, curriculum=True), trajectories_of(config)))


@pytest.mark.parametrize(("batch_size", "names_it"), [(32, False), (33, True)])
def test_curriculum_names_stages_with_few_episodes(trajectories, capsys, batch_size, names_it):
    """The stages have 32 and 64 episodes."""
    data_of(make(trajectories, curriculum=True, batch_size=batch_size, devices=1))
    line = "stage 1 of the curriculum trains on 32 of 64 episodes, those of at most 4 steps"
    assert (line in capsys.readouterr().err) == names_it
    data_of(make(trajectories, curriculum=False, batch_size=65, devices=1))
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"curriculum": True}, "4 steps, and the curriculum leaves them out"),
        ({}, "4 steps, of which only the first are trained on, as data.start is episode"),
        ({"data__start": "covering"}, ""),
        ({"segments": 2}, ""),
    ],
)
def test_longer_episodes_are_named(trajectories, capsys, changes, line):
    data_of(make(trajectories, **{"segments": 1} | changes, devices=1))
    said = capsys.readouterr().err
    if line:
        assert f"32 of 64 episodes have more than segments * unroll = {line}" in said
    else:
        assert not said


def test_config_round_trips():
    config = changed(DEBUG, evaluation__lengths=(4, 8), bptt=0, model__cache_size=3)
    assert from_json(to_json(config)) == config
    with pytest.raises(ValueError, match="offline"):
        from_json('{"kind": "online"}')
    validate(OfflineConfig())
