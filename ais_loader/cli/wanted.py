"""Options --include and --exclude: which files of a folder a command is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def wanted_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `include` and `exclude`, each a tuple of shell patterns."""
    include = click.option(
        "--include",
        metavar="PATTERN",
        multiple=True,
        help="With -r: only files that match this shell pattern, by name or, if it has a slash, by path "
        "relative to the folder; repeatable.",
    )
    exclude = click.option(
        "--exclude", metavar="PATTERN", multiple=True, help="With -r: skip files that match this pattern; repeatable."
    )
    return include(exclude(command))
