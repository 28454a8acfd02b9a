"""The type checker of the tests: every call of the package is checked against its annotations."""

from typing import Any

from beartype import BeartypeConf, beartype

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))


def checked(function: Any) -> Any:
    """Check the calls of a function, but not of constructors.

    JAX rebuilds pytrees with leaves that are not arrays: shapes, shardings, None.
    """
    return function if function.__name__ == "__init__" else _check(function)
