"""Errors in custom parts: the class, its file and line, what is wrong, and what to do about it."""

import contextlib
import inspect
import os
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import jax

PACKAGES = ("gtrxl_jax", "gymnax", "flax", "builtins")
"""The packages whose classes are not custom."""

_LATE = "a value that only the compiled program computes"
REMEDIES: dict[type[Exception], str] = {
    jax.errors.TracerBoolConversionError: (
        f"a Python condition depends on {_LATE}: use jnp.where or jax.lax.cond"
    ),
    jax.errors.TracerIntegerConversionError: (
        f"a Python index depends on {_LATE}: index a JAX array, as in jnp.asarray(values)[index]"
    ),
    jax.errors.TracerArrayConversionError: (
        f"a function of NumPy is applied to {_LATE}: use jax.numpy's"
    ),
    jax.errors.NonConcreteBooleanIndexError: (
        f"a shape depends on {_LATE}: use jnp.where instead of a mask as an index"
    ),
    jax.errors.ConcretizationTypeError: (
        f"a Python number depends on {_LATE}: use JAX's operations instead of int, float, or range"
    ),
    jax.errors.UnexpectedTracerError: (
        "a value was kept from an earlier call, for example in self: keep it in the state"
    ),
}
"""What to write instead, by JAX's error. The first that fits counts."""


class CustomPartError(ValueError):
    """Raised for an error in a custom part, from which it follows (`__cause__`)."""


def is_custom(part: Any) -> bool:
    """Return whether a class or function, or the class of another part, is of another package."""
    return _class_of(part).__module__.partition(".")[0] not in PACKAGES


def describe_part(kind: str, part: Any, method: str = "") -> str:
    """Return "environment Maze (maze.py, line 12)", with the place of a method if it has one.

    The place of classes of this package, and of those without a source, is not named.
    """
    cls = _class_of(part)
    text = f"{kind} {cls.__name__}"
    if not is_custom(cls):
        return text
    with contextlib.suppress(OSError, TypeError):
        source = inspect.unwrap(getattr(cls, method, cls))
        source = source.fget if isinstance(source, property) and source.fget else source
        text += f" ({_relative(inspect.getsourcefile(source) or '')}"
        with contextlib.suppress(OSError):  # Classes made by a function have no source lines.
            text += f", line {inspect.getsourcelines(source)[1]}"
        text += ")"
    return text


def require_returned(
    kind: str, part: Any, method: str, returned: Any, values: tuple[str, ...]
) -> None:
    """Raise ValueError unless a method returned so many values.

    Args:
      kind: see `describe_part`.
      part: see `describe_part`.
      method: the name of the method.
      returned: what it returned.
      values: the names of what it should return.
    """
    several = isinstance(returned, tuple | list)
    if not several or len(returned) != len(values):
        found = f"{len(returned)} values" if several else "one value"
        raise ValueError(
            f"{describe_part(kind, part, method)}: {method} returns {found}: return {len(values)}, "
            f"{', '.join(values)}"
        )


@contextlib.contextmanager
def wrap_errors(kind: str, part: Any) -> Iterator[None]:
    """Name a custom part, and the line of its file, in errors that are raised in it.

    Raises:
      CustomPartError: instead of an error in the code of the part, or in a library that was called
        for it. Errors that this package raises, and errors in its own parts, are left as they are.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, CustomPartError) or not is_custom(part):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if _is_user_code(frame.filename, part)]
        if own:
            place = f"{_relative(own[-1].filename)}, line {own[-1].lineno}, in {own[-1].name}"
            where = f"{kind} {_class_of(part).__name__} ({place})"
        elif frames and frames[-1].filename.startswith(_HERE):
            raise  # a message of this package
        else:
            where = describe_part(kind, part)
        raise CustomPartError(f"{where}: {_reason(error)}") from error


def leaves_by_name(**trees: Any) -> dict[str, Any]:
    """Return the leaves of trees by name: `state.time`."""
    return {
        part + jax.tree_util.keystr(path): leaf
        for part, tree in trees.items()
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def describe_array(leaf: Any) -> str:
    """Return dtype and shape, `float32[3, 4]`, of an array or of its description."""
    return "absent" if leaf is None else f"{leaf.dtype}{list(leaf.shape)}"


def first_difference(one: dict[str, Any], other: dict[str, Any]) -> tuple[str, str, str] | None:
    """Return name and descriptions of the first leaves that differ in shape or dtype."""
    for name in {**one, **other}:
        texts = [describe_array(tree.get(name)) for tree in (one, other)]
        if texts[0] != texts[1]:
            return name, texts[0], texts[1]
    return None


def require_same_shapes(where: str, call: str, name: str, before: Any, after: Any) -> None:
    """Raise ValueError if a call of a custom part changes the shape or dtype of an array.

    Args:
      where: the part, see `describe_part`.
      call: the method, or what it makes.
      name: the name of the tree.
      before: the tree that the part got.
      after: the tree that it returned.
    """
    if found := first_difference(leaves_by_name(**{name: before}), leaves_by_name(**{name: after})):
        leaf, there, here = found
        raise ValueError(
            f"{where}: {leaf} is {there} before {call} and {here} after it: return the same shapes "
            "and dtypes"
        )


def require_scalars(where: str, values: Mapping[str, Any], remedy: str = "jnp.mean") -> None:
    """Raise ValueError for the first of the values of a custom part that is no scalar.

    Args:
      where: the part, see `describe_part`.
      values: the values, as arrays or their descriptions, by name.
      remedy: functions that return scalars.
    """
    for name, value in values.items():
        if getattr(value, "shape", None) != ():
            raise ValueError(
                f"{where}: {name} is {describe_array(value)}: return a scalar, for example by "
                f"{remedy}"
            )


_HERE = f"{Path(__file__).parent}{os.sep}"
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})


def _class_of(part: Any) -> Any:
    """Return a class or function, or the class of any other part."""
    return part if isinstance(part, type | FunctionType) else type(part)


def _is_user_code(file: str, part: Any) -> bool:
    """Return whether a file has a custom class of the part, or belongs to no library."""
    kind = _class_of(part)
    for cls in getattr(kind, "__mro__", (kind,)):
        if is_custom(cls):
            with contextlib.suppress(OSError, TypeError):
                if inspect.getsourcefile(cls) == file:
                    return True
    return not file.startswith((_HERE, "<", *_LIBRARIES))


def _reason(error: Exception) -> str:
    for kind, remedy in REMEDIES.items():
        if isinstance(error, kind):
            return remedy
    text = " ".join(str(error).split())
    text = text if len(text) <= 300 else f"{text[:300]} ..."
    if not text:  # as of a method that a base class leaves to others, or of an assertion
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = f"in {last.name} of {Path(last.filename).name}, line {last.lineno}"
        text += ": define it" if isinstance(error, NotImplementedError) else ""
    return f"{type(error).__name__}: {text}"


def _relative(file: str) -> str:
    """Return a path relative to the working directory if it is below it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
