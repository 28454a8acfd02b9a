"""How a bad input must be refused: in one line, and without a trace in the file system."""

import contextlib
import io
from pathlib import Path

import pytest

from gtrxl_jax.cli.main import main


def contents(folder: Path) -> dict[Path, bytes | None]:
    """Return everything below a folder: files with their bytes, links and folders."""
    return {
        path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))
    }


def refused(folder: Path, *arguments: object, code: int = 2) -> str:
    """Run a command that must fail, leave everything in a folder as it is, and say why in a line.

    Returns:
      The line, without the name of the command.
    """
    before, out, err = contents(folder), io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main([str(argument) for argument in arguments])
    said = err.getvalue()
    assert ended.value.code == code, said
    assert out.getvalue() == ""
    assert said.count("\n") == 1, said
    assert contents(folder) == before
    _, error, line = said.partition(": error: ")
    assert error
    return line
