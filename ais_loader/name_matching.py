"""Matching of names: shell patterns for paths, and texts for errors: the known name nearest to an unknown one.

A pattern with a slash matches a whole path, any other one the last component. Every module that
suggests a name uses these functions, so that clients, nodes and commands phrase suggestions alike.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

from ais_loader.errors import InvalidRequest

F = TypeVar("F", bound=Callable[..., Any])
Patterns: TypeAlias = str | Sequence[str]
"""One shell pattern, or several."""


def pattern_list(option: str, patterns: Patterns | None) -> tuple[str, ...]:
    """Return the patterns of an option, which may be a single one. Raises InvalidRequest, TypeError."""
    if patterns is not None and not isinstance(patterns, Iterable):
        raise TypeError(f"{option} is a {type(patterns).__name__}; need shell patterns such as '*.wav'")
    found = (patterns,) if isinstance(patterns, str) else tuple(patterns or ())
    for pattern in found:
        if not isinstance(pattern, str):
            raise TypeError(f"{option}: a pattern is a {type(pattern).__name__}; need shell patterns such as '*.wav'")
        if not pattern:
            raise InvalidRequest(f"{option}: a pattern is empty and matches no name; need shell patterns like '*.wav'")
    return found


def matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return whether a path matches any of the patterns. Case-sensitive; `*` matches slashes too."""
    of_paths = [re.compile(fnmatch.translate(one)) for one in patterns if "/" in one]
    of_names = [re.compile(fnmatch.translate(one)) for one in patterns if "/" not in one]

    def matches(path: str) -> bool:
        name = path.rpartition("/")[2]
        return any(one.match(path) for one in of_paths) or any(one.match(name) for one in of_names)

    return matches


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


def names_unknown_options(elsewhere: Mapping[str, str] | None = None) -> Callable[[F], F]:
    """Decorate a function so that its TypeError for an unknown option names the nearest one. See `unknown_option`."""

    def decorate(function: F) -> F:
        options = {
            name: None
            for name, parameter in inspect.signature(function).parameters.items()
            if name != "self" and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
        }
        name = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def call(*arguments: Any, **given: Any) -> Any:
            try:
                return function(*arguments, **given)
            except TypeError:
                unknown = next((one for one in given if one not in options), None)
                if unknown is None:
                    raise
            raise unknown_option(name, unknown, options, elsewhere)

        return cast("F", call)

    return decorate


def printable_path(path: str) -> str:
    """Return a path as valid Unicode, for people: bytes that are not UTF-8 as `\\xe9`."""
    return path if path.isascii() else os.fsencode(path).decode("utf-8", "backslashreplace")


def is_pattern(name: str) -> bool:
    """Return whether `name` has a character that is special in shell patterns."""
    return any(char in name for char in "*?[")
