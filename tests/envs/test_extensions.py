"""What environments know of themselves, and the defaults for those that do not."""

import pytest

from gtrxl_jax.envs import ENVIRONMENTS, cue_of, make_env
from gtrxl_jax.envs.adapters.suites import SUITES
from gtrxl_jax.envs.extensions import chance_of, cue_at_start, params_of_length
from gtrxl_jax.worlds.base import Cue
from gtrxl_jax.worlds.popgym import POPGYM

# These are explored, most without a cue at the start, or have many cues, one after another.
EXPLORED = ("AppleMaze", "Battleship", "MemoryMaze", "Numpad", "RockSample", "TwoColors")
FORAGING = (*EXPLORED, "ColorCubes", "EndlessTMaze")

# The environments of suites have tests of their own.
CUED = {n for n in ENVIRONMENTS if not n.startswith(FORAGING)} - {*POPGYM, *SUITES}


@pytest.mark.parametrize("name", sorted(CUED))
def test_memory_tasks_begin_with_cue(name):
    # The default view of 7 cells shows all of the smallest mazes.
    env, _ = make_env(name, **(dict(view_size=3) if "MiniGrid" in name else {}))
    assert cue_at_start(env)
    # In Action Associative Retrieval, a policy without memory may always take the same action, and
    # in MemoryChain repeat one that it has chosen by the cue.
    is_known = not name.startswith(("Associative", "MemoryChain"))
    assert chance_of(env) == (0.5 if is_known else None)


@pytest.mark.parametrize(
    ("name", "cue", "has_lengths"),
    [
        ("TMazePassive-v0", Cue("hint", (-1, 1)), True),
        ("TMazeActive-v0", Cue("hint", (-1, 1)), True),
        ("AssociativeRetrieval-v0", Cue("goal", (0, 1)), True),
        ("MiniGrid-MemoryS13-v0", Cue("cue", (3, 4)), False),
        ("MemoryChain-v0", None, False),
        ("Numpad-v0", None, False),
        ("MemoryMaze-9x9-v0", None, False),
        ("TwoColors-v0", Cue("color", (0, 1)), False),
        ("CartPole-v1", None, False),
    ],
)
def test_cues_and_lengths(name, cue, has_lengths):
    env, _ = make_env(name)
    assert cue_of(env) == cue
    params = params_of_length(env, 20)
    assert (params is not None) == has_lengths
    assert not has_lengths or params.max_steps_in_episode == 20


def test_other_environments_have_defaults():
    env, _ = make_env("CartPole-v1")
    assert not cue_at_start(env)
    assert chance_of(env) is None
