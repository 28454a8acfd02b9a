"""Episodes as one HTML file, which loads nothing from elsewhere."""

import base64
import dataclasses
import importlib.resources
import io
import json
import os
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from gtrxl_jax.files import atomic
from gtrxl_jax.inspection.episode import InspectedEpisode

MAX_BYTES = 10_000_000
"""The largest page that is written."""
SMALL_SIDE = 256
"""Frames whose sides have fewer pixels are enlarged without interpolation."""


def save_page(
    episodes: Sequence[InspectedEpisode], path: str | os.PathLike[str], names: Sequence[str] = ()
) -> None:
    """Write episodes, side by side, as an HTML file.

    Weights of attention and influence, and what a memory holds, are kept in 8 bits.

    Args:
      episodes: the episodes.
      path: the HTML file to write.
      names: what to call their agents; by default the names of their cores.

    Raises:
      ValueError: if the file would have more than `MAX_BYTES`.
    """
    names = names or [episode.agent for episode in episodes]
    places = _places(episodes)
    differ = len(set(places)) > 1
    environments = [episode.environment for episode in episodes]
    seeds = [f"seed {episode.seed}" for episode in episodes]
    data = {
        "title": ", ".join(dict.fromkeys(environments + seeds)),
        "runs": [
            {"name": name, "place": place if differ else None, **_pack(episode)}
            for name, place, episode in zip(names, places, episodes, strict=True)
        ],
    }
    template = importlib.resources.files(__package__).joinpath("page.html").read_text("utf-8")
    # In a script, only "</" could end the data.
    text = json.dumps(data, allow_nan=False).replace("</", "<\\/")
    page = template.replace("DATA", text, 1).encode()
    if len(page) > MAX_BYTES:
        raise ValueError(
            f"the page would have {len(page) / 1e6:.1f} MB, more than {MAX_BYTES / 1e6:g}: "
            "reduce episode_steps, or show fewer runs"
        )
    with atomic(path) as temporary:
        temporary.write_bytes(page)


def _places(episodes: Sequence[InspectedEpisode]) -> list[str]:
    """Return the name of the environment of each episode, with the parameters that differ."""
    first, *others = (episode.params for episode in episodes)
    names = [n for n in first if any(n in p and p[n] != first[n] for p in others)]
    places = []
    for episode in episodes:
        given = ", ".join(
            f"{name} {episode.params[name]}" for name in names if name in episode.params
        )
        places.append(f"{episode.environment} ({given})" if given else episode.environment)
    return places


def _pack(episode: InspectedEpisode) -> dict[str, Any]:
    """Return an episode as JSON, with packed arrays."""
    fields = {f.name: getattr(episode, f.name) for f in dataclasses.fields(episode)}
    del fields["params"]
    frames, attention, influence, memory, held = (
        fields.pop(name) for name in ("frames", "attention", "influence", "memory", "held")
    )
    if frames is not None:
        images = list(map(_png, frames))
        unique = list(dict.fromkeys(images))
        place = {image: number for number, image in enumerate(unique)}
        fields["frames"] = unique
        fields["frame_of"] = [place[image] for image in images]
        fields["pixelated"] = max(frames.shape[1:3]) < SMALL_SIDE
    if attention is not None:
        steps, window = attention.shape[2:]
        fields["attention"] = _eight_bits(attention[..., max(window - steps, 0) :])
    if influence is not None:
        scale = np.maximum(influence.max(axis=1), 1e-9)
        fields["influence"] = _eight_bits(influence / scale[:, None])
        fields["influence_scale"] = scale
    if memory is not None:
        shares = {
            "change": memory.change,
            "reads": memory.reads,
            "valve": memory.valve,
            "held": held,
        }
        fields["memory"] = {
            "context": memory.context,
            "cached_steps": memory.cached_steps,
            "written": memory.written,
            **{n: None if share is None else _eight_bits(share) for n, share in shares.items()},
        }
    return {"frames": None, "attention": None, "influence": None, "memory": None} | {
        name: _packed(value) for name, value in fields.items()
    }


def _packed(value: Any) -> Any:
    """Return a value with each array as its shape, dtype, and compressed bytes."""
    if isinstance(value, dict):
        return {name: _packed(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_packed(one) for one in value]
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype != np.uint8:
        value = value.astype("<f4")
    data = base64.b64encode(zlib.compress(value.tobytes(), 9)).decode()
    return {"shape": value.shape, "dtype": value.dtype.name, "data": data}


def _eight_bits(weights: Float[np.ndarray, "..."]) -> UInt8[np.ndarray, "..."]:
    """Return weights in [0, 1] as 255 times their roots, so that small ones differ from 0."""
    return np.rint(255 * np.sqrt(np.clip(weights, 0, 1))).astype(np.uint8)


def _png(frame: UInt8[np.ndarray, "Y X 3"]) -> str:
    file = io.BytesIO()
    Image.fromarray(frame).save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
