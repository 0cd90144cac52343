"""Root of the command line: maps names to commands, and each failure to one line and an exit code.

Nothing is imported before it is needed: `ais-loader --help` loads neither gRPC nor the store.

Standard streams that the caller has closed, as by `<&-`, are replaced. A free descriptor below 3 goes to the next
opened file, which may belong to the store: what a library then writes to standard error would be written into that
file.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import traceback
from functools import partial
from importlib.metadata import entry_points
from typing import Any, NoReturn

import click

from ais_loader import __version__
from ais_loader.cli.groups import HintingGroup
from ais_loader.cli.show import in_commands
from ais_loader.errors import LoaderError
from ais_loader.extras import MissingExtra
from ais_loader.tracebacks import DEBUG_VARIABLE

# Commands of a trainer and the modules that define them.
_COMMANDS = {
    "bucket": "ais_loader.cli.bucket",
    "put": "ais_loader.cli.put",
    "promote": "ais_loader.cli.promote",
    "get": "ais_loader.cli.get",
    "ls": "ais_loader.cli.ls",
    "cp": "ais_loader.cli.cp",
    "mv": "ais_loader.cli.cp",
    "rm": "ais_loader.cli.rm",
    "du": "ais_loader.cli.du",
    "exists": "ais_loader.cli.metadata",
    "set-metadata": "ais_loader.cli.metadata",
    "snapshot": "ais_loader.cli.snapshot",
    "warm": "ais_loader.cli.remote",
    "evict": "ais_loader.cli.remote",
    "remote": "ais_loader.cli.remote",
    "batch": "ais_loader.cli.batch",
    "ledger": "ais_loader.cli.batch",
    "forecast": "ais_loader.cli.forecast",
    "etl": "ais_loader.cli.etl",
    "ui": "ais_loader.cli.ui",
    "bench": "ais_loader.cli.bench",
    "completion": "ais_loader.cli.stores",
}
# Their descriptions in `ais-loader --help`, which imports none of them.
_SHORT_HELP = {
    "bucket": "Create, list, change, and delete buckets.",
    "put": "Store files as objects, replacing objects of the same name.",
    "promote": "Turn files on the store's own machines into objects.",
    "get": "Write an object to a file or to standard output, or a folder of objects to files.",
    "ls": "List buckets, a folder of a bucket, or the members of an archive.",
    "cp": "Copy objects within a store, to other names or buckets.",
    "mv": "Rename objects, or move them to another bucket of the same store.",
    "rm": "Delete objects, thousands with one request.",
    "deny": "Take objects of BUCKET down, so that nobody reads or puts them any more, and remove their bytes.",
    "snapshot": "Preserve a bucket as it is now, despite later writes and deletions.",
    "warm": "Store the objects of a remote bucket that are cold, before they are read.",
    "evict": "Remove stored copies of a remote bucket to free space; the remote objects stay.",
    "remote": "Show requests and pending uploads of remote buckets, and list them once.",
    "du": "Count objects and bytes; copies are not counted.",
    "exists": "Check whether buckets and objects exist; the exit code is the answer.",
    "set-metadata": "Change an object's metadata, such as source=studio.",
    "batch": "Fetch the objects of LIST with one request, in that order.",
    "ledger": "Name the exact samples of a training step, in the order of its batch.",
    "forecast": "Show what the next epochs of a loader request, and how long its trainer waits, before they run.",
    "certify": "Sign what a training run has read, up to the position STATE.",
    "verify": "Check a certificate of `certify`, or proofs from one, and say what it proves.",
    "etl": "Manage transforms, which run where the data is stored.",
    "ui": "Show a store in your browser, until interrupted.",
    "bench": "Benchmark a store: embedded, a node, or a cluster.",
    "completion": "Print a shell completion script for commands, options, buckets, and object names.",
}
_SECTIONS = {
    **dict.fromkeys((*_COMMANDS, "deny"), "Buckets and objects"),
    **dict.fromkeys(("warm", "evict", "remote"), "Remote buckets"),
    **dict.fromkeys(("batch", "ledger", "forecast", "certify", "verify", "etl"), "Batches and transforms"),
    **dict.fromkeys(("ui", "bench", "completion"), "Tools"),
}
_OF_OPERATORS = "Nodes, on their machines"
# Names that other tools use, or that belong to a group here, with the command here.
_ELSEWHERE = {
    "copy": "cp",
    "create": "bucket create",
    "delete": "rm",
    "down": "cluster down",
    "download": "get -r",
    "list": "ls",
    "logs": "cluster logs",
    "move": "mv",
    "node": "serve",
    "rename": "mv",
    "server": "serve",
    "start": "serve",
    "stat": "get --head",
    "status": "cluster status",
    "up": "cluster up",
    "upload": "put -r",
}
OPERATORS_COMMANDS = "ais_loader.commands"
"""Entry points of the commands in storage_node, if it is installed."""
_INTERRUPTED = 130
_BROKEN_PIPE = 141


class _Commands(HintingGroup):
    """Imports a command's module only when that command is run or described."""

    synonyms = _ELSEWHERE

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *sorted(entry_points(group=OPERATORS_COMMANDS).names)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        command: click.Command | None = None
        if name in _COMMANDS:
            command = getattr(importlib.import_module(_COMMANDS[name]), name.replace("-", "_"))
        else:
            for entry_point in entry_points(group=OPERATORS_COMMANDS, name=name):
                command = entry_point.load()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] == "help":
            return "help", _help_of(args[1:]), []
        name, command, rest = super().resolve_command(ctx, args)
        if ctx.params.get("store") and name not in (*_COMMANDS, "deny"):
            ctx.fail(f"`{name}` has no --store; see `ais-loader {name} --help`")
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            sections.setdefault(_SECTIONS.get(name, _OF_OPERATORS), []).append((name, self._short_help(ctx, name)))
        width = max(len(name) for rows in sections.values() for name, _ in rows)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in rows])

    def _short_help(self, ctx: click.Context, name: str) -> str:
        if name in _SHORT_HELP:
            return _SHORT_HELP[name]
        command = self.get_command(ctx, name)
        return "" if command is None else command.get_short_help_str(sys.maxsize)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        hold_standard_streams()
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its notes on handshakes repeat what our errors say
        try:
            return super().main(*args, **kwargs)
        except OSError as error:  # from output without a command, such as --help
            click.echo(f"Error: {one_line(error)}", err=True)
            _silence_stdout()
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            raise click.exceptions.Exit(_INTERRUPTED) from None
        except BrokenPipeError:
            _silence_stdout()
            raise click.exceptions.Exit(_BROKEN_PIPE) from None
        except Exception as error:
            if ctx.params.get("debug"):
                traceback.print_exc()
            raise click.ClickException(one_line(error)) from error


def _help_of(words: list[str]) -> click.Command:
    """Return a command that shows the help of `ais-loader WORDS --help`, for `ais-loader help put`."""

    def show() -> None:
        context = click.get_current_context().find_root()
        context.command.main([*words, "--help"], prog_name=context.info_name, standalone_mode=False)

    return click.Command("help", callback=show)


def _silence_stdout() -> None:
    """Redirect standard output, which is no longer read: buffered output must not fail when the process ends."""
    out = sys.__stdout__
    if out is not None and out is sys.stdout:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


def one_line(error: BaseException) -> str:
    """Return the one-line message of a failure."""
    text = " ".join(str(error).split("\n"))
    if isinstance(error, LoaderError):
        return in_commands(text)
    if isinstance(error, OSError):
        reason = error.strerror or text or type(error).__name__
        return reason if error.filename is None else f"{click.format_filename(error.filename)}: {reason}"
    if isinstance(error, MissingExtra):
        return text
    return f"unexpected {type(error).__name__}: {text} (AIS_LOADER_DEBUG=1 shows where)"


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Exit codes:
  0    everything was done
  1    something failed; the message, one line, is on standard error
  2    the command line is wrong; nothing was done
  3    what `exists` asked for does not exist
  130  interrupted with Ctrl-C
  141  whoever read the output stopped reading (as in `| head`)
""",
)
@click.option(
    "--debug",
    is_flag=True,
    envvar=DEBUG_VARIABLE,
    show_envvar=True,
    help="Also show the Python traceback of a failure.",
)
@click.option("--store", metavar="URL", help="The store to use; you can also pass it after the command.")
@click.version_option(__version__, prog_name="ais-loader")
def main(debug: bool, store: str | None) -> None:
    """Store training data, serve it, and fetch it in batches.

    Commands that use a store take --store, before their name or after it: a folder of this machine, or a node at
    grpc://HOST:PORT. Or set the environment variable AIS_LOADER_URL once. Objects are named BUCKET/NAME or
    ais://BUCKET/NAME. Data goes to standard output, everything else to standard error.
    """
    if debug and DEBUG_VARIABLE not in os.environ:
        os.environ[DEBUG_VARIABLE] = "1"  # so that tracebacks are complete
        click.get_current_context().call_on_close(partial(os.environ.pop, DEBUG_VARIABLE))


class _Closed(io.RawIOBase):
    """A closed stream: input that could not be read, and output that could not be shown, must not go unnoticed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> NoReturn:
        raise OSError(errno.EBADF, f"standard {self._name} is closed")

    def write(self, data: Any) -> NoReturn:
        raise OSError(errno.EBADF, f"standard {self._name} is closed")


def hold_standard_streams() -> None:
    """Open the descriptors 0, 1 and 2 that are closed. Call it before anything else is opened.

    Reading a closed standard input, and writing to a closed standard output, raises OSError (EBADF). Output to a closed
    standard error is lost.
    """
    for number in range(3):
        if not _is_open(number):
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is this one
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_Closed("input")), encoding="utf-8")
    if sys.stdout is None:
        # Unbuffered, so that no rest fails a second time when the process ends.
        sys.stdout = io.TextIOWrapper(_Closed("output"), encoding="utf-8", write_through=True)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the process ends


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
