"""The card of a run agrees with its result.json."""

import jax.numpy as jnp
import pytest

from gtrxl_jax.runs.card import write_card

CONFIG = {"core": {"name": "gtrxl"}, "algorithm": {"name": "ppo"}, "env": {"name": "Maze-v0"}}
RESULT = {
    "evaluation": {
        "success/900": {
            "per_seed": [0, 1, 0.5],
            "median": 0.5,
            "solved": 1,
            "interval": [0.1, 0.8],
        },
        "success/90": {"per_seed": [1, 1, 1], "median": 1, "solved": 3, "interval": [0.4, 1]},
        "return/90": {"per_seed": [2, 2, 2], "median": 2, "iqm": 2, "interval": ["NaN", "NaN"]},
    },
    "sampled": {},
    "seeds": [3, 4, 5],
    "num_diverged": 1,
    "steps": 12_000,
    "command": "gtrxl train --seed 3",
    "train_seconds": 61.4,
    "compile_seconds": 7.2,
    "device": "1 x cpu, 2 cores",
    "date": "2026-01-02T03:04:05+00:00",
    "commit": "abc1234",
}


def test_card_of_several_seeds(tmp_path):
    params = {"a": jnp.zeros((20, 60)), "b": jnp.zeros(34)}
    note = "observation [4, 8, 9] is read as an image [C, H, W], by the SmallConvEncoder"
    text = write_card(tmp_path, "gtrxl on a task", CONFIG, RESULT, params, [note]).read_text()
    assert f"\n\nO{note[1:]}.\n\n" in text
    assert "\n---\n\n# gtrxl on a task\n" in text
    assert "1,234 parameters for each seed." in text
    assert "over 3 seeds. A seed has solved the task with a success of at least 0.95" in text
    assert "1 of 3 seeds diverged" in text
    rows = (
        "| return/90 | median 2.000, IQM 2.000 [nan, nan] |",
        "| success/90 | solved by 3 of 3 seeds [0.400, 1.000], median 1.000 |",
        "| success/900 | solved by 1 of 3 seeds [0.100, 0.800], median 0.500 |",
    )
    order = [text.index(row) for row in rows]
    assert order == sorted(order)
    assert f'gtrxl_jax.load("{tmp_path.name}")' in text
    assert "seeds 3, 4, 5; 12,000 steps in 61 s after 7 s" in text
    assert "2026-01-02, commit abc1234" in text


def test_card_of_one_seed(tmp_path):
    evaluation = {"success": {"per_seed": [0.5], "mean": 0.5, "interval": [0.4, 0.6]}}
    alone = RESULT | {"evaluation": evaluation, "seeds": [0], "num_diverged": 0}
    text = write_card(tmp_path, "rate", CONFIG, alone, {}).read_text()
    assert "over the episodes of one seed" in text
    assert "| success | 0.500 [0.400, 0.600] |" in text
    assert "diverged" not in text
    assert "seed 0;" in text
    assert "It was trained only on this task" in text

    best = write_card(tmp_path, "rate", CONFIG, alone | {"checkpoint": 9_000}, {}).read_text()
    assert "after 12,000 steps. These parameters are of its checkpoint after 9,000 steps." in best

    later = write_card(
        tmp_path, "rate", CONFIG, alone | {"init_from": "runs/first"}, {}
    ).read_text()
    assert "It started from the parameters of runs/first." in later
    assert "It was trained here only on this task" in later


def test_card_has_rows_for_drawn_settings(tmp_path):
    evaluation = {"return": {"per_seed": [2, "NaN", -1]}, "success": {"per_seed": [1, "NaN", 0.25]}}
    drawn = {"learning_rate": [1e-3, 0.5, 0.012345], "epsilon_alpha": [0.01, 0.02, 0.03]}
    record = RESULT | {"evaluation": evaluation, "sampled": drawn}
    text = write_card(tmp_path, "gtrxl", CONFIG, record, {}).read_text()
    assert "| seed | learning_rate | epsilon_alpha | success | return |" in text
    assert "| 3 | 0.001 | 0.01 | 1.000 | 2.000 |" in text
    assert "| 4 | 0.5 | 0.02 | nan | nan |" in text
    assert "| 5 | 0.0123 | 0.03 | 0.250 | -1.000 |" in text
    assert not {"median", "IQM", "mean", "solved by"} & set(text.split())


def test_card_of_one_seed_with_drawn_settings(tmp_path):
    evaluation = {"success": {"per_seed": [0.5], "mean": 0.5, "interval": [0.4, 0.6]}}
    one = {"seeds": [0], "num_diverged": 0, "sampled": {"learning_rate": [0.012345]}}
    text = write_card(
        tmp_path, "gtrxl", CONFIG, RESULT | one | {"evaluation": evaluation}, {}
    ).read_text()
    assert "Its settings were drawn: learning_rate 0.0123." in text
    assert "| success | 0.500 [0.400, 0.600] |" in text


def test_card_begins_with_what_the_hub_reads(tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    path = write_card(tmp_path, "gtrxl on a task", CONFIG, RESULT, {})
    card = hub.ModelCard.load(path)
    assert card.data.library_name == "gtrxl_jax"
    assert card.data.tags == ["reinforcement-learning", "gtrxl", "ppo", "Maze-v0"]
    assert card.data.model_name == tmp_path.name
    scores = {result.metric_name: result for result in card.data.eval_results}
    assert {name: one.metric_value for name, one in scores.items()} == {
        "success/90": 1,
        "success/900": 0.5,
    }
    assert {one.dataset_name for one in scores.values()} == {"Maze-v0"}
    alone = {"evaluation": {"return": {"per_seed": [2.0], "mean": 2.0}}, "seeds": [0]}
    (result,) = hub.ModelCard(
        write_card(tmp_path, "gtrxl", CONFIG, RESULT | alone, {}).read_text()
    ).data.eval_results
    assert (result.metric_type, result.metric_value) == ("mean_reward", 2.0)


def test_card_lists_the_environments_of_tasks(tmp_path):
    tasks = [{"name": "CartPole-v1"}, {"size": 3}, {"size": 5}]
    config = CONFIG | {"env": {"name": "Maze-v0", "tasks": tasks}}
    text = write_card(tmp_path, "gtrxl", config, RESULT, {}).read_text()
    assert 'tags: ["reinforcement-learning", "gtrxl", "ppo", "CartPole-v1", "Maze-v0"]' in text
    assert '{"name": "CartPole-v1, Maze-v0", "type": "CartPole-v1, Maze-v0"}' in text


def test_card_without_scores_lists_none(tmp_path):
    text = write_card(tmp_path, "gtrxl", CONFIG, RESULT | {"evaluation": {}}, {}).read_text()
    assert text.startswith("---\nlibrary_name:")
    assert "model-index" not in text
