"""Output of commands: names that are safe for a terminal, sizes, times, tables, progress."""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tqdm import tqdm

    from ais_loader.values.entry import ObjectInfo

_LINES_AT_ONCE = 256
WAIT_S = 1.0
"""Time before a wait is announced."""
_MAKES_STORES = logging.getLogger("storage_node.store.pool.open")
_NARROW = 60
NARROW_BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {remaining}"
"""Progress bar for terminals with fewer columns than `_NARROW`."""
# Control characters, surrogates, line separators; and the marks that change the order of text on a screen.
_ESCAPED_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
_REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

# Advice from stores and nodes, which do not know their caller, with its translation to the command line.
_ADVICE = {
    "create_bucket makes it": "`ais-loader bucket create` makes it",
    "client.etl.init makes one": "`ais-loader etl init` makes one",
    "client.etl.start starts it again": "`ais-loader etl start` starts it again",
    "pass replace=True to put this in its place": "--replace puts this in its place",
    "`recursive` promotes what is in it": "-r promotes what is in it",
}


def in_commands(reason: str) -> str:
    """Return the reason of a failure, with its advice translated to the command line."""
    for python, command in _ADVICE.items():
        reason = reason.replace(python, command)
    return reason


def cannot_listen(error: OSError, host: str, port: int, option: str) -> click.ClickException:
    """Return the error of a command that could not listen on a port, chosen by `option`."""
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
    in_use = " is another program listening there?" if error.errno == errno.EADDRINUSE else ""
    can_choose = error.errno in (errno.EADDRINUSE, errno.EACCES)
    hint = f";{in_use} {option} takes another port, 0 any that is free" if can_choose else ""
    return click.ClickException(f"cannot listen on {host}, port {port}: {reason}{hint}")


def printable(text: str) -> str:
    """Escape control characters, so that `text` is one line that is safe for a terminal. The rest is unchanged."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        ascii(char)[1:-1] if unicodedata.category(char) in _ESCAPED_CATEGORIES or char in _REORDERING else char
        for char in text
    )


def size_text(size_bytes: float) -> str:
    """Format a size for people, such as "13.2 KiB"."""
    if size_bytes < 1024:
        return f"{size_bytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size_bytes /= 1024
        # 1023.95 would be shown as "1024.0".
        if size_bytes < 1023.95:
            return f"{size_bytes:.1f} {unit}"
    return f"{size_bytes / 1024:,.1f} PiB"


def count_text(count: int, noun: str) -> str:
    """Format a count, such as "1 object" or "1,200 objects"."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun.removesuffix('y')}ies" if noun.endswith("py") else f"{count:,} {noun}s"


def _utc(time_ns: int) -> str:
    seconds, rest_ns = divmod(time_ns, 10**9)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest_ns // 1000).isoformat(timespec="microseconds")


def info_fields(info: ObjectInfo) -> dict[str, Any]:
    """Describe an object for --json; `batch` reads these lines too."""
    return {
        "bucket": info.bucket,
        "name": info.name,
        "size_bytes": info.size_bytes,
        "version": info.version,
        "crc32c": f"{info.checksum:08x}",
        "modified": _utc(info.modified_ns),
        "metadata": info.metadata,
    }


def note(text: str) -> None:
    """Print a message for the user, to standard error."""
    click.echo(text, err=True)


def fail(text: str) -> None:
    """Report one failure among others, above a running progress bar."""
    text = in_commands(text)
    if "tqdm" in sys.modules:
        from tqdm import tqdm

        tqdm.write(f"Failed: {text}", file=sys.stderr)
    else:
        note(f"Failed: {text}")


class OutputLines:
    """Lines for standard output, written many at a time: a listing may have millions."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, line: str) -> None:
        self._lines.append(line)
        if len(self._lines) >= _LINES_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        if self._lines:
            text, self._lines = "\n".join(self._lines), []
            click.echo(text)

    def __enter__(self) -> OutputLines:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Lines from before a failure are shown; a closed pipe gets nothing more.
        if kind is None or not issubclass(kind, BrokenPipeError):
            self.flush()


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Announce the wait with one line if the block takes longer than a second."""
    with after(WAIT_S, partial(note, f"waiting for {printable(what)}")):
        yield


@contextmanager
def after(wait_s: float, action: Callable[[], object]) -> Iterator[None]:
    """Call `action` in another thread if the block takes longer than `wait_s`."""
    timer = threading.Timer(wait_s, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def columns() -> int:
    """Return the width of the terminal on standard error; 80 if it is no terminal."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # neither a terminal nor, under a test, a file
        return 80


@contextmanager
def progress(total: int | None, *, unit: str) -> Iterator[tqdm[Any]]:
    """Show a progress bar on standard error, if that is a terminal. `unit` "B" counts bytes in powers of 1,024."""
    from tqdm import tqdm

    in_bytes = unit == "B"
    bar: tqdm[Any] = tqdm(
        total=total,
        unit="iB" if in_bytes else unit,
        unit_scale=in_bytes,
        unit_divisor=1024 if in_bytes else 1000,
        file=sys.stderr,
        disable=None,
        leave=False,
        # The default format would be cut in the middle of its figures.
        bar_format=NARROW_BAR if total is not None and columns() < _NARROW else None,
        dynamic_ncols=True,
        delay=0.5,
    )
    with bar:
        yield bar


def confirmed(question: str) -> bool:
    """Ask on standard error. Any answer but yes means no."""
    click.echo(f"{question} [y/N] ", err=True, nl=False)
    answer = sys.stdin.readline()
    if not answer:
        click.echo(err=True)
        raise click.ClickException("nobody answered, so nothing was done; use --yes to skip the question")
    return answer.strip().lower() in ("y", "yes")


class _Notes(logging.Handler):
    """Log handler that prints to standard error: a mistyped path becomes a new store if a command may create one."""

    def emit(self, record: logging.LogRecord) -> None:
        note(printable(record.getMessage()))


def tell_of_new_stores() -> None:
    """From now on, in this process, print one line to standard error for each store that is created."""
    if not any(isinstance(handler, _Notes) for handler in _MAKES_STORES.handlers):
        _MAKES_STORES.addHandler(_Notes())
        _MAKES_STORES.setLevel(logging.INFO)
