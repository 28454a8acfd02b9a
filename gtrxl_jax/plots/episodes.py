"""Episodes as GIF animations."""

import os

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from gtrxl_jax.files import atomic

_SMALLEST_SIDE = 256
_LAST_FRAME_SECONDS = 1.0


def save_gif(
    frames_THWC: UInt8[np.ndarray, "T H W 3"],
    path: str | os.PathLike[str],
    fps: float = 10.0,
) -> None:
    """Write frames as a looping GIF that pauses on the last frame for a second.

    Small frames are enlarged by the smallest integer factor that makes their shorter side at least
    256 pixels, without interpolation. Frames of at most 256 colours are reproduced exactly.

    Args:
      frames_THWC: T frames, RGB.
      path: the GIF file to write.
      fps: frames per second, at most 50, since browsers slow down faster animations. The end of
        each frame is rounded to hundredths of a second, the time unit of GIFs.

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
    factor = -(-_SMALLEST_SIDE // min(frames_THWC.shape[1:3]))
    large_THWC = frames_THWC.repeat(max(factor, 1), axis=1).repeat(max(factor, 1), axis=2)
    images = [Image.fromarray(frame) for frame in large_THWC]
    ends = np.rint(100 / fps * np.arange(len(images) + 1)).astype(int)
    milliseconds = 10 * np.diff(ends)
    milliseconds[-1] = max(milliseconds[-1], 1000 * _LAST_FRAME_SECONDS)
    with atomic(path) as temporary:
        images[0].save(
            temporary,
            format="GIF",
            save_all=True,
            append_images=images[1:],
            duration=milliseconds.tolist(),
            loop=0,
        )
