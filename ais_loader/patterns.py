"""Shell patterns over paths: with a slash they are about a whole path, otherwise about the name at its end."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence


def matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Whether a path matches any of them, upper and lower case apart; `*` goes over slashes."""
    of_paths = [re.compile(fnmatch.translate(one)) for one in patterns if "/" in one]
    of_names = [re.compile(fnmatch.translate(one)) for one in patterns if "/" not in one]

    def matches(path: str) -> bool:
        name = path.rpartition("/")[2]
        return any(one.match(path) for one in of_paths) or any(one.match(name) for one in of_names)

    return matches
