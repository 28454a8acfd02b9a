"""The page of an episode: its data, and what it does in a browser."""

import base64
import io
import json
import re
import zlib

import numpy as np
import pytest
from PIL import Image

from gtrxl_jax.inspection import page
from gtrxl_jax.inspection.episode import InspectedEpisode
from gtrxl_jax.inspection.page import save_page
from tests.browser import CHROMIUM, browse


def make_episode(steps=6, window=4, **changes):
    """Return an episode of random numbers, whose influence is largest at the cue, step 1."""
    rng = np.random.default_rng(0)
    weights = rng.random((2, 3, steps + 1, window)) ** 4
    counts = np.tril(rng.random((steps, steps))).astype(np.float32)
    counts[1:, 1] += 9
    fields = {
        "agent": "gtrxl",
        "environment": "TMazePassive-v0",
        "seed": 3,
        "success": 1.0,
        "episode_return": 0.5,
        "length": steps,
        "cue": 1,
        "frames": rng.integers(0, 256, (steps + 1, 8, 12, 3), np.uint8),
        "rewards": np.eye(1, steps + 1, steps)[0],
        "returns": rng.random(steps + 1),
        "values": rng.random(steps).astype(np.float32),
        "choices": (rng.dirichlet(np.ones(4), steps).astype(np.float32),),
        "has_probabilities": True,
        "action_names": ("right", "up", "left", "down"),
        "chosen": rng.integers(0, 4, (steps, 1)).astype(np.int32),
        "means": np.zeros((steps, 0)),
        "scales": np.zeros((steps, 0)),
        "continuous": np.zeros((steps, 0)),
        "metrics": {"blocks_0/attention_gate/opening": rng.random(steps + 1)},
        "attention": weights / weights.sum(axis=-1, keepdims=True),
        "influence": counts,
    }
    return InspectedEpisode(**{**fields, **changes})


def data_of(path):
    """Return the data of a page."""
    (text,) = re.findall(
        r'<script id="data" type="application/json">(.*?)</script>', path.read_text("utf-8")
    )
    return json.loads(text)


def unpacked(packed):
    data = zlib.decompress(base64.b64decode(packed["data"]))
    return np.frombuffer(data, packed["dtype"]).reshape(packed["shape"])


def test_data_come_back(tmp_path):
    episode = make_episode()
    save_page([episode], tmp_path / "a.html")
    (run,) = data_of(tmp_path / "a.html")["runs"]
    assert (run["name"], run["cue"], run["success"]) == ("gtrxl", 1, 1.0)
    for name in ("rewards", "returns", "values", "chosen"):
        np.testing.assert_allclose(unpacked(run[name]), getattr(episode, name), rtol=1e-6)
    np.testing.assert_allclose(unpacked(run["choices"][0]), episode.choices[0], rtol=1e-6)
    ((path, opening),) = episode.metrics.items()
    np.testing.assert_allclose(unpacked(run["metrics"][path]), opening, rtol=1e-6)

    # Roots in 8 bits: weights within 1 / 255 of them.
    attention = (unpacked(run["attention"]) / 255.0) ** 2
    np.testing.assert_allclose(attention, episode.attention, atol=1 / 255)
    assert (attention > 0).mean() > 0.9  # small ones differ from 0
    share = (unpacked(run["influence"]) / 255.0) ** 2
    influence = share * unpacked(run["influence_scale"])[:, None]
    np.testing.assert_allclose(influence, episode.influence, atol=10 / 255)

    for number, frame in zip(run["frame_of"], episode.frames, strict=True):
        png = base64.b64decode(run["frames"][number].removeprefix("data:image/png;base64,"))
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png))), frame)


def test_equal_frames_are_kept_once(tmp_path):
    frames = make_episode().frames[[0, 1, 0, 0, 1, 2, 0]]
    save_page([make_episode(frames=frames)], tmp_path / "a.html")
    (run,) = data_of(tmp_path / "a.html")["runs"]
    assert (len(run["frames"]), run["frame_of"]) == (3, [0, 1, 0, 0, 1, 2, 0])


def test_window_beyond_the_episode_is_left_out(tmp_path):
    episode = make_episode(window=90)
    save_page([episode], tmp_path / "a.html")
    (run,) = data_of(tmp_path / "a.html")["runs"]
    assert run["attention"]["shape"] == [2, 3, 7, 7]
    newest = (unpacked(run["attention"]) / 255.0) ** 2
    np.testing.assert_allclose(newest, episode.attention[..., -7:], atol=1 / 255)


def test_it_loads_nothing(tmp_path):
    episode = make_episode(environment="</script><b>", frames=None, attention=None, values=None)
    save_page([episode, make_episode()], tmp_path / "a.html", names=["one", "two"])
    text = (tmp_path / "a.html").read_text("utf-8")
    assert not re.search(r"https?:|\bsrc=|\bhref=|url\(|@import|fetch\(|XMLHttp|import\(", text)
    assert "default-src 'none'" in text  # the browser would refuse
    data = data_of(tmp_path / "a.html")
    assert [run["name"] for run in data["runs"]] == ["one", "two"]
    assert data["title"] == "</script><b>, seed 3; TMazePassive-v0, seed 3"


def test_a_page_that_is_too_large_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "MAX_BYTES", 10_000)
    with pytest.raises(
        ValueError, match=r"the page would have 0\.\d MB, more than 0\.01: reduce epi"
    ):
        save_page([make_episode()], tmp_path / "a.html")
    assert not list(tmp_path.iterdir())


def box(tab, selector, run=0):
    """Return the left, top, width and height of an element of a run."""
    return tab.evaluate(
        f"(() => {{ const b = document.querySelectorAll('{selector}')[{run}]"
        ".getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()"
    )


def text(tab, selector, run=0):
    return tab.evaluate(f"document.querySelectorAll('{selector}')[{run}].textContent")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_slider_pointer_and_keys(tmp_path):
    recurrent = make_episode(agent="lstm", attention=None, metrics={}, seed=3)
    save_page([make_episode(steps=40, window=30), recurrent], tmp_path / "a.html", ["A", "B"])
    with browse((tmp_path / "a.html").as_uri(), tmp_path / "profile") as tab:
        tab.wait_for("typeof runs !== 'undefined' && runs.length === 2")
        assert text(tab, "#step") == "step 39 of 40"  # the last action
        assert text(tab, "h2").startswith("Agtrxl · success 1.00")
        # The past step that counts most is the cue.
        assert text(tab, ".caption b") == "Step 1, 38 steps ago"

        tab.press("ArrowLeft")
        assert text(tab, "#step") == "step 38 of 40"
        tab.press("Home")
        assert text(tab, "#step") == "step 0 of 40"
        assert text(tab, ".caption b") == "The first step"
        tab.press("ArrowRight")
        tab.press("ArrowRight")
        assert tab.evaluate("runs[0].step") == 2

        left, top, width, height = box(tab, "#slider")
        for kind in ("mousePressed", "mouseReleased"):
            tab.mouse(kind, left + width / 2, top + height / 2)
        assert text(tab, "#step") == "step 20 of 40"
        tab.press("ArrowRight")  # also with the focus on the slider, by one
        assert text(tab, "#step") == "step 21 of 40"
        assert tab.evaluate("runs[1].step") == 6  # its end

        left, top, width, height = box(tab, ".strip")
        column = (width - 74) / 41
        tab.mouse("mouseMoved", left + 74 + 5.5 * column, top + 20)
        assert text(tab, ".caption b") == "Step 5, 16 steps ago"
        shown = tab.evaluate("document.querySelector('.preview img').src")
        assert shown == tab.evaluate("runs[0].frames[runs[0].frame_of[5]]")
        assert text(tab, ".map-name") == "Layer 1, head 1"
        for kind in ("mousePressed", "mouseReleased"):
            tab.mouse(kind, left + 74 + 5.5 * column, top + 20)
        assert text(tab, "#step") == "step 5 of 40"
        tab.mouse("mouseMoved", 5, 5)
        assert text(tab, ".caption b") == "Step 1, 4 steps ago"

        tab.press("End")
        tab.press(" ", " ")  # plays from the start
        tab.wait_for("state.step > 0 && state.step < 40")
        tab.press(" ", " ")
        paused = tab.evaluate("state.step")
        tab.evaluate("new Promise(done => setTimeout(done, 900))")
        assert tab.evaluate("state.step") == paused

        # Both themes paint, and differently.
        shots = []
        for name in ("one", "other"):
            tab.press("t", "t")
            tab.screenshot(tmp_path / f"{name}.png")
            shots.append(np.asarray(Image.open(tmp_path / f"{name}.png").convert("RGB"), float))
            assert shots[-1].std() > 10
        assert abs(shots[0].mean() - shots[1].mean()) > 100
        tab.evaluate("go(3)")
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

        methods = [method for method, _ in tab.events]
        assert "Runtime.exceptionThrown" not in methods
        assert "Log.entryAdded" not in methods, [e for e in tab.events if e[0] == "Log.entryAdded"]
        assert "Runtime.consoleAPICalled" not in methods
        requests = [p["request"]["url"] for m, p in tab.events if m == "Network.requestWillBeSent"]
        assert requests
        assert all(url.startswith(("file:", "data:", "about:")) for url in requests)
