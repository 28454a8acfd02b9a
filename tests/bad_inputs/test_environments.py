"""Environments of one's own whose parts do not fit together."""

import jax.numpy as jnp
import pytest
from flax import struct
from gymnax.environments import environment, spaces

from gtrxl_jax.envs.consistency import require_consistent
from gtrxl_jax.envs.stream import Stream


@struct.dataclass
class State(environment.EnvState):
    inner: dict


class Sound(environment.Environment):
    """An environment of which each variant breaks one thing."""

    @property
    def default_params(self):
        return environment.EnvParams()

    def reset_env(self, key, params):
        state = State(time=jnp.zeros((), jnp.int32), inner={"map": jnp.zeros((3, 2))})
        return self.first(), state

    def step_env(self, key, state, action, params):
        state = self.following(state)
        return self.later(), state, jnp.float32(0), jnp.bool_(False), {}

    def first(self):
        return {"eye": jnp.zeros(3), "ear": jnp.zeros((), jnp.int32)}

    def later(self):
        return self.first()

    def following(self, state):
        return state.replace(time=state.time + 1)

    def action_space(self, params=None):
        return spaces.Discrete(2)

    def observation_space(self, params=None):
        return spaces.Dict({"eye": spaces.Box(0.0, 1.0, (3,)), "ear": spaces.Discrete(4)})


def variant(**methods):
    return type("Broken", (Sound,), methods)()


ENVIRONMENTS = {
    "shape": (
        variant(later=lambda self: self.first() | {"eye": jnp.zeros(4)}),
        r"observation\['eye'\] is float32\[3\] after reset_env and float32\[4\] after step_env",
    ),
    "dtype": (
        variant(later=lambda self: self.first() | {"ear": jnp.zeros(())}),
        r"observation\['ear'\] is int32\[\] after reset_env and float32\[\] after step_env",
    ),
    "lost part": (
        variant(later=lambda self: {"eye": jnp.zeros(3)}),
        r"observation\['ear'\] is int32\[\] after reset_env and absent after step_env",
    ),
    "new part": (
        variant(later=lambda self: self.first() | {"nose": jnp.zeros(1)}),
        r"observation\['nose'\] is absent after reset_env and float32\[1\] after step_env",
    ),
    "state": (
        variant(following=lambda self, state: state.replace(inner={"map": jnp.zeros((3, 3))})),
        r"state.inner\['map'\] is float32\[3, 2\] after reset_env and float32\[3, 3\]",
    ),
    "dtype of state": (
        variant(following=lambda self, state: state.replace(time=state.time + 0.5)),
        r"state.time is int32\[\] after reset_env and float32\[\] after step_env",
    ),
    "space": (
        variant(first=lambda self: Sound.first(self) | {"eye": jnp.zeros(5)}),
        r"observation\['eye'\] is float32\[5\], but float32\[3\] in observation_space: declare",
    ),
    "part beside the space": (
        variant(first=lambda self: Sound.first(self) | {"nose": jnp.zeros(5)}),
        r"observation\['nose'\] is float32\[5\], but absent in observation_space: declare",
    ),
}


def test_sound_environment_is_consistent():
    stream = Stream(Sound(), environment.EnvParams(), 2)
    assert require_consistent(stream) is stream


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environments(name):
    env, message = ENVIRONMENTS[name]
    stream = Stream(env, env.default_params, 2)
    with pytest.raises(ValueError, match=f"^environment Broken: {message}") as caught:
        require_consistent(stream)
    assert "\n" not in str(caught.value)
