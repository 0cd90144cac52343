"""Metadata and conditions of `put`, parsed from its options."""

from __future__ import annotations

from dataclasses import dataclass, field

import click

from ais_loader.errors import InvalidRequest
from ais_loader.transport.validation import require_metadata


@dataclass(frozen=True, slots=True)
class PutHow:
    metadata: dict[str, str] = field(default_factory=dict)
    if_absent: bool = False


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
