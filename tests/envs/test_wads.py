"""The wad of Two-Colors: what is in its file, without Doom."""

import io
import re
import struct
import sys

import numpy as np
import pytest
from PIL import Image

from gtrxl_jax.envs.host.simulators import make_host_env
from gtrxl_jax.envs.host.two_colors import TwoColors, make_wad


def lumps(wad):
    kind, number, position = struct.unpack_from("<4sii", wad)
    assert kind == b"PWAD"
    assert len(wad) == position + 16 * number
    entries = [struct.unpack_from("<ii8s", wad, position + 16 * k) for k in range(number)]
    return {name.rstrip(b"\0").decode(): wad[start : start + size] for start, size, name in entries}


@pytest.fixture(scope="module")
def wad():
    return lumps(make_wad(size=4, items=3, pillar_steps=45, acid_steps=32))


def test_the_map_is_a_room_seen_from_inside(wad):
    assert [*wad][:3] == ["MAP01", "TEXTMAP", "ENDMAP"]
    text = wad["TEXTMAP"].decode()
    number = r"= (-?\d+); "
    corners = re.findall(rf"vertex {{ x {number}y {number}}}", text)
    lines = re.findall(rf"linedef {{ v1 {number}v2 {number}sidefront {number}", text)
    corners = [(int(x), int(y)) for x, y in corners]
    assert {abs(x) for corner in corners for x in corner} == {256}
    for v1, v2, _ in lines:
        (x, y), (to_x, to_y) = corners[int(v1)], corners[int(v2)]
        # The middle of the room is on the right of each line, its front.
        assert (to_x - x) * (0 - y) - (to_y - y) * (0 - x) < 0
    assert [side for *_, side in lines] == ["0", "1", "2", "3"]
    assert text.count("sidedef {") == 4
    things = re.findall(rf"thing {{ x {number}y {number}type {number}", text)
    assert things == [("-128", "0", "1"), ("0", "0", "15000")]


def test_actors_are_complete(wad):
    text = wad["DECORATE"].decode()
    defined = re.findall(r"^actor (\w+)", text, re.MULTILINE)
    assert len(defined) == len(set(defined)) == 8
    assert set(re.findall(r'"(\w+)",', text)) <= set(defined)
    labels = set(re.findall(r"^  (\w+):", text, re.MULTILINE))
    assert set(re.findall(r"Goto (\w+)", text)) <= labels
    assert not labels & {"Wait", "Loop", "Stop", "Fail", "Goto"}  # words of the language
    spawned = re.findall(r'A_SpawnItemEx\("(\w+)"', text.partition("actor Referee")[2])
    assert spawned == (
        ["RedPillar"] + ["RedHeals"] * 3 + ["GreenHarms"] * 3
        + ["GreenPillar"] + ["GreenHeals"] * 3 + ["RedHarms"] * 3
    )  # fmt: skip
    for sprite, tics in (("PIRL", 180), ("PIGL", 180), ("TNT1", 128)):
        assert f"{sprite} A {tics}\n" in text


def test_a_stock_empties_the_room_and_fills_it():
    wad = lumps(make_wad(size=4, items=2, pillar_steps=45, acid_steps=32, empty_steps=30))
    text = wad["DECORATE"].decode()
    for color, other in (("Red", "Green"), ("Green", "Red")):
        (stock,) = re.findall(rf"^actor {color}Stock\n(.*?)^}}", text, re.MULTILINE | re.DOTALL)
        assert re.findall(r"TNT1 A (\d+)", stock)[:3] == ["180", "120", "0"]
        assert "Thing_Remove(1)" in stock
        spawned = re.findall(r'A_SpawnItemEx\("(\w+)", .*, 1\)', stock)
        assert sorted(spawned) == sorted([f"{color}Heals", f"{other}Harms"] * 2)
        start = text.partition("actor Referee")[2].partition(f"  {color}:")[2].partition("Goto")[0]
        assert re.findall(r'Ex\("(\w+)"', start) == [f"{color}Pillar", *spawned, f"{color}Stock"]


def test_sprites_stand_on_the_floor(wad):
    names = [*wad]
    inside = names[names.index("S_START") + 1 : names.index("S_END")]
    assert inside == ["ITRMA0", "PIRLA0", "ITGMA0", "PIGLA0"]
    for name in inside:
        assert f"{name[:4]} A" in wad["DECORATE"].decode()
        image = np.asarray(Image.open(io.BytesIO(wad[name])))
        height, width, _ = image.shape
        offset = wad[name].index(b"grAb") + 4
        assert struct.unpack_from(">ii", wad[name], offset) == (width // 2, height)
        middle = image[height // 2, width // 2].astype(int)
        assert middle.argmax() == (0 if name[2] == "R" else 1)
        assert image[0, 0].sum() < middle.sum()


def test_counts_of_steps_are_checked():
    with pytest.raises(ValueError, match="env.params empty_steps must be at least 0, got -1"):
        TwoColors(None, empty_steps=-1)
    with pytest.raises(TypeError, match="env.params acid_steps must be a whole number, got 2.5"):
        TwoColors(None, acid_steps=2.5)


def test_a_missing_vizdoom_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "vizdoom", None)
    with pytest.raises(ImportError, match="vizdoom:two-colors requires vizdoom: pip install"):
        make_host_env("vizdoom:two-colors", {}, {})
    with pytest.raises(ValueError, match="unknown scenario of vizdoom 'three-colors'"):
        make_host_env("vizdoom:three-colors", {}, {})
