"""Shell patterns for paths: a pattern with a slash matches a whole path, any other one the last component."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from ais_loader.errors import InvalidRequest

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
