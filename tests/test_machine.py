import os

import pytest

from gtrxl_jax import machine


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_limit_of_container_counts(tmp_path, monkeypatch):
    entry = machine._entry
    monkeypatch.setattr(machine, "_GROUP", tmp_path)
    monkeypatch.setattr(
        machine,
        "_entry",
        lambda path, name: 10**9 if path.name == "meminfo" else entry(path, name),
    )
    assert machine.available_memory() == 1024 * 10**9
    write(tmp_path, "memory.max", "max\n")
    write(tmp_path, "memory.current", "500\n")
    assert machine.available_memory() == 1024 * 10**9
    write(tmp_path, "memory.max", "9000\n")
    write(tmp_path, "memory.stat", "anon 300\ninactive_file 100\nactive_file 7\n")
    assert machine.available_memory() == 8600
    write(tmp_path, "memory/memory.limit_in_bytes", "2000")
    write(tmp_path, "memory/memory.usage_in_bytes", "1500")
    write(tmp_path, "memory/memory.stat", "inactive_file 0")
    assert machine.available_memory() == 500


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"XDG_CACHE_HOME": "/caches"}, "/caches/gtrxl_jax/programs-"),
        ({"XDG_CACHE_HOME": "", "HOME": "/me"}, "/me/.cache/gtrxl_jax/programs-"),
        ({machine.CACHE: "/mine"}, "/mine"),
        ({"JAX_ENABLE_COMPILATION_CACHE": "False"}, None),
    ],
)
def test_programs_are_kept_unless_the_user_says_otherwise(variables, expected, monkeypatch):
    monkeypatch.delenv(machine.CACHE, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    machine.enable_compilation_cache()
    folder = os.environ.get(machine.CACHE)
    monkeypatch.delenv(machine.CACHE, raising=False)
    assert folder is None if expected is None else folder.startswith(expected)
