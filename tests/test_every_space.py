"""Every kind of space in training, evaluation, acting, export, collected data and offline runs."""

import itertools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.acting.stepping import export_step
from gtrxl_jax.collection import CollectionConfig, CollectionEnvConfig, collect_dataset
from gtrxl_jax.data import check, dataset_spaces, datasets, minari, sample_segments
from gtrxl_jax.data.loader import load_segments
from gtrxl_jax.envs.registry import register_env
from gtrxl_jax.loading import evaluate, load
from gtrxl_jax.offline.config import preset
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs.loop import train
from gtrxl_jax.specs import action_spec, observation_spec, require_values
from tests.data.sets import LENGTHS, make_set
from tests.jobs import changed, small_job
from tests.spaces import ACTIONS, OBSERVATIONS, Chamber, draw
from tests.tiers import slow_except

NAMES = [f"{o}, {a}" for o, a in zip(OBSERVATIONS, itertools.cycle(ACTIONS), strict=False)]
NAMES[list(OBSERVATIONS).index("nested")] = "nested, nested"

OFFLINE = changed(
    preset("debug"),
    env__name="",
    evaluation__lengths=(),
    model__name="bc-mlp",
    unroll=2,
    total_updates=2,
    updates_per_iteration=2,
)


def spaces_of(name):
    """Return the spaces of a pair of names, after registering an environment with these."""
    first, second = name.split(", ")
    observed, acted = OBSERVATIONS[first], ACTIONS[second]
    register_env(f"Chamber {name}", CHAMBERS.setdefault(name, lambda: Chamber(observed, acted)))
    return observed, acted


CHAMBERS = {}


@pytest.mark.integration
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_every_command(name, tmp_path):
    """The reward of the environment is NaN for an action outside its space, which ends training."""
    observed, acted = spaces_of(name)
    env = f"Chamber {name}"
    job = small_job("lstm", devices=1, env__name=env, env__params={}, total_steps=112)
    train(OnlineTrainer(job), folder=tmp_path / "run")
    scores, loaded = evaluate(tmp_path / "run", 4)
    assert scores["length"].mean == 3
    assert np.isfinite(scores["return"].mean)

    actor = loaded.actor()
    observation = jax.device_get(draw(observed, jax.random.key(0)))
    require_values(acted, actor(observation), "action")
    step = export_step(loaded.policy, loaded.params, observed, acted, ["cpu"])
    step = jax.export.deserialize(step.serialize())
    (state, *_), _ = jax.tree.unflatten(step.in_tree, step.in_avals)
    state = [np.zeros(array.shape, array.dtype) for array in state]
    _, action = step.call(state, observation, np.float32(0), np.bool_(True), np.uint32(0))
    require_values(acted, jax.device_get(action), "action")

    collect_dataset(
        CollectionConfig(
            env=CollectionEnvConfig(num_envs=4), policy=str(tmp_path / "run"), episodes=6
        ),
        tmp_path / "data",
    )
    whole = datasets.load(tmp_path / "data")
    check(whole)
    assert whole.length.tolist() == [3] * 6

    config = changed(OFFLINE, data__path=str(tmp_path / "data"))
    trained = train(OfflineTrainer(config), folder=tmp_path / "offline")
    assert trained.result.steps == 2
    require_values(acted, load(tmp_path / "offline").actor()(observation), "action")


def test_runs_say_how_they_read_arrays():
    for name, line in {
        "dict, multi-binary": "observation['a'] [9, 8] is read as an image [H, W]",
        "frames-first, box-table": "observation [4, 8, 9] is read as an image [C, H, W]",
        "multi-discrete-table, tuple": "observation [2, 2] is read as a vector",
    }.items():
        spaces_of(name)
        env = {"env__name": f"Chamber {name}", "env__params": {}}
        (note,) = OnlineTrainer(small_job("lstm", **env)).notes
        assert note.startswith(line)
        (config, spaces) = changed(OFFLINE, model__name="rate"), spaces_of(name)
        trainer = OfflineTrainer(config, make_set(LENGTHS[:1], dataset_spaces(*spaces)))
        assert trainer.notes[0].startswith(line)
    given = changed(small_job("lstm", **env), agent__image_axes="hwc")
    assert OnlineTrainer(given).notes[0].startswith("observation [2, 2]")
    assert OnlineTrainer(small_job("lstm")).notes == []


@pytest.mark.parametrize("how", ["act", "learn"])
def test_data_given_in_python_are_checked(how):
    whole = make_set(LENGTHS[:1], dataset_spaces(OBSERVATIONS["discrete"], ACTIONS["discrete"]))
    name = {"act": "actions", "learn": "observations"}[how]
    spoiled = whole.replace(**{name: getattr(whole, name) + 3})
    with pytest.raises(
        ValueError, match=rf"episode 0, step 0: {name} is \d, outside Discrete\(3\)"
    ):
        OfflineTrainer(OFFLINE, spoiled).target_return  # noqa: B018


@pytest.mark.parametrize("acted", slow_except(ACTIONS, ["discrete", "box", "nested"]))
def test_streamed_segments_equal_those_in_memory(acted, tmp_path):
    """Both have actions in the layout of the policy's, with 0 in padding."""
    space = ACTIONS[acted]
    whole = make_set(LENGTHS[:3], dataset_spaces(OBSERVATIONS["tuple"], space))
    minari.save(whole, tmp_path / "set")
    key = jax.random.key(0)
    with datasets.DatasetReader(tmp_path / "set") as reader:
        batches = load_segments(reader, key, 4, 2, 3)
        streamed = next(batches)
        batches.close()
    sampled = sample_segments(jax.device_put(whole), jax.random.fold_in(key, 0), 4, 2, 3)
    jax.tree.map(np.testing.assert_array_equal, streamed.actions, sampled.actions)
    spec = action_spec(space)
    assert jax.tree.structure(sampled.actions) == jax.tree.structure(spec.zeros())
    spec.features(sampled.actions, jnp.float32)
    for x in jax.tree.leaves(sampled.actions):
        assert not np.any(np.asarray(x)[~np.asarray(sampled.mask)])


def test_pairs_have_all_spaces():
    pairs = [name.split(", ") for name in NAMES]
    assert {pair[0] for pair in pairs} == set(OBSERVATIONS)
    assert {pair[1] for pair in pairs} == set(ACTIONS)
    for space in OBSERVATIONS.values():
        observation_spec(space)
