"""Episodes as GIF animations."""

import os
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image

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
    large = (frame.repeat(factor, axis=0).repeat(factor, axis=1) for frame in frames_THWC)
    images = map(Image.fromarray, large)
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
