"""Episodes as animations, GIF or MP4."""

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from gtrxl_jax.extras import import_extra
from gtrxl_jax.files import atomic

_SMALLEST_SIDE = 256
_PAUSE_SECONDS = 1.0


def save_gif(
    frames_THWC: UInt8[np.ndarray, "T H W 3"],
    path: str | os.PathLike[str],
    fps: float = 10.0,
    pauses: Sequence[int] = (-1,),
) -> None:
    """Write frames as a looping GIF that pauses on the last frame for a second.

    Small frames are enlarged by the smallest integer factor that makes their shorter side at least
    256 pixels, without interpolation. Frames of at most 256 colors are reproduced exactly.

    Args:
      frames_THWC: T frames, RGB.
      path: the GIF file to write.
      fps: frames per second, at most 50, since browsers slow down faster animations. The end of
        each frame is rounded to hundredths of a second, the time unit of GIFs.
      pauses: the frames at which the GIF pauses.

    Raises:
      TypeError: if the frames are not uint8.
      ValueError: if the frames are not `[T, H, W, 3]`, there are none, or fps is out of range.
    """
    images = map(Image.fromarray, _large_frames(frames_THWC, fps))
    ends = np.rint(100 / fps * np.arange(len(frames_THWC) + 1)).astype(int)
    milliseconds = 10 * np.diff(ends)
    for frame in pauses:
        milliseconds[frame] = max(milliseconds[frame], 1000 * _PAUSE_SECONDS)
    with atomic(path) as temporary:
        next(images).save(
            temporary,
            format="GIF",
            save_all=True,
            append_images=images,
            duration=milliseconds.tolist(),
            loop=0,
        )


def save_mp4(
    frames_THWC: UInt8[np.ndarray, "T H W 3"],
    path: str | os.PathLike[str],
    fps: float = 10.0,
    pauses: Sequence[int] = (-1,),
) -> None:
    """Write frames as an MP4 video, H.264, which players and browsers show; see `save_gif`.

    Raises:
      ModuleNotFoundError: if the extra "hub" is not installed.
      OSError: if the encoder fails.
      TypeError, ValueError: see `save_gif`.
    """
    program, frames = _encoder(), _large_frames(frames_THWC, fps)
    # The format has half as many rows and columns of colors.
    even = (np.pad(x, [(0, x.shape[0] % 2), (0, x.shape[1] % 2), (0, 0)], "edge") for x in frames)
    held_T = np.ones(len(frames_THWC), int)
    held_T[list(pauses)] = max(1, round(fps * _PAUSE_SECONDS))
    first = next(even)
    given = f"-f rawvideo -pix_fmt rgb24 -s {first.shape[1]}x{first.shape[0]} -r {fps:g} -i -"
    written = "-c:v libx264 -pix_fmt yuv420p -movflags faststart -f mp4 -y"
    with atomic(path) as temporary:
        command = [program, "-loglevel", "error", *given.split(), *written.split(), str(temporary)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as encoder:
            assert encoder.stdin
            # An encoder that fails closes the pipe; its exit code is reported below.
            with contextlib.suppress(BrokenPipeError), encoder.stdin:
                for frame, held in zip(itertools.chain([first], even), held_T, strict=True):
                    encoder.stdin.write(held * frame.tobytes())
        if encoder.returncode:
            raise OSError(f"{path} cannot be encoded: {program} ended with {encoder.returncode}")


def can_save_mp4() -> bool:
    """Return whether the encoder of MP4 is installed."""
    try:
        _encoder()
    except ModuleNotFoundError:
        return False
    return True


def _encoder() -> str:
    """Return the path of ffmpeg."""
    ffmpeg = import_extra("imageio_ffmpeg", "hub", "MP4, unlike GIF,")
    return str(ffmpeg.get_ffmpeg_exe())


def _large_frames(
    frames_THWC: UInt8[np.ndarray, "T H W 3"], fps: float
) -> Iterator[UInt8[np.ndarray, "H W 3"]]:
    """Check frames, and return them enlarged, see `save_gif`."""
    frames_THWC = np.asarray(frames_THWC)
    if frames_THWC.dtype != np.uint8:
        raise TypeError(f"frames must be uint8, 0 to 255; got {frames_THWC.dtype}")
    if frames_THWC.ndim != 4 or frames_THWC.shape[-1] != 3 or 0 in frames_THWC.shape:
        raise ValueError(
            f"frames must be [frames, height, width, 3]; got shape {list(frames_THWC.shape)}"
        )
    if not 0 < fps <= 50:
        raise ValueError(f"fps must be above 0 and at most 50; got {fps}")
    factor = max(-(-_SMALLEST_SIDE // min(frames_THWC.shape[1:3])), 1)
    return (frame.repeat(factor, axis=0).repeat(factor, axis=1) for frame in frames_THWC)
