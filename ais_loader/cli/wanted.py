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
        help="With -r: only files that this shell pattern fits: their names or, if it has a slash, their paths "
        "from the folder; may be given again.",
    )
    exclude = click.option(
        "--exclude", metavar="PATTERN", multiple=True, help="With -r: not the files that this pattern fits."
    )
    return include(exclude(command))
