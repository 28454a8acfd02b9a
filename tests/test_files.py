import ast
import contextlib
import errno
import os
import resource
import stat
from pathlib import Path

import pytest

import gtrxl_jax
from gtrxl_jax.files import append_line, atomic, printable, try_lock


def encoding_of(call):
    """Return whether a call names the encoding of the text that it reads or writes, if any."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    modes = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
    if name in ("read_text", "write_text"):
        given = len(call.args) > (name == "write_text")
    elif name == "open" and isinstance(call.func, ast.Name):
        given = any(isinstance(mode, str) and "b" in mode for mode in modes[-1:])
    else:
        given = True
    return given or any(keyword.arg == "encoding" for keyword in call.keywords)


def test_texts_do_not_depend_on_the_locale():
    package = Path(gtrxl_jax.__file__).parent
    assert not [
        f"{path}:{node.lineno}"
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and not encoding_of(node)
    ]


def test_printable():
    assert printable("a [b] ü ±") == "a [b] ü ±"
    assert printable("a\nb\x1b\udcff") == r"a\nb\x1b\udcff"


def test_file_and_parent_folders_are_created(tmp_path):
    path = tmp_path / "a" / "b" / "picture.png"
    with atomic(path) as temporary:
        assert temporary.suffix == ".png"
        temporary.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_failure_keeps_old_file(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail_half_way():
        with atomic(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_half_way()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_default_permissions(tmp_path):
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    with atomic(tmp_path / "atomic") as temporary:
        temporary.touch()
    assert stat.S_IMODE((tmp_path / "atomic").stat().st_mode) == stat.S_IMODE(
        ordinary.stat().st_mode
    )


def test_existing_file_is_not_replaced(tmp_path):
    path = tmp_path / "file.txt"
    for text in ["first", "second"]:
        with (
            pytest.raises(FileExistsError) if path.exists() else contextlib.nullcontext(),
            atomic(path, replace=False) as temporary,
        ):
            temporary.write_text(text)
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP])
def test_existing_file_is_not_replaced_without_hard_links(tmp_path, monkeypatch, number):
    def link(*_):
        raise OSError(number, "no links here")

    monkeypatch.setattr(os, "link", link)
    test_existing_file_is_not_replaced(tmp_path)
    monkeypatch.setattr("gtrxl_jax.files._WITHOUT_LINKS", ())
    with pytest.raises(OSError, match="no links here"), atomic(tmp_path / "b", replace=False) as b:
        b.touch()
    assert not (tmp_path / "b").exists()


def test_line_is_appended_whole_or_not(tmp_path):
    path = tmp_path / "lines"
    append_line(path, "one")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6, hard))  # room for two more bytes
    try:
        with pytest.raises(OSError, match="No space left on device"):
            append_line(path, "two")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    append_line(path, "three")
    assert path.read_text() == "one\nthree\n"


def test_what_is_no_longer_at_the_path_is_not_locked(tmp_path):
    path = tmp_path / "lock"
    with open(path, "wb") as removed:
        path.unlink()
        assert not try_lock(removed)
        with open(path, "wb") as new:
            assert not try_lock(removed)
            assert try_lock(new)
            with open(path, "rb") as again:
                assert not try_lock(again)
