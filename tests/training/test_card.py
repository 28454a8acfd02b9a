"""The card of a run says what result.json says."""

import jax.numpy as jnp

from gtrxl_jax.training.card import write_card

RESULT = {
    "evaluation": {"success/900": [0.5, 0.1], "success/90": [1.0, 0.0], "return/90": [2, "NaN"]},
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


def test_a_card_of_several_seeds(tmp_path):
    network = {"a": jnp.zeros((20, 60)), "b": jnp.zeros(34)}
    text = write_card(tmp_path, "gtrxl on a task", RESULT, network).read_text()
    assert text.startswith("# gtrxl on a task\n")
    assert "1,234 parameters for each seed." in text
    assert "over 2 seeds" in text
    assert "1 of 3 seeds diverged" in text
    order = [text.index(s) for s in ("| return/90 | 2.000 ± nan", "success/90 |", "success/900 |")]
    assert order == sorted(order)
    assert f'gtrxl_jax.load("{tmp_path.name}")' in text
    assert "seeds 3, 4, 5; 12,000 steps in 61 s after 7 s" in text
    assert "2026-01-02, commit abc1234" in text


def test_a_card_of_one_seed(tmp_path):
    alone = RESULT | {"seeds": [0], "num_diverged": 0}
    text = write_card(tmp_path, "rate", alone, {}).read_text()
    assert "over the episodes of one seed" in text
    assert "diverged" not in text
    assert "seed 0;" in text
