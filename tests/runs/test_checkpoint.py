import json
import logging
import resource
import shutil
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from gtrxl_jax.runs import checkpoint
from gtrxl_jax.runs.arrays import by_name
from gtrxl_jax.runs.checkpoint import (
    SaveError,
    Saver,
    UnusableError,
    available_steps,
    newest_record,
    set_aside,
)
from gtrxl_jax.runs.directory import lock_folder
from gtrxl_jax.runs.params import params_of
from tests.comparison import assert_same
from tests.runs.counter import Counter

CONFIG = json.dumps({"kind": "other", "seed": 1, "core": {"name": "gtrxl", "layers": 4}})


class Statistics(NamedTuple):
    mean: jax.Array
    steps: jax.Array


@struct.dataclass
class State:
    params: dict
    optimizer: optax.OptState
    memory: list
    statistics: Statistics
    key: jax.Array
    nothing: None = None


def make_state(width=8, seed=0):
    """Create a state with every container and kind of array that occurs in a run."""
    network = nn.Sequential([nn.Dense(width), nn.Dense(3)])
    params = network.init(jax.random.key(seed), jnp.zeros((1, 5)))
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adam(optax.constant_schedule(0.1))
    )
    return State(
        params=params,
        optimizer=optimizer.init(params),
        memory=[jnp.ones((2, width), jnp.bfloat16), jnp.zeros((2, 0, width)), jnp.ones(2, bool)],
        statistics=Statistics(np.full(3, 0.1, np.float32), jnp.int32(7)),
        key=jax.random.split(jax.random.key(seed), 4),
    )


def save(folder, step, state, config, **settings):
    with lock_folder(folder, config), Saver(folder, **settings) as saver:
        saver.save(step, state)
        saver.wait()


def restore(folder, like):
    state, _ = checkpoint.restore(folder, like)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    return state


def read(folder, step):
    arrays, record = checkpoint.read_arrays(folder, lambda path: True, step=step)
    assert record["step"] == step
    return arrays


@pytest.fixture
def run(tmp_path):
    return tmp_path / "runs" / "a"


@pytest.mark.parametrize("abstract", [True, False])
def test_round_trip(run, abstract):
    state = make_state()
    save(run, 10, state, CONFIG)
    like = jax.eval_shape(make_state) if abstract else make_state(seed=1)
    assert_same(restore(run, like), state)


def test_part_of_state_is_read_alone(run):
    state = make_state()
    save(run, 10, state, CONFIG)
    arrays, record = checkpoint.read_arrays(run, lambda path: path.startswith("params/"))
    assert record["step"] == 10
    assert_same({f"params/{name}": x for name, x in by_name(state.params).items()}, arrays)
    assert checkpoint.read_arrays(run, lambda path: False)[0] == {}


def test_restored_keys_draw_equal_numbers(run):
    for impl in ["threefry2x32", "rbg"]:
        key = jax.random.key(3, impl=impl)
        save(run / impl, 1, {"key": key}, CONFIG)
        restored = restore(run / impl, {"key": jax.random.key(0, impl=impl)})["key"]
        np.testing.assert_array_equal(jax.random.normal(restored, 3), jax.random.normal(key, 3))


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (jax.random.key, jax.random.PRNGKey),
        (jax.random.PRNGKey, jax.random.key),
        (
            lambda seed: jax.random.key(seed, impl="rbg"),
            lambda seed: jax.random.key(seed, impl="unsafe_rbg"),
        ),
    ],
)
def test_keys_of_other_type_raise(run, there, here):
    save(run, 1, {"key": there(0)}, CONFIG)
    with pytest.raises(ValueError, match="key in .* is a PRNG key of type"):
        restore(run, {"key": here(0)})


def test_float64_is_kept(run, x64):
    value = jnp.array([np.pi, 1 / 3])
    assert value.dtype == jnp.float64
    save(run, 1, {"x": value}, CONFIG)
    np.testing.assert_array_equal(restore(run, {"x": value})["x"], value)


def test_newest_is_restored_and_oldest_deleted(run):
    for step in [1, 2, 3, 10]:
        save(run, step, {"step": jnp.int32(step)}, CONFIG, keep=2)
    like = {"step": jnp.int32(0)}
    assert available_steps(run) == [3, 10]
    assert restore(run, like)["step"] == 10
    assert read(run, 3)["step"] == 3
    with pytest.raises(ValueError, match=r"no checkpoint of step 2; it has \[3, 10\]"):
        read(run, 2)


def test_arrays_are_placed_as_requested(run):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    value = jnp.arange(16.0).reshape(8, 2)
    keys = jax.random.split(jax.random.key(0), 8)
    state = {"x": jax.device_put(value, sharded), "key": jax.device_put(keys, sharded)}
    save(run, 1, state, CONFIG)
    for wanted in [sharded, whole]:
        restored = restore(run, jax.device_put(state, wanted))
        assert_same(restored, state)
        assert restored["x"].sharding.is_equivalent_to(wanted, 2)
        assert restored["key"].sharding.is_equivalent_to(wanted, 1)
    shape = {"x": jax.ShapeDtypeStruct((8, 2), jnp.float32), "key": jax.eval_shape(lambda: keys)}
    restored = restore(run, shape)
    assert_same(restored, state)
    assert restored["x"].devices() == restored["key"].devices() == {jax.devices()[0]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: make_state(width=16),
            r"in 10 of \d+ arrays: params/params/layers_0/bias is float32\[8\] there and "
            r"float32\[16\] here; build the agent from .*config.json, or restore another run",
        ),
        (
            lambda s: s.replace(params={"params": {"layers_0": s.params["params"]["layers_0"]}}),
            r"in 2 of \d+ arrays: params/params/layers_1/\w+ is .* there and absent here",
        ),
        (
            lambda s: s.replace(params=s.params | {"gate": jnp.ones(2)}),
            r"params/gate is absent there and float32\[2\] here",
        ),
        (
            lambda s: s.replace(statistics=s.statistics._replace(steps=jnp.float32(0))),
            r"statistics/steps is int32\[\] there and float32\[\] here",
        ),
        (
            lambda s: s.replace(memory=[s.memory[0], jnp.zeros((2, 1, 8)), s.memory[2]]),
            r"memory/1 is absent there and float32\[2, 1, 8\] here",
        ),
        (
            lambda s: s.replace(memory=[jnp.zeros((2, 0)), *s.memory[1:]]),
            r"memory/0 is bfloat16\[2, 8\] there and float32\[2, 0\] here",
        ),
        (
            lambda s: s.replace(key=s.key[:2]),
            r"key is uint32\[4, 2\] there and uint32\[2, 2\] here",
        ),
    ],
)
def test_other_architecture_raises(run, change, message):
    save(run, 1, make_state(), CONFIG)
    with pytest.raises(ValueError, match=message) as error:
        restore(run, change(make_state()))
    assert "\n" not in str(error.value)


@struct.dataclass
class Half:
    params: jax.Array
    rest: jax.Array


class Halves(Counter):
    def __init__(self, init):
        super().__init__()
        self._init = init

    def init(self, seed, given=None):
        return self._init()

    def sampled_hyperparameters(self, state):
        return {"rest": state.rest}


@pytest.mark.parametrize("there", [False, True])
def test_other_precision_is_converted_for_parameters_alone(run, there):
    def make():
        return Half(jnp.linspace(0, 1, 5), jnp.int32(1))

    with jax.enable_x64(there):
        save(run, 1, make(), CONFIG)
    with jax.enable_x64(not there):
        like = jax.eval_shape(make)
        (params,), step, drawn, units = params_of(Halves(make), run)
        assert (params.dtype, step, drawn) == (like.params.dtype, 1, {"rest": [1]})
        assert units == [None]
        np.testing.assert_allclose(params, np.linspace(0, 1, 5), rtol=1e-6)
        message = (
            r"another precision: params is float\d\d\[5\] there and float\d\d\[5\] here; set J"
        )
        with pytest.raises(ValueError, match=message):
            restore(run, like)
        wrong = Halves(lambda: Half(jnp.arange(5), jnp.int32(1)))
        with pytest.raises(ValueError, match="another architecture in 1 of 1 arrays"):
            params_of(wrong, run)


def test_steps_must_increase(run):
    save(run, 2, {"x": jnp.ones(2)}, CONFIG)
    before = sorted(run.rglob("*"))
    for step in [1, 2]:
        with pytest.raises(ValueError, match=f"a checkpoint of step 2, and {step} does not come"):
            save(run, step, {"x": jnp.zeros(2)}, CONFIG)
    assert sorted(run.rglob("*")) == before
    np.testing.assert_array_equal(restore(run, {"x": jnp.zeros(2)})["x"], 1)


def test_incomplete_checkpoint_is_ignored_and_removed(run):
    save(run, 1, {"x": jnp.ones(2)}, CONFIG)
    half = run / "checkpoints" / "2.orbax-checkpoint-tmp"
    shutil.copytree(run / "checkpoints" / "1", half)
    assert available_steps(run) == [1]
    np.testing.assert_array_equal(restore(run, {"x": jnp.zeros(2)})["x"], 1)
    assert half.exists()  # another process may be writing it: only the run itself removes it
    save(run, 2, {"x": 2 * jnp.ones(2)}, CONFIG)
    assert not half.exists()
    np.testing.assert_array_equal(restore(run, {"x": jnp.zeros(2)})["x"], 2)


def test_missing_checkpoint_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        restore(tmp_path / "missing", {"x": jnp.zeros(2)})
    with lock_folder(tmp_path / "new", CONFIG):
        pass
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        restore(tmp_path / "new", {"x": jnp.zeros(2)})
    assert available_steps(tmp_path / "new") == []


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ({"a": {"name": "gtrxl"}}, TypeError, "a/name is not an array"),
        ({"f": jnp.sin}, TypeError, "f is not an array"),
        ({"a": {"b": 1.0}, "a/b": 2.0}, ValueError, "two arrays of the state are called a/b"),
    ],
)
def test_invalid_state_raises(run, state, error, message):
    with pytest.raises(error, match=message):
        save(run, 1, state, CONFIG)
    assert available_steps(run) == []


def test_saving_and_restoring_print_nothing(run, capfd, caplog):
    with caplog.at_level(logging.INFO):
        save(run, 1, make_state(), CONFIG)
        restore(run, jax.eval_shape(make_state))
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_state_may_be_donated_after_save(run):
    """The state is written as it was when saved, even if its buffers have been reused."""
    overwrite = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = jnp.zeros(500_000)
    with lock_folder(run, CONFIG), Saver(run, keep=9) as saver:
        for step in range(1, 4):
            saver.save(step, {"x": x})
            x = overwrite(x)
    for step in range(1, 4):
        np.testing.assert_array_equal(read(run, step)["x"], step - 1)


def test_best_is_kept_until_better_one(run):
    like = {"x": jnp.zeros(2)}
    with lock_folder(run, CONFIG), Saver(run, keep=2) as saver:
        for step in range(1, 6):
            saver.save(step, like, {"score": step}, best=step == 2)
    assert available_steps(run) == [2, 4, 5]
    assert checkpoint.restore(run, like)[1]["score"] == 5
    with lock_folder(run, CONFIG), Saver(run, keep=2, best=2) as saver:
        saver.save(6, like)
        saver.wait()
        assert available_steps(run) == [2, 5, 6]
        saver.save(7, like, best=True)
        saver.save(8, like)
        saver.save(9, like)
    assert available_steps(run) == [7, 8, 9]


def damage(path, kind):
    content = bytearray(path.read_bytes())
    if kind == "flipped":
        content[len(content) // 2] ^= 1
    path.write_bytes(content[: len(content) // 2] if kind == "cut" else content)
    if kind == "missing":
        path.unlink()


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    for step in (1, 2):
        save(folder, step, make_state(seed=step), CONFIG)
    return folder


FILES = ["_METADATA", "_sharding", "manifest.ocdbt", "d/*", "ocdbt.process_0/d/*", "checksums.json"]


@pytest.mark.parametrize("kind", ["flipped", "cut", "missing"])
@pytest.mark.parametrize("pattern", FILES)
def test_damaged_checkpoint_is_skipped(two_checkpoints, tmp_path, capfd, kind, pattern):
    run = shutil.copytree(two_checkpoints, tmp_path / "run")
    newest = run / "checkpoints" / "2" / "default"
    damage(max(newest.glob(pattern), key=lambda path: path.stat().st_size), kind)
    like = jax.eval_shape(make_state)
    with pytest.raises(UnusableError, match="the checkpoint of step 2 in .* cannot be used: ") as e:
        read(run, 2)
    assert "\n" not in str(e.value)
    assert_same(restore(run, like), make_state(seed=1))
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err == f"{e.value}; skipping it\n"
    set_aside(run, newest_record(run)["unusable"])
    assert available_steps(run) == [1]
    assert (run / "unusable" / "2").is_dir()
    save(run, 2, make_state(seed=2), CONFIG)
    assert_same(restore(run, like), make_state(seed=2))


@pytest.mark.parametrize("name", ["_verified_record", "_reading", "require_same_arrays"])
def test_checkpoint_removed_by_running_process_is_replaced_by_newer_one(
    name, two_checkpoints, tmp_path, monkeypatch, capfd
):
    run = shutil.copytree(two_checkpoints, tmp_path / "run")
    original, saves = getattr(checkpoint, name), iter((3, 4))

    def late(*arguments):
        for step in saves:
            save(run, step, make_state(seed=step), CONFIG, keep=1)
            break
        return original(*arguments)

    monkeypatch.setattr(checkpoint, name, late)
    like = jax.eval_shape(make_state)
    assert_same(restore(run, like), make_state(seed=4))
    assert next(saves, None) is None
    assert capfd.readouterr() == ("", "")


def test_checkpoint_of_other_run_raises(run, tmp_path):
    """Also if it has the same arrays, or if it is of this run but stored under another step."""
    save(run, 1, {"x": jnp.ones(2)}, CONFIG)
    other = json.dumps(json.loads(CONFIG) | {"seed": 2})
    save(tmp_path / "other", 3, {"x": jnp.ones(2)}, other)
    checkpoints = run / "checkpoints"
    shutil.copytree(tmp_path / "other" / "checkpoints" / "3", checkpoints / "3")
    shutil.copytree(checkpoints / "1", checkpoints / "4")
    like = {"x": jnp.zeros(2)}
    with pytest.raises(UnusableError, match=r"step 3 .* another run \(seed is 2 there, 1 here\)"):
        read(run, 3)
    with pytest.raises(UnusableError, match=r"step 4 .* another run \(step is 1 there, 4 here\)"):
        read(run, 4)
    np.testing.assert_array_equal(restore(run, like)["x"], 1)
    shutil.rmtree(checkpoints / "1")
    with pytest.raises(UnusableError, match=r"no checkpoint in .* can be used, of \[3, 4\]"):
        restore(run, like)


def test_full_disk_raises_and_keeps_checkpoints(run, capfd):
    """The file size limit allows the first checkpoint, but not the second."""
    state = {f"x{n}": jax.random.normal(jax.random.key(n), (40_000,)) for n in range(8)}
    save(run, 1, {"x": jnp.ones(2)}, CONFIG)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with lock_folder(run, CONFIG), Saver(run) as saver:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        try:
            saver.save(2, state)
            with pytest.raises(SaveError, match="step 2 cannot be saved in .*, earlier ones") as e:
                saver.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(e.value)
    assert capfd.readouterr() == ("", "")
    assert available_steps(run) == [1]
    np.testing.assert_array_equal(restore(run, {"x": jnp.zeros(2)})["x"], 1)
