"""The platform of a program is that of its mesh."""

import jax

from gtrxl_jax.parallel.placement import make_mesh
from gtrxl_jax.platforms import platform


def test_mesh_decides(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert platform() == "tpu"
    with jax.set_mesh(make_mesh(2, 2)):
        assert platform() == "cpu"
        seen = []
        jax.jit(lambda x: seen.append(platform()) or x)(1.0)
        assert seen == ["cpu"]
