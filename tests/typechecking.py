"""The type checker of the tests: every call of the package is checked against its annotations."""

from typing import Any

from beartype import BeartypeConf, beartype

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_checks: dict[Any, Any] = {}


def checked(function: Any) -> Any:
    """Check the calls of a function, but not of constructors.

    JAX rebuilds pytrees with leaves that are not arrays: shapes, shardings, None.

    jaxtyping calls this with empty functions that stand for the package's, each time that one is
    defined; those that are defined within others have the same check each time.
    """
    if function.__name__ == "__init__":
        return function
    arguments = function.__code__.co_varnames, *function.__annotations__.items()
    key = function.__module__, function.__qualname__, arguments
    if key not in _checks:
        _checks[key] = _check(function)
    return _checks[key]
