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
from gtrxl_jax.offline.attention import SegmentMemory
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
        "params": {},
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


def make_segments(steps=6, context=3, cached=2, slots=False, tokens=2):
    """Return an episode of RATE whose second token holds the cue, step 1; or one of ELMUR."""
    rng = np.random.default_rng(1)
    segments, groups = -(-(steps + 1) // context), 2 if slots else 1
    keys = tokens + cached + context
    weights = rng.dirichlet(np.full(keys, 0.3), (2, 3, steps + 1))
    held = np.zeros((segments, groups, tokens, steps))
    held[1:, :, 1, 1] = 0.8
    memory = SegmentMemory(
        context,
        cached,
        rng.standard_normal((segments, groups, tokens, 8)).astype(np.float32),
        weights[..., :tokens],
        None if slots else rng.dirichlet(np.ones(tokens), (segments - 1, 4, tokens)),
        np.arange(segments * tokens).reshape(segments, tokens) - 1 if slots else None,
    )
    own = weights[..., tokens:]
    for step in range(steps + 1):
        # The window reaches to the oldest cached step, and no further.
        reached = min(step, step % context + cached) + 1
        own[:, :, step, : keys - tokens - reached] = 0
    return make_episode(
        steps,
        agent="elmur" if slots else "rate",
        attention=own,
        memory=memory,
        held=held,
        metrics={},
        values=None,
    )


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


def test_memory_comes_back(tmp_path):
    episode = make_segments()
    save_page([episode, make_segments(slots=True)], tmp_path / "a.html")
    one, other = (run["memory"] for run in data_of(tmp_path / "a.html")["runs"])
    assert (one["context"], one["cached_steps"], one["written"], other["valve"]) == (
        3,
        2,
        None,
        None,
    )
    np.testing.assert_array_equal(unpacked(other["written"]), [[-1, 0], [1, 2], [3, 4]])
    memory = episode.memory
    shares = {"change": memory.change, "reads": memory.reads, "valve": memory.valve}
    for name, expected in {**shares, "held": episode.held}.items():
        found = (unpacked(one[name]) / 255.0) ** 2
        np.testing.assert_allclose(found, expected, atol=1 / 255)


def test_it_loads_nothing(tmp_path):
    episode = make_episode(environment="</script><b>", frames=None, attention=None, values=None)
    save_page([episode, make_episode()], tmp_path / "a.html", names=["one", "two"])
    text = (tmp_path / "a.html").read_text("utf-8")
    assert not re.search(r"https?:|\bsrc=|\bhref=|url\(|@import|fetch\(|XMLHttp|import\(", text)
    assert "default-src 'none'" in text  # the browser would refuse
    data = data_of(tmp_path / "a.html")
    assert [run["name"] for run in data["runs"]] == ["one", "two"]
    assert data["title"] == "</script><b>, TMazePassive-v0, seed 3"
    assert [run["place"] for run in data["runs"]] == ["</script><b>", "TMazePassive-v0"]


def test_parameters_are_named_where_they_differ(tmp_path):
    long, short = (make_episode(params={"corridor_length": n, "p": 0.5}) for n in (9, 4))
    save_page([long, short], tmp_path / "a.html")
    data = data_of(tmp_path / "a.html")
    places = [f"TMazePassive-v0 (corridor_length {n})" for n in (9, 4)]
    assert [run["place"] for run in data["runs"]] == places
    assert data["title"] == "TMazePassive-v0, seed 3"
    save_page([long, long], tmp_path / "b.html")
    data = data_of(tmp_path / "b.html")
    assert [run["place"] for run in data["runs"]] == [None, None]


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
        assert tab.evaluate("runs[1].step") == 5  # its last action

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

        check_quiet(tab)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_memory_tokens_and_slots(tmp_path):
    rate, elmur = (make_segments(17, 6, slots=slots, tokens=3) for slots in (False, True))
    flat = np.diag(np.ones(17))
    present = np.eye(4)[[3] * 18] * np.ones((2, 3, 1, 1))
    blind = make_episode(17, attention=present, metrics={}, influence=flat)
    save_page([rate, elmur, blind], tmp_path / "a.html")
    with browse((tmp_path / "a.html").as_uri(), tmp_path / "profile", 1500, 1200) as tab:
        tab.wait_for("typeof runs !== 'undefined' && runs.length === 3")
        headings = [text(tab, ".maps h3 span", k) for k in range(5)]
        assert headings[:3] == [
            "What memory tokens hold of step 1, the cue",
            "Change of memory tokens",
            "Valve",
        ]
        assert headings[3:] == ["What slots hold of step 1, the cue", "Change of slots"]
        assert text(tab, ".caption b", 2) == "Nothing in the past"

        # What heads attend to at the last action, step 16: memory tokens, cache and segment.
        tokens, window = (
            rate.memory.reads[:, :, 16].reshape(6, 3),
            rate.attention[:, :, 16].reshape(6, 8),
        )
        parts = np.stack([tokens.sum(-1), window[:, 1:3].sum(-1), window[:, 3:].sum(-1)], axis=1)
        np.testing.assert_allclose(cells(tab, 0).reshape(6, 3), parts, atol=0.02)
        # When slots were written, how long ago, and how much they are read.
        read = elmur.memory.reads[:, :, 16].mean(axis=(0, 1))
        expected = np.stack([elmur.memory.written[2], 16 - elmur.memory.written[2], read], axis=1)
        np.testing.assert_allclose(cells(tab, 1).reshape(3, 3), expected, atol=0.02)
        tab.evaluate("go(0)")
        assert text(tab, ".memory tr:last-child th", 1) == "1 empty"

        # Pointing at a token, and at a past step, of which other tokens hold something.
        tab.evaluate("go(16)")
        left, top, width, height = box(tab, ".maps canvas")
        at_last_segment = left + width - 5
        tab.mouse("mouseMoved", at_last_segment, top + 0.5 * height)
        assert text(tab, ".maps small") == "token 2 in steps 12 to 17: 0.80"
        assert text(tab, ".maps h3 span").endswith("step 1, the cue")
        for kind in ("mousePressed", "mouseReleased"):
            tab.mouse(kind, at_last_segment, top + 0.5 * height)
        assert text(tab, "#step") == "step 17 of 17"
        left, top, width, height = box(tab, ".maps canvas", 4)
        tab.mouse("mouseMoved", left + width - 5, top + height - 6)
        assert text(tab, ".maps small", 4).startswith("layer 2, slot 3 in steps 12 to 17: ")
        assert text(tab, ".maps small", 4).endswith(": last written at step 7")
        left, top, width, height = box(tab, ".strip")
        tab.mouse("mouseMoved", left + width - 4, top + 20)
        assert text(tab, ".maps h3 span") == "What memory tokens hold of step 16"
        tab.mouse("mouseMoved", 5, 5)
        assert text(tab, ".maps small") == "how much they would differ without it"
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        check_quiet(tab)


def cells(tab, run):
    """Return the numbers of the table of a run's memory."""
    script = f"[...document.querySelectorAll('.memory')[{run}].querySelectorAll('td')]"
    return np.array(tab.evaluate(f"{script}.map(cell => +cell.textContent)"))


def check_quiet(tab):
    """Check that a page has reported nothing, and loaded nothing."""
    methods = [method for method, _ in tab.events]
    assert "Runtime.exceptionThrown" not in methods
    assert "Log.entryAdded" not in methods, [e for e in tab.events if e[0] == "Log.entryAdded"]
    assert "Runtime.consoleAPICalled" not in methods
    requests = [p["request"]["url"] for m, p in tab.events if m == "Network.requestWillBeSent"]
    assert requests
    assert all(url.startswith(("file:", "data:", "about:")) for url in requests)
