"""Hints for errors: the known name nearest to an unknown one, and what to use instead of a pattern.

Every module that suggests a name uses these functions, so that clients, nodes and commands phrase suggestions alike.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

PATTERN_HINT = "a name is not a pattern: Bucket.entries(pattern=...) lists the objects that match one"
"""Hint that stores append to the message for a missing object whose name looks like a pattern."""


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """Return the name of `known` that is most like `name`, or None if none is similar."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> str:
    """Return `; did you mean 'x'?` to append to a message, or an empty string if no known name is similar."""
    near = nearest(name, known, cutoff=cutoff)
    return "" if near is None else f"; did you mean {near!r}?"


def unknown_option(
    function: str, name: str, known: Iterable[str], elsewhere: Mapping[str, str] | None = None
) -> TypeError:
    """Return the error for a keyword argument that `function` does not have.

    `elsewhere` says where options of other functions belong, by their names.
    """
    options = list(known)
    if elsewhere and name in elsewhere:
        hint = f"; {elsewhere[name]}"
    else:
        hint = did_you_mean(name, options) or f"; its options are {', '.join(options)}"
    return TypeError(f"{function}: no option {name!r}{hint}")


def is_pattern(name: str) -> bool:
    """Return whether `name` has a character that is special in shell patterns."""
    return any(char in name for char in "*?[")
