"""The extras of this package, sets of optional packages, and how to install them."""

import importlib.metadata
import re
import shlex


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra, for error messages.

    It names the packages with the versions that this package requires, and therefore works for
    every installation, from a clone or from an address.

    Args:
      extra: a name under `optional-dependencies` in pyproject.toml.
    """
    try:
        requirements = importlib.metadata.requires("gtrxl_jax") or []
    except importlib.metadata.PackageNotFoundError:
        requirements = []
    pattern = re.compile(rf"""\s*(.+?)\s*;\s*extra == ["']{re.escape(extra)}["']""")
    packages = [match[1] for line in requirements if (match := pattern.fullmatch(line))]
    if not packages:
        # Imported from a clone that is not installed, or was before it had the extra.
        return f"pip install '.[{extra}]' in the clone of gtrxl_jax"
    return shlex.join(["pip", "install", *packages])
