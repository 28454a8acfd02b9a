"""The types of spaces of gymnax and gymnasium, side by side."""

from typing import Any

from gymnasium import spaces as gymnasium
from gymnax.environments import spaces as gymnax

# Typed as Any: the two libraries share no base class, only the attributes used here.
BOX: Any = (gymnax.Box, gymnasium.Box)
DISCRETE: Any = (gymnax.Discrete, gymnasium.Discrete)
DICT: Any = (gymnax.Dict, gymnasium.Dict)
TUPLE: Any = (gymnax.Tuple, gymnasium.Tuple)
SPACE: Any = (gymnax.Space, gymnasium.Space)
