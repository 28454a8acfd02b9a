"""What users bring, by names such as `package.module:Name`.

A name is looked up among the modules that are imported, so that opening somebody's run folder never
runs code that the caller has not chosen. The command line imports what is named on it.
"""

import importlib
import os
import sys
from typing import Any


def is_plugin(name: str) -> bool:
    """Return whether a name refers to a module, `package.module:Name`."""
    return ":" in name


def import_plugin(name: str) -> None:
    """Import the module of a name, also from the working directory; other names have none.

    Raises:
      ValueError: there is no such module.
    """
    if not is_plugin(name):
        return
    module = name.partition(":")[0]
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.split(".")[0] and error.name != module:
            raise
        raise ValueError(
            f"{name!r}: there is no module {module}: give the name of an installed module, or of a "
            "file in this directory without its .py"
        ) from None


def find_plugin(field: str, name: str, kind: type) -> Any:
    """Return the class that a name refers to, of a module that is imported already.

    Args:
      field: what errors call it.
      name: `package.module:Name`.
      kind: a base class that it must have.

    Raises:
      ValueError: the module is not imported, or has no such class.
    """
    module, _, attribute = name.partition(":")
    if module not in sys.modules:
        raise ValueError(f"{field} {name!r} needs the module {module}: import it first")
    found = getattr(sys.modules[module], attribute, None)
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise ValueError(f"{field} {name!r}: {module} has no {kind.__name__} named {attribute!r}")
    return found
