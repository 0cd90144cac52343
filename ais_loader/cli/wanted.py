"""Options --include and --exclude, which select files of a folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def wanted_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `include` and `exclude` to a command, each a tuple of shell patterns."""
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
