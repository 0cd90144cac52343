"""Options `--etl-code`, `--etl-command` and `--etl-server`, the same for a node and for a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS = (
    click.option(
        "--etl-code",
        is_flag=True,
        help="Let clients run their own Python code here, in worker processes. docs/etl.md describes "
        "how it is contained.",
    ),
    click.option(
        "--etl-command",
        metavar="PROGRAM",
        multiple=True,
        help="Program that transforms may run on objects, by name or path, such as ffmpeg; repeatable.",
    ),
    click.option(
        "--etl-server",
        metavar="ADDRESS",
        multiple=True,
        help="Server that transforms may send objects to, such as http://127.0.0.1:9000; repeatable.",
    ),
)


def takes_etl(command: F) -> F:
    """With parameters etl_code, etl_command and etl_server."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def etl_assignments(*, etl_code: bool, etl_command: tuple[str, ...], etl_server: tuple[str, ...]) -> tuple[str, ...]:
    """As with --set, of what was given. Raises click.UsageError."""
    for one in (*etl_command, *etl_server):
        if not one or any(letter.isspace() for letter in one):
            raise click.UsageError(f"{one!r}: a program or a server with a space in it goes into --config")
    given = {
        "etl_code": "true" if etl_code else "",
        "etl_commands": " ".join(etl_command),
        "etl_servers": " ".join(etl_server),
    }
    return tuple(f"{name}={value}" for name, value in given.items() if value)
