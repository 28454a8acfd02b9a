"""One clear error for an unknown name."""

import difflib
from collections.abc import Iterable


def check_choice(field: str, name: str, known: Iterable[str]) -> str:
    """Return `name` if it is among the known ones.

    Raises:
      ValueError: naming the field and the nearest valid names.
    """
    known = sorted(known)
    if name in known:
        return name
    near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "choose one of them."
    raise ValueError(f"unknown {field} {name!r}: {hint} Valid: {', '.join(known)}")
