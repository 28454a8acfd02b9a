"""Lazy imports: names of a package that are imported on first use."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(
    package: str, homes: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package that re-exports names of modules.

    Args:
      package: the package's `__name__`.
      homes: the module that defines each name.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return list(homes), load, lambda: sorted({*vars(sys.modules[package]), *homes})
