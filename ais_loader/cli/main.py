"""The root of the command line: options that every command has, and errors as one line without a traceback."""

from __future__ import annotations

import importlib
from typing import Any

import click

from ais_loader import __version__
from ais_loader.errors import LoaderError

# Name of a command: the module that defines it, under its own name.
_COMMANDS = {
    "serve": "ais_loader.cli.serve",
}


class _Commands(click.Group):
    """Imports a command's module only when that command is run or described."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(_COMMANDS[name]), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (LoaderError, OSError) as error:
            raise click.ClickException(str(error)) from error


@click.command(cls=_Commands)
@click.version_option(__version__, prog_name="ais-loader")
def main() -> None:
    """A store for training data: put it in, serve it, fetch batches of it."""
