"""Custom parts, by registered name or by a name of the form `package.module:Name`.

The latter are looked up only in modules that have been imported, so that loading a run folder never
executes code that the caller has not chosen. The command line imports the modules that its
arguments name.
"""

import dataclasses
import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

from gtrxl_jax.validation import field_names, require_choice


class Registry(dict[str, type]):
    """A mapping from names to classes.

    Args:
      field: name of the config field that selects a class, for error messages.
      kind: base class of all classes.
    """

    def __init__(self, field: str, kind: type):
        super().__init__()
        self._field, self._kind = field, kind

    def register(self, name: str, part: type) -> None:
        """Register a class under a name, for configs and the command line.

        Raises:
          ValueError: if another class is registered under the name.
        """
        if self.setdefault(name, part) is not part:
            raise ValueError(f"{self._field} {name!r} is already registered: choose another name")

    def find(self, name: str) -> Any:
        """Return the class with a registered name, or of the form `package.module:Name`.

        Raises:
          ValueError: if the name is unknown, or its module has not been imported.
        """
        if is_plugin(name):
            return find_plugin(self._field, name, self._kind)
        return self[require_choice(self._field, name, self)]


def with_name(config: Any, name: str) -> Any:
    """Switch to the config with another name, keeping changed settings that both have.

    Settings at the default of their class get the default of the new class.

    Args:
      config: for example a `CoreConfig` or an `AlgorithmConfig`.
      name: a name for `Registry.find`.
    """
    kind = config.named(name)
    shared = {field.name for field in dataclasses.fields(kind)} - {"name"}
    changed = {
        field.name: value
        for field in dataclasses.fields(config)
        if (value := getattr(config, field.name)) != field.default
    }
    return kind(name=name, **{k: v for k, v in changed.items() if k in shared})


def require_settings(
    names: Iterable[str], group: str, config: Any, kinds: Mapping[str, type]
) -> None:
    """Check that no setting is one that only other cores, algorithms or models have.

    A setting that none of them has is left to others, whose errors name similar ones.

    Args:
      names: dotted names of settings, such as "core.memory_size"; of a flag, its field may have the
        prefix "no_".
      group: the field that holds the config, such as "core".
      config: the chosen config.
      kinds: the config class of each registered name.

    Raises:
      ValueError: if there is such a setting.
    """
    own = [name for name, _ in field_names(config) if name != "name"]
    for name in names:
        setting = name.removeprefix(f"{group}.")
        fields = {setting, setting.removeprefix("no_")}
        if setting == name or fields.intersection(["name", *own]):
            continue
        others = [
            kind
            for kind, of_kind in kinds.items()
            if fields.intersection(field.name for field in dataclasses.fields(of_kind))
        ]
        if others:
            raise ValueError(
                f"{group} {config.name} has no setting {setting}, unlike {', '.join(others)}: its "
                f"settings are {', '.join(own)}"
            )


HOST_LIBRARIES = ("gymnasium", "envpool", "dmlab", "memory-maze", "vizdoom")
"""Libraries whose environments are named `gymnasium:NAME`, see `envs.host`."""

JITTED_LIBRARIES = ("jumanji", "xminigrid")
"""Libraries of jitted environments, named `jumanji:NAME`, see `envs.adapters.suites`."""


def is_of_host_library(name: str) -> bool:
    """Return whether a name is of an environment of one of the libraries in `HOST_LIBRARIES`."""
    return _library_of(name) in HOST_LIBRARIES


def is_of_jitted_library(name: str) -> bool:
    """Return whether a name is of an environment of one of the `JITTED_LIBRARIES`."""
    return _library_of(name) in JITTED_LIBRARIES


def _library_of(name: str) -> str:
    """Return what is before the colon of a name; empty without one."""
    return name.partition(":")[0] if isinstance(name, str) and ":" in name else ""


def is_plugin(name: str) -> bool:
    """Return whether a name is of the form `package.module:Name`."""
    is_of_library = is_of_host_library(name) or is_of_jitted_library(name)
    # An address, hf://owner/name, is none.
    return isinstance(name, str) and ":" in name and "://" not in name and not is_of_library


_imported: dict[str, None] = {}
"""The names, `package.module:`, of the modules that `import_plugins` has imported, in their order.
"""


def imported_plugins() -> list[str]:
    """Return what another process passes to `import_plugins` to import the same modules."""
    return list(_imported)


def import_plugins(names: Iterable[str]) -> None:
    """Import the module of each `package.module:Name`; a file in the working directory comes first.

    Other names are ignored.

    Raises:
      ValueError: if there is no such module, another one of its name is loaded, or it raises an
        error.
    """
    for name in names:
        if is_plugin(name):
            _import(name)
            _imported[f"{name.partition(':')[0]}:"] = None


def _import(name: str) -> None:
    module = name.partition(":")[0]
    if not all(part.isidentifier() for part in module.split(".")):
        raise ValueError(f"{name!r} does not begin with the name of a module: use module:Name")
    here = os.getcwd()
    if sys.path[:1] not in ([here], [""]):
        sys.path.insert(0, here)  # as `python -m` does
    importlib.invalidate_caches()  # the file may be new
    package = module.partition(".")[0]
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if missing and (module == missing or module.startswith(f"{missing}.")):
            found = f" in {_file(sys.modules[package])}" if package in sys.modules else ""
            raise ValueError(
                f"{name!r}: there is no module {module}{found}: use an installed module, or a file "
                "in the working directory or in a folder of PYTHONPATH, without .py"
            ) from None
        raise ValueError(
            f"{name!r}: the module {module} raises {type(error).__name__}: {error}"
        ) from error
    file, own = _file(sys.modules[package]), PathFinder.find_spec(package, [here])
    if own and own.origin and not (os.path.exists(file) and os.path.samefile(file, own.origin)):
        raise ValueError(f"{name!r}: {package} is {file}, not {own.origin}: rename the latter")


def _file(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "a built-in module"


def find_plugin(field: str, name: str, kind: type) -> Any:
    """Return a class from a module that has been imported.

    Args:
      field: name of the config field, for error messages.
      name: `package.module:Name`.
      kind: base class that the class must have.

    Raises:
      ValueError: if the module has not been imported, or has no such class.
    """
    found = find_object(field, name)
    if not (isinstance(found, type) and issubclass(found, kind)):
        module, _, attribute = name.partition(":")
        raise ValueError(
            f"{field} {name!r}: {module} has no {kind.__name__} named {attribute!r}, in "
            f"{_file(sys.modules[module])}"
        )
    return found


def find_object(field: str, name: str) -> Any:
    """Return what a module that has been imported has under a name; None if it has nothing.

    Args:
      field: name of the config field, for error messages.
      name: `package.module:Name`.

    Raises:
      ValueError: if the module has not been imported.
    """
    module, _, attribute = name.partition(":")
    if module not in sys.modules:
        raise ValueError(
            f"{field} {name!r} needs the module {module}: import it first, with --modules {module} "
            "on the command line"
        )
    return getattr(sys.modules[module], attribute, None)
