"""Options `--etl-code`, `--etl-command` and `--etl-server`, shared by nodes and clusters."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from storage_node.settings.command_template import WrongCommand, check_commands

F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS = (
    click.option(
        "--etl-code",
        is_flag=True,
        help="Let clients run their own Python code and commands here, in worker processes. docs/etl.md describes "
        "how they are contained.",
    ),
    click.option(
        "--etl-command",
        metavar="NAME=WORDS",
        multiple=True,
        help="Command that clients may run on objects, with typed arguments, as "
        "'wav=ffmpeg -v error -i {input} -ar {rate:int(8000,48000)} {output}.wav'; repeatable.",
    ),
    click.option(
        "--etl-server",
        metavar="ADDRESS",
        multiple=True,
        help="Server that transforms may send objects to, such as http://127.0.0.1:9000; repeatable.",
    ),
)


def takes_etl(command: F) -> F:
    """Add the parameters etl_code, etl_command and etl_server to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def commands_of(etl_command: tuple[str, ...]) -> dict[str, str]:
    """Parse options NAME=WORDS into commands by name. Raises click.UsageError."""
    commands: dict[str, str] = {}
    for one in etl_command:
        name, equals, words = one.partition("=")
        try:
            if not equals or any(letter.isspace() for letter in name):
                raise WrongCommand(
                    f"{one!r}: need NAME=WORDS, as in 'wav=sox {{input}} -r {{rate:int}} {{output}}.wav' (--etl-code "
                    "allows clients to run any command)"
                )
            if name in commands:
                raise WrongCommand(f"{name!r} is given twice")
            check_commands({name: words})
        except WrongCommand as error:
            raise click.BadParameter(str(error), param_hint="'--etl-command'") from None
        commands[name] = words
    return commands


def etl_assignments(*, etl_code: bool, etl_command: tuple[str, ...], etl_server: tuple[str, ...]) -> tuple[str, ...]:
    """Convert the options to assignments like those of --set. Raises click.UsageError."""
    for one in etl_server:
        if not one or any(letter.isspace() for letter in one):
            raise click.UsageError(f"{one!r}: a server with a space in it goes into --config")
    given = {
        "etl_code": "true" if etl_code else "",
        "etl_servers": " ".join(etl_server),
        **{f"etl_commands.{name}": json.dumps(words) for name, words in commands_of(etl_command).items()},
    }
    return tuple(f"{name}={value}" for name, value in given.items() if value)
