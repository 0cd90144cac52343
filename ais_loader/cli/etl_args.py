"""Arguments of a transform on the command line: the JSON object of --args."""

from __future__ import annotations

import json
from typing import Any

import click


def arguments_of(text: str) -> dict[str, Any]:
    """Parse the arguments. Raises click.BadParameter."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"--args: {error}") from None
    if not isinstance(found, dict):
        raise click.BadParameter("--args: need a JSON object")
    return found
