"""The extras of this package, sets of optional packages, and how to install them."""

import importlib
import importlib.metadata
import re
import shlex
from collections.abc import Iterator
from typing import Any

from packaging.requirements import Requirement

PACKAGE = "gtrxl_jax"


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra, for error messages.

    It names the packages with the versions that this package requires, and therefore works for
    every installation, from a clone or from an address.

    Args:
      extra: a name under `optional-dependencies` in pyproject.toml.
    """
    try:
        requirements = importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        requirements = []
    pattern = re.compile(rf"""\s*(.+?)\s*;\s*extra == ["']{re.escape(extra)}["']""")
    packages = [match[1] for line in requirements if (match := pattern.fullmatch(line))]
    if not packages:
        # Imported from a clone that is not installed, or was before it had the extra.
        return f"pip install '.[{extra}]' in the clone of gtrxl_jax"
    return shlex.join(["pip", "install", *packages])


def import_extra(module: str, extra: str, user: str) -> Any:
    """Import a module of an optional package.

    Args:
      module: its name.
      extra: the extra that installs the package.
      user: what requires it, for the message.

    Raises:
      ImportError: if it cannot be imported, with the command that installs the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        command = install_command(extra)
        raise type(error)(f"{user} requires {package}: {command} ({error})") from error


def extras() -> list[str]:
    """Return the names of the extras; empty if the package is not installed."""
    try:
        found = importlib.metadata.metadata(PACKAGE).get_all("Provides-Extra", [])
    except importlib.metadata.PackageNotFoundError:
        return []
    return sorted(found)


def missing(extra: str = "") -> list[str] | None:
    """Return the requirements that are not satisfied, with the versions that are installed.

    Args:
      extra: an extra of this package; by default, what the package always requires.

    Returns:
      For example `["jax<0.12,>=0.10 (0.13.0)", "wandb>=0.31"]`; None if the package is not
      installed, but imported from a folder.
    """
    try:
        importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    return list(dict.fromkeys(_missing(PACKAGE, extra)))


def _missing(package: str, extra: str) -> Iterator[str]:
    for line in importlib.metadata.requires(package) or []:
        needed = Requirement(line)
        always = needed.marker is None or needed.marker.evaluate({"extra": ""})
        applies = needed.marker is None or needed.marker.evaluate({"extra": extra})
        if not applies or (always and extra):
            continue
        named = f"{needed.name}{needed.specifier}"
        try:
            installed = importlib.metadata.version(needed.name)
        except importlib.metadata.PackageNotFoundError:
            yield named
            continue
        if not needed.specifier.contains(installed, prereleases=True):
            yield f"{named} ({installed})"
        for inner in needed.extras:
            yield from _missing(needed.name, inner)
