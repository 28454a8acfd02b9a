import shutil
import sys

import numpy as np
import pytest
from PIL import Image, ImageSequence

from gtrxl_jax.plots import episodes
from gtrxl_jax.plots.episodes import save_gif, save_mp4


def make_frames(steps=6, height=7, width=9, colors=200):
    palette = np.random.default_rng(0).integers(0, 256, (colors, 3), np.uint8)
    return palette[np.random.default_rng(1).integers(0, colors, (steps, height, width))]


def read(path):
    with Image.open(path) as image:
        assert image.format == "GIF"
        assert image.info["loop"] == 0
        frames = [
            (np.asarray(frame.convert("RGB")), frame.info["duration"])
            for frame in ImageSequence.Iterator(image)
        ]
    return np.stack([pixels for pixels, _ in frames]), [duration for _, duration in frames]


def test_frames_are_enlarged_exactly(tmp_path):
    frames = make_frames()
    save_gif(frames, tmp_path / "a.gif")
    pixels, _ = read(tmp_path / "a.gif")
    np.testing.assert_array_equal(pixels, np.kron(frames, np.ones((1, 37, 37, 1), np.uint8)))
    assert list(tmp_path.iterdir()) == [tmp_path / "a.gif"]


@pytest.mark.parametrize(
    ("size", "shown"), [((1, 1), (256, 256)), ((84, 84), (336, 336)), ((300, 500), (300, 500))]
)
def test_only_small_frames_are_enlarged(tmp_path, size, shown):
    save_gif(make_frames(2, *size), tmp_path / "a.gif")
    assert read(tmp_path / "a.gif")[0].shape[1:3] == shown


@pytest.mark.parametrize(
    ("fps", "durations"),
    [
        (10, [100, 100, 100, 100, 100, 1000]),
        (30, [30, 40, 30, 30, 40, 1000]),
        (50, [20, 20, 20, 20, 20, 1000]),
        (0.5, [2000] * 6),
    ],
)
def test_frame_durations(tmp_path, fps, durations):
    save_gif(make_frames(), tmp_path / "a.gif", fps)
    assert read(tmp_path / "a.gif")[1] == durations


def test_repeated_frames_keep_their_duration(tmp_path):
    frames = make_frames(2)[[0, 0, 0, 1]]
    save_gif(frames, tmp_path / "a.gif", fps=10)
    assert sum(read(tmp_path / "a.gif")[1]) == 1300


@pytest.mark.parametrize(
    ("frames", "fps", "error", "message"),
    [
        (np.zeros((2, 4, 4, 3)), 10, TypeError, "must be uint8, 0 to 255; got float64"),
        (
            np.zeros((4, 4, 3), np.uint8),
            10,
            ValueError,
            r"\[frames, height, width, 3\].*\[4, 4, 3\]",
        ),
        (np.zeros((2, 4, 4, 4), np.uint8), 10, ValueError, r"got shape \[2, 4, 4, 4\]"),
        (np.zeros((0, 4, 4, 3), np.uint8), 10, ValueError, r"got shape \[0, 4, 4, 3\]"),
        (np.zeros((2, 4, 4, 3), np.uint8), 0, ValueError, "fps must be above 0 and at most 50"),
        (np.zeros((2, 4, 4, 3), np.uint8), 60, ValueError, "fps must be above 0 and at most 50"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_invalid_frames_raise(tmp_path, frames, fps, error, message):
    with pytest.raises(error, match=message):
        save_gif(frames, tmp_path / "a.gif", fps)
    assert not list(tmp_path.iterdir())


def test_video_has_all_frames_and_a_pause(tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    save_mp4(make_frames(height=15, width=301), tmp_path / "a.mp4", fps=10)
    frames, seconds = ffmpeg.count_frames_and_secs(str(tmp_path / "a.mp4"))
    assert (frames, round(seconds, 2)) == (5 + 10, 1.5)
    assert list(tmp_path.iterdir()) == [tmp_path / "a.mp4"]


def test_failure_of_the_encoder_is_an_error(tmp_path, monkeypatch):
    program = shutil.which("false")
    monkeypatch.setattr(episodes, "_encoder", lambda: program)
    with pytest.raises(OSError, match=r"a\.mp4 cannot be encoded: .*false ended with 1"):
        save_mp4(make_frames(60), tmp_path / "a.mp4")
    assert not list(tmp_path.iterdir())


def test_video_without_encoder_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ModuleNotFoundError, match="MP4, .*, requires imageio_ffmpeg: pip install"):
        save_mp4(make_frames(), tmp_path / "a.mp4")
    assert not list(tmp_path.iterdir())
