"""The host side of a run: what is written and when, and that it can be restored."""

import jax
import numpy as np
import pytest

from gtrxl_jax import loading
from gtrxl_jax.online.config import from_json, to_json
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs import loop, programs
from gtrxl_jax.runs.logging.writers import MetricWriter, read_metrics
from gtrxl_jax.runs.results import Score, read_result
from tests.jobs import small_job

pytestmark = pytest.mark.integration

SEEDS = 3
CONFIG = small_job(
    "lstm",
    env__tasks=({"corridor_length": 1}, {"corridor_length": 3}),
    sweep={"learning_rate": (1e-4, 1e-2)},
    evaluation__interval=200,
    seed=5,
    num_seeds=SEEDS,
    devices=1,
)
# Iterations of 2 updates of 8 environments, 7 steps each.
ITERATION = 2 * 8 * 7


class Kept(MetricWriter):
    """Keeps written metrics in memory."""

    def __init__(self):
        self.rows, self.closed = {}, False

    def write(self, step, metrics):
        self.rows[step] = dict(metrics)

    def close(self):
        self.closed = True


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder, kept = tmp_path_factory.mktemp("run"), Kept()
    trained = loop.train(OnlineTrainer(CONFIG), writers=[kept], folder=folder)
    return folder, kept, trained.result, trained.params_per_seed


def test_folder_has_metrics_and_result(run):
    folder, kept, result, _ = run
    read = read_metrics(folder / "metrics.jsonl")
    assert read["step"].tolist() == list(kept.rows)
    for step, loss in zip(read["step"], read["loss/value"], strict=True):
        np.testing.assert_array_equal(loss, kept.rows[step]["loss/value"])
    assert read_result(folder) == result


def test_iterations_are_written_for_each_seed(run):
    _, kept, result, _ = run
    assert list(kept.rows) == [ITERATION * n for n in range(1, 7)]
    assert result.steps == 6 * ITERATION
    assert kept.closed
    for metrics in kept.rows.values():
        assert {
            np.shape(value) for name, value in metrics.items() if name != "steps_per_second"
        } == {(SEEDS,)}
        assert np.shape(metrics["steps_per_second"]) == ()
    rates = kept.rows[ITERATION]["hyperparameter/learning_rate"]
    assert len(set(rates.tolist())) == SEEDS
    # The last iteration's two updates, the eleventh and twelfth of a linear decay to a tenth.
    left = 1 - 0.9 * (10 + 11) / 2 / 12
    np.testing.assert_allclose(kept.rows[6 * ITERATION]["learning_rate"], left * rates, rtol=1e-6)
    assert result.sampled == {"learning_rate": rates.tolist()}


@pytest.mark.slow  # test_vmap_over_seeds_and_hyperparameters compares single updates
def test_sequential_seeds_match_vectorized_seeds(run, monkeypatch):
    _, turns, _, params_per_seed = run
    beside = Kept()
    monkeypatch.setattr(programs, "over_seeds", jax.vmap)
    others = loop.train(OnlineTrainer(CONFIG), writers=[beside]).params_per_seed
    for step, metrics in turns.rows.items():
        assert set(metrics) == set(beside.rows[step])
        for name in set(metrics) - {"steps_per_second"}:
            other = beside.rows[step][name]
            np.testing.assert_allclose(metrics[name], other, rtol=1e-3, atol=1e-4, err_msg=name)
    for one, other in zip(params_per_seed, others, strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), one, other)


def test_evaluations_at_interval_and_end(run):
    _, kept, _, _ = run
    evaluated = [step for step, metrics in kept.rows.items() if "evaluation/success" in metrics]
    # 200, 400 and 600 steps are passed by the iterations that end at 224, 448 and 672.
    assert evaluated == [224, 448, 672]


def test_result_is_last_evaluation(run):
    """The seeds' learning rates differ, so there is no aggregate over them."""
    _, kept, result, _ = run
    last = kept.rows[6 * ITERATION]
    names = {
        f"{n}{task}" for n in ("return", "length", "success") for task in ("", "/task_0", "/task_1")
    }
    assert set(result.evaluation) == set(result.per_seed) == names
    for name, score in result.evaluation.items():
        np.testing.assert_allclose(score.per_seed, last[f"evaluation/{name}"])
        assert score == Score(score.per_seed)
    tasks = np.array([result.per_seed[f"length/task_{k}"] for k in range(2)])
    np.testing.assert_allclose(result.per_seed["length"], tasks.mean(axis=0))
    assert np.all(tasks[0] <= 4)
    assert np.all((tasks[1] > 3) & (tasks[1] <= 8))
    assert min(result.compile_seconds, result.train_seconds, result.steps_per_second) > 0


def test_loaded_parameters_equal_trained_ones(run):
    folder, _, result, params_per_seed = run
    loaded = loading.load(folder)
    assert loaded.trainer.config == CONFIG
    assert loaded.step == 6 * ITERATION
    assert loaded.sampled == result.sampled
    assert len(loaded.params_per_seed) == len(params_per_seed) == SEEDS
    for one, other in zip(loaded.params_per_seed, params_per_seed, strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, other)
    kernels = [params["policy_head"]["hidden"]["kernel"] for params in params_per_seed]
    assert np.any(kernels[0] != kernels[1])


@pytest.mark.slow  # tests/acting/test_evaluation.py is quick
def test_evaluation_is_reproducible(run):
    folder, _, _, _ = run
    scores, _ = loading.evaluate(folder, 8, "sample")
    again, _ = loading.evaluate(folder, 8, "sample")
    assert scores == again
    assert scores["return"].record.keys() == {"per_seed"}
    other, _ = loading.evaluate(folder, 8, "sample", seed=2)
    assert scores["return"] != other["return"]


def test_folder_without_run_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no run"):
        loading.load(tmp_path)
    (tmp_path / "config.json").write_text(to_json(CONFIG))
    assert from_json((tmp_path / "config.json").read_text()) == CONFIG
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        loading.load(tmp_path)
