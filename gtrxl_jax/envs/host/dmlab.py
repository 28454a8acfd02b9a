"""DeepMind Lab (Beattie et al. 2016), by its own Python interface: `dmlab:LEVEL`.

A level is one of DMLab-30, as in `dmlab:rooms_watermaze`, or any other by its path, as in
`dmlab:contributed/psychlab/harlow`.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from gtrxl_jax.envs.host.dmlab30 import TEST_LEVELS, TRAIN_LEVELS
from gtrxl_jax.envs.host.texts import hash_words, hashed_space
from gtrxl_jax.validation import require_choice, require_count

LIBRARY = "dmlab"

ENGINE = "deepmind_lab"

BUILD = "https://github.com/google-deepmind/lab/blob/master/docs/users/build.md"

ACTIONS = {
    "full": {
        "forward": (0, 0, 0, 1, 0),
        "backward": (0, 0, 0, -1, 0),
        "strafe left": (0, 0, -1, 0, 0),
        "strafe right": (0, 0, 1, 0, 0),
        "small look left": (-10, 0, 0, 0, 0),
        "small look right": (10, 0, 0, 0, 0),
        "large look left": (-60, 0, 0, 0, 0),
        "large look right": (60, 0, 0, 0, 0),
        "look down": (0, 10, 0, 0, 0),
        "look up": (0, -10, 0, 0, 0),
        "forward and small look left": (-10, 0, 0, 1, 0),
        "forward and small look right": (10, 0, 0, 1, 0),
        "forward and large look left": (-60, 0, 0, 1, 0),
        "forward and large look right": (60, 0, 0, 1, 0),
        "fire": (0, 0, 0, 0, 1),
    },
    "visuomotor": {
        "small look left": (-10, 0, 0, 0, 0),
        "small look right": (10, 0, 0, 0, 0),
        "look down": (0, 10, 0, 0, 0),
        "look up": (0, -10, 0, 0, 0),
        "nothing": (0, 0, 0, 0, 0),
    },
}
"""Tables 5 and 6 of Parisotto et al. 2019: for all levels, and for Arbitrary Visuomotor Mapping.

Numbers are the pixels to look right and down in each frame, the strafe to the right, the move
forward, and fire. The two numbers that follow in the engine, jump and crouch, are 0.
"""

_BUCKETS = 1000
"""The number of hashes of words."""

_TEST_SEED = 0x600D5EED
"""The engine's seed of mazes that are kept for tests."""


def find_level(level: str) -> Callable[..., "DMLab"]:
    """Return the constructor of a level's environment; its arguments are those of `DMLab`.

    Raises:
      ValueError: if the level is unknown.
      ImportError: if the engine is not installed.
    """
    if "/" not in level:
        require_choice("level of DMLab-30", level, (*TRAIN_LEVELS, *TEST_LEVELS))
        path = f"contributed/dmlab30/{level}"
    else:
        path = level
    try:
        engine = importlib.import_module(ENGINE)
    except ImportError as error:
        raise ImportError(
            f"environment {LIBRARY}:{level} requires {ENGINE}, which is in no package index: build "
            f"its wheel with Bazel, as {BUILD} says, and pip install it"
        ) from error
    return functools.partial(DMLab, engine, path)


class DMLab(gymnasium.Env[Any, Any]):
    """A level, with an image and an instruction as observations.

    An episode ends when the engine stops, at a goal or at the level's time limit, which the engine
    does not tell apart. Both are terminations, as in the published results: the engine has no
    observation after the last action, from whose value a truncated return would have to continue.
    The final observation is therefore the one before it.

    Args:
      engine: the module `deepmind_lab`.
      level: the path of the level.
      actions: one of `ACTIONS`.
      repeat: the number of frames that an action lasts; the engine sums their rewards.
      width, height: the size of the image.
      renderer: "software", or "hardware" on a GPU.
      test: whether the level is for a test: the engine generates other mazes than in training, and
        allows levels that are held out. True for the levels named `_test`.
      dataset: the folder of the images that some levels of Psychlab show.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012, as the base class declares it
    render_mode = "rgb_array"

    def __init__(
        self,
        engine: Any,
        level: str,
        actions: str = "full",
        repeat: int = 4,
        width: int = 96,
        height: int = 72,
        renderer: str = "software",
        test: bool = False,
        dataset: str = "",
    ):
        for name, value in {"repeat": repeat, "width": width, "height": height}.items():
            require_count(f"env.params {name}", value)
        require_choice("env.params renderer", renderer, ("software", "hardware"))
        vectors = [*ACTIONS[require_choice("env.params actions", actions, ACTIONS)].values()]
        self._vectors = np.pad(np.array(vectors, np.intc), ((0, 0), (0, 2)))
        self._repeat = repeat
        settings = {"width": width, "height": height, "logLevel": "WARN"}
        if test or level.endswith("_test"):
            settings |= {"allowHoldOutLevels": "true", "mixerSeed": _TEST_SEED}
        if dataset:
            settings |= {"datasetPath": dataset}
        self._engine = engine.Lab(
            level,
            ["RGB_INTERLEAVED", "INSTR"],
            config={name: str(value) for name, value in settings.items()},
            renderer=renderer,
        )
        self.action_space = spaces.Discrete(len(vectors))
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (height, width, 3), np.uint8),
                "instruction": hashed_space(_BUCKETS),
            }
        )
        self._observation: dict[str, np.ndarray] = {}

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Start an episode, with a seed that is drawn for it."""
        super().reset(seed=seed)
        self._engine.reset(seed=int(self.np_random.integers(2**31 - 1)))
        self._observe()
        return self._observation, {}

    def step(self, action: Any) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Take an action for some frames, or until the episode ends."""
        reward = self._engine.step(self._vectors[action], num_steps=self._repeat)
        ends = not self._engine.is_running()
        if not ends:
            self._observe()
        return self._observation, float(reward), ends, False, {}

    def render(self) -> np.ndarray:
        """Return the last image."""
        return self._observation["image"]

    def close(self) -> None:
        """End the engine."""
        self._engine.close()

    def _observe(self) -> None:
        found = self._engine.observations()
        self._observation = {
            "image": found["RGB_INTERLEAVED"],
            "instruction": hash_words(str(found["INSTR"]), _BUCKETS),
        }
