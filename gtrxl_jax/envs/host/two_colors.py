"""Two-Colors of RATE in Doom itself: `vizdoom:two-colors`.

The map and its actors are written when the environment is made. Rules and sizes are those of
`worlds.two_colors`, which is written in JAX.
"""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from PIL import Image

from gtrxl_jax.envs.host import wads
from gtrxl_jax.extras import import_extra
from gtrxl_jax.validation import require_choice, require_count

LIBRARY = "vizdoom"

SCENARIOS = ("two-colors",)

TICS = 4
"""Doom's tics in a step."""

CELL = 128
"""Doom's units along a cell of the room."""

ACTIONS = ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 1))
"""Left, right, forward, left and forward, right and forward."""

_COLORS = {"Red": (214, 40, 40), "Green": (40, 200, 70)}
"""The colors of `worlds.two_colors`; Doom draws the nearest in its palette."""

_ITEM_HEALTH, _ACID = 25, 10
"""Health that an item gives or takes, and that the acid takes."""

_NUMBER = 15000
"""The number of the referee among the kinds of things."""

_ITEMS = 1
"""The number by which all items are found."""

_ITEM = """
actor {name} : CustomInventory
{{
  Radius 20
  Height 19
  Inventory.PickupMessage ""
  Inventory.PickupSound ""
  States
  {{
  Spawn:
    {sprite} A -1
    Stop
  Pickup:
    TNT1 A 0 {effect}
    TNT1 A 0 {another}
    Stop
  }}
}}
"""
"""An item; the player runs the states of `Pickup`."""

_PILLAR = """
actor {name}
{{
  States
  {{
  Spawn:
    {sprite} A {tics}
    Stop
  }}
}}
"""

_STOCK = """
actor {name}
{{
  States
  {{
  Spawn:
    TNT1 A {pillar}
    TNT1 A {empty} Thing_Remove({items})
{spawned}    Stop
  }}
}}
"""
"""What empties the room when the pillar disappears, and fills it again."""

_REFEREE = """
actor Acid : CustomInventory
{{
  States
  {{
  Pickup:
    TNT1 A 0 DamageThing({acid})
    Stop
  }}
}}

actor Referee {number}
{{
  States
  {{
  Spawn:
    TNT1 A 0 NoDelay A_Jump(128, "Green")
  Red:
{red}    Goto Spread
  Green:
{green}    Goto Spread
  Spread:
    TNT1 A {tics}
    TNT1 A 0 A_RadiusGive("Acid", 30000, RGF_PLAYERS | RGF_NOSIGHT)
    Loop
  }}
}}
"""
"""What draws the color and the places at the start, and spreads the acid."""


def find_scenario(name: str) -> Callable[..., "TwoColors"]:
    """Return the constructor of a scenario; its arguments are those of `TwoColors`.

    Raises:
      ValueError: if the scenario is unknown.
      ImportError: if vizdoom is not installed.
    """
    require_choice(f"scenario of {LIBRARY}", name, SCENARIOS)
    library = import_extra(LIBRARY, LIBRARY, f"environment {LIBRARY}:{name}")
    return functools.partial(TwoColors, library)


class TwoColors(gymnasium.Env[np.ndarray, Any]):
    """Survive in a room of acid by items of the color of a pillar that disappears.

    Actions, observations and `info` are those of `worlds.two_colors.TwoColors`. When the agent
    dies, Doom draws nothing any more: the final observation is the one before.

    Args:
      library: the module `vizdoom`.
      size: number of cells along a side of the room.
      items: number of items of each color.
      height, width: the size of the image.
      max_steps_in_episode: time limit in actions, of four tics each.
      pillar_steps: number of observations that can show the pillar.
      empty_steps: number of steps after that without items.
      acid_steps: the acid takes 10 health after each of so many steps.
      item_reward: reward for an item of the pillar's color.
      alive_reward: reward for each step that the agent survives.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012, as the base class declares it
    render_mode = "rgb_array"

    def __init__(
        self,
        library: Any,
        size: int = 10,
        items: int = 8,
        height: int = 64,
        width: int = 112,
        max_steps_in_episode: int = 2100,
        pillar_steps: int = 45,
        empty_steps: int = 0,
        acid_steps: int = 32,
        item_reward: float = 1.0,
        alive_reward: float = 0.02,
    ):
        counts = {
            "size": size,
            "items": items,
            "height": height,
            "width": width,
            "max_steps_in_episode": max_steps_in_episode,
            "pillar_steps": pillar_steps,
            "acid_steps": acid_steps,
        }
        for name, value in counts.items():
            require_count(f"env.params {name}", value)
        require_count("env.params empty_steps", empty_steps, at_least=0)
        self.max_steps = max_steps_in_episode
        self._shape = height, width
        self._item_reward, self._alive_reward = item_reward, alive_reward
        self.action_space = spaces.Discrete(len(ACTIONS))
        self.observation_space = spaces.Box(0, 255, (height, width, 3), np.uint8)
        self._folder = tempfile.TemporaryDirectory(prefix="two-colors-")
        path = Path(self._folder.name, "two_colors.wad")
        path.write_bytes(make_wad(size, items, pillar_steps, acid_steps, empty_steps))
        self._game = _start(library, path)
        self._health = library.GameVariable.HEALTH
        self._screen: Any = None

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode, with a seed that is drawn for it."""
        super().reset(seed=seed)
        self._game.set_seed(int(self.np_random.integers(2**31 - 1)))
        self._game.new_episode()
        self._steps, self._right, self._wrong = 0, 0, 0
        self._items: set[tuple[int, str]] = set()
        self._look()
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take an action for four tics."""
        self._game.make_action([*ACTIONS[action]], TICS)
        self._steps += 1
        right = self._right
        dead = self._game.is_episode_finished()
        if not dead:
            self._look()
        reward = self._item_reward * (self._right - right) + self._alive_reward * (not dead)
        health = 0.0 if dead else float(self._game.get_game_variable(self._health))
        info = {"right": self._right, "wrong": self._wrong, "health": health}
        return self._observe(), reward, dead, self._steps >= self.max_steps and not dead, info

    def render(self) -> np.ndarray:
        """Return the last view, as Doom draws it."""
        return self._screen

    def oracle_action(self) -> int:
        """Return the action of a player that knows the color, as `worlds.two_colors` has it.

        It walks to the nearest item of the right color in its field of view, past the others; if
        there is none, it turns right; after the end of an episode as well.
        """
        right_N, wrong_N = self._items_in_view()
        if not right_N.size:
            return ACTIONS.index((0, 1, 0))
        nearest = right_N[np.argmin(np.abs(right_N))]
        apart_N = np.abs(wrong_N) + 1e-6
        # Wrong items repel within 0.8 cells.
        push_N = 2 * np.maximum(0.8 - apart_N, 0) * wrong_N / apart_N
        turn = float(np.angle(nearest / (abs(nearest) + 1e-6) - push_N.sum()))
        forward = abs(turn) < 0.8
        side = (0, 0) if abs(turn) < 0.13 else (int(turn > 0), int(turn < 0))
        return ACTIONS.index((*side, int(forward)))

    def _items_in_view(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the right and the wrong items in view, as complex numbers, in cells.

        The player is at 0 and looks along the real axis; its left is the imaginary one.
        """
        state = self._game.get_state()
        if state is None:  # the episode has ended
            return np.zeros(0, complex), np.zeros(0, complex)
        objects = state.objects
        (player,) = (x for x in objects if x.name == "DoomPlayer")
        place = complex(player.position_x, player.position_y)
        ahead = CELL * np.exp(1j * np.deg2rad(player.angle))

        def in_view(kind: str) -> np.ndarray:
            items = [x for x in objects if x.name.endswith(kind)]
            of_N = np.array([complex(x.position_x, x.position_y) - place for x in items]) / ahead
            return of_N[np.abs(np.angle(of_N)) < np.pi / 4]

        return in_view("Heals"), in_view("Harms")

    def close(self) -> None:
        """End the game, and remove its files."""
        self._game.close()
        self._folder.cleanup()

    def _look(self) -> None:
        """Keep the screen, and count the items that are gone."""
        state = self._game.get_state()
        items = {(x.id, x.name) for x in state.objects if x.name.endswith(("Heals", "Harms"))}
        # A room without items has been emptied, since those that are taken reappear.
        taken = [name for _, name in self._items - items] if items else []
        self._right += sum(name.endswith("Heals") for name in taken)
        self._wrong += sum(name.endswith("Harms") for name in taken)
        self._items, self._screen = items, state.screen_buffer

    def _observe(self) -> np.ndarray:
        """Return the middle of the screen, in the size and proportions of observations."""
        rows, columns, _ = self._screen.shape
        height, width = self._shape
        scale = min(rows / height, columns / width)
        left, top = (columns - width * scale) / 2, (rows - height * scale) / 2
        box = (left, top, columns - left, rows - top)
        image = Image.fromarray(self._screen)
        return np.asarray(image.resize((width, height), Image.Resampling.BOX, box))


def make_wad(
    size: int, items: int, pillar_steps: int, acid_steps: int, empty_steps: int = 0
) -> bytes:
    """Return the scenario's wad: a map, actors in DECORATE, and their sprites."""
    side = CELL * size
    most = side // 2 - 3 * CELL // 10  # items keep this distance from walls
    map_of_room = [
        'namespace = "zdoom";\n',
        wads.room(side, CELL, wall="STONE2", floor="SLIME05", ceiling="CEIL5_1"),
        wads.thing(-side // 4, number=1),  # the player
        wads.thing(0, _NUMBER),
    ]
    sprites = []
    for color, rgb in _COLORS.items():
        sprites += [
            (_item_sprite(color) + "A0", wads.sprite(_post(38, 19, rgb))),
            (_pillar_sprite(color) + "A0", wads.sprite(_post(41, 77, rgb))),
        ]
    tics = {"pillar": pillar_steps, "acid": acid_steps, "empty": empty_steps}
    actors = _actors(
        f"random(-{most}, {most})", items, {name: TICS * steps for name, steps in tics.items()}
    )
    return wads.pack(
        [
            ("MAP01", b""),
            ("TEXTMAP", "".join(map_of_room).encode()),
            ("ENDMAP", b""),
            ("DECORATE", actors.encode()),
            ("S_START", b""),
            *sprites,
            ("S_END", b""),
        ]
    )


def _actors(place: str, items: int, tics: dict[str, int]) -> str:
    """Return all actors in DECORATE; `place` draws an item's x or y, `tics` say what lasts long."""
    effects = {"Heals": f"HealThing({_ITEM_HEALTH})", "Harms": f"DamageThing({_ITEM_HEALTH})"}
    actors, starts = [], {}
    for color, other in (("Red", "Green"), ("Green", "Red")):
        for does, effect in effects.items():
            name = color + does
            # Offsets are from the player who takes the item.
            another = _spawn(name, f"{place} - x", f"{place} - y", _ITEMS)
            sprite = _item_sprite(color)
            actors.append(_ITEM.format(name=name, sprite=sprite, effect=effect, another=another))
        pillar, sprite = f"{color}Pillar", _pillar_sprite(color)
        actors.append(_PILLAR.format(name=pillar, sprite=sprite, tics=tics["pillar"]))
        kinds = (f"{color}Heals", f"{other}Harms")
        filled = [_spawn(name, place, place, _ITEMS) for name in kinds for _ in range(items)]
        spawned = [_spawn(pillar, "0", "0"), *filled]
        if tics["empty"]:
            stock = f"{color}Stock"
            actors.append(_STOCK.format(name=stock, items=_ITEMS, spawned=_lines(filled), **tics))
            spawned.append(_spawn(stock, "0", "0"))
        starts[color.lower()] = _lines(spawned)
    referee = _REFEREE.format(acid=_ACID, number=_NUMBER, tics=tics["acid"], **starts)
    return "".join([*actors, referee])


def _lines(actions: list[str]) -> str:
    """Return the states of several actions at once."""
    return "".join(f"    TNT1 A 0 {action}\n" for action in actions)


def _spawn(name: str, x: str, y: str, number: int = 0) -> str:
    flags = "SXF_ABSOLUTEPOSITION | SXF_NOCHECKPOSITION"
    return f'A_SpawnItemEx("{name}", {x}, {y}, 0, 0, 0, 0, 0, {flags}, 0, {number})'


def _item_sprite(color: str) -> str:
    return f"IT{color[0]}M"


def _pillar_sprite(color: str) -> str:
    return f"PI{color[0]}L"


def _post(width: int, height: int, rgb: tuple[int, int, int]) -> np.ndarray:
    """Return the image of a round post, which is darker at its sides."""
    across_C = np.linspace(-1, 1, width)
    shade_C1 = (0.5 + 0.5 * np.sqrt(1 - across_C**2))[:, None]
    return np.broadcast_to(np.rint(shade_C1 * rgb).astype(np.uint8), (height, width, 3)).copy()


def _start(library: Any, wad: Path) -> Any:
    """Return a running game of a wad, without what a player is told of health and items."""
    game = library.DoomGame()
    game.set_doom_scenario_path(str(wad))
    game.set_doom_game_path(str(Path(library.__file__).with_name("freedoom2.wad")))
    game.set_doom_config_path(str(wad.with_name("config.ini")))
    game.set_doom_map("map01")
    game.set_screen_resolution(library.ScreenResolution.RES_256X192)
    game.set_screen_format(library.ScreenFormat.RGB24)
    game.set_available_buttons(
        [library.Button.TURN_LEFT, library.Button.TURN_RIGHT, library.Button.MOVE_FORWARD]
    )
    for what in ("hud", "weapon", "crosshair", "messages", "screen_flashes", "decals", "particles"):
        getattr(game, f"set_render_{what}")(False)
    game.set_objects_info_enabled(True)
    game.set_window_visible(False)
    game.set_sound_enabled(False)
    game.set_mode(library.Mode.PLAYER)
    game.init()
    return game
