"""Options that several commands have: --args, --include, --exclude, and metadata."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from ais_loader.errors import InvalidRequest
from ais_loader.transport.base import require_metadata


def arguments_of(text: str) -> dict[str, Any]:
    """Parse the JSON object of --args. Raises click.BadParameter."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"--args: {error}") from None
    if not isinstance(found, dict):
        raise click.BadParameter("--args: need a JSON object")
    return found


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


def parse_metadata(context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    """Parse KEY=VALUE pairs, each key once. Raises click.BadParameter."""
    metadata: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE")
        if key in metadata:
            raise click.BadParameter(f"{key!r} is given twice")
        metadata[key] = value
    try:
        require_metadata(metadata)
    except InvalidRequest as error:
        raise click.BadParameter(str(error)) from error
    return metadata
