"""The environments of POPGym (Morad et al. 2023, arXiv 2303.01859) in pure JAX.

Rules, rewards, lengths and spaces follow the package popgym 1.0.7, which the tests replay.
Observations have the package's values, in the form that this package's encoders take: a Discrete
space remains Discrete, and a MultiDiscrete or a Tuple is flattened to a Box of int32. Both are
encoded one-hot. Actions of several parts are a Tuple of Discrete.

Each environment has three difficulties, for example `RepeatPreviousEasy-v0`, `...Medium-v0` and
`...Hard-v0`, whose settings are arguments of its constructor: `make_env(name, num_decks=2)`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from gymnax.environments import environment

from gtrxl_jax.worlds.popgym.bandit import MultiarmedBandit
from gtrxl_jax.worlds.popgym.boards import Battleship, MineSweeper
from gtrxl_jax.worlds.popgym.card_games import Concentration, HigherLower
from gtrxl_jax.worlds.popgym.control import (
    PositionOnlyCartPole,
    PositionOnlyPendulum,
    VelocityOnlyCartPole,
)
from gtrxl_jax.worlds.popgym.labyrinths import LabyrinthEscape, LabyrinthExplore
from gtrxl_jax.worlds.popgym.recall import Autoencode, CountRecall
from gtrxl_jax.worlds.popgym.repeat import RepeatFirst, RepeatPrevious

_DIFFICULTIES = ("Easy", "Medium", "Hard")

_SETTINGS: dict[str, tuple[Callable[..., environment.Environment], dict[str, tuple[Any, ...]]]] = {
    "Autoencode": (Autoencode, dict(num_decks=(1, 2, 3))),
    "Battleship": (Battleship, dict(size=(8, 10, 12))),
    "Concentration": (Concentration, dict(num_decks=(1, 2, 1), kinds=(2, 2, 13))),
    "CountRecall": (CountRecall, dict(num_decks=(1, 2, 4), kinds=(2, 4, 13))),
    "HigherLower": (HigherLower, dict(num_decks=(1, 2, 3))),
    "LabyrinthEscape": (LabyrinthEscape, dict(size=(10, 14, 18))),
    "LabyrinthExplore": (LabyrinthExplore, dict(size=(10, 14, 18))),
    "MineSweeper": (MineSweeper, dict(size=(4, 6, 8), num_mines=(2, 6, 10))),
    "MultiarmedBandit": (
        MultiarmedBandit,
        dict(num_arms=(10, 20, 30), episode_length=(200, 400, 600)),
    ),
    "NoisyPositionOnlyCartPole": (PositionOnlyCartPole, dict(noise_sigma=(0.1, 0.2, 0.3))),
    "NoisyPositionOnlyPendulum": (PositionOnlyPendulum, dict(noise_sigma=(0.1, 0.2, 0.3))),
    "PositionOnlyCartPole": (PositionOnlyCartPole, dict(episode_length=(200, 400, 600))),
    "PositionOnlyPendulum": (PositionOnlyPendulum, dict(episode_length=(200, 150, 100))),
    "RepeatFirst": (RepeatFirst, dict(num_decks=(1, 8, 16))),
    "RepeatPrevious": (RepeatPrevious, dict(num_decks=(1, 2, 3), k=(4, 32, 64))),
    "VelocityOnlyCartPole": (VelocityOnlyCartPole, dict(episode_length=(200, 400, 600))),
}
"""The class of each environment, and its arguments at each difficulty."""

POPGYM: dict[str, Callable[..., environment.Environment]] = {
    f"{name}{difficulty}-v0": partial(
        factory, **{argument: values[level] for argument, values in settings.items()}
    )
    for name, (factory, settings) in _SETTINGS.items()
    for level, difficulty in enumerate(_DIFFICULTIES)
}
"""The constructor of each environment, by the name under which it is registered."""

__all__ = ["POPGYM"]
