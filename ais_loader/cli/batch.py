"""`ais-loader batch` and `ledger`: fetch a list of objects with one request, and list what a trainer has had."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

from ais_loader.cli.batch_list import parse_list
from ais_loader.cli.files import STDOUT, ByteSink, chosen_output, written_whole
from ais_loader.cli.show import OutputLines, count_text, fail, in_commands, note, printable, progress, size_text
from ais_loader.cli.stores import StoreChoice, label, takes_store
from ais_loader.objects.archive import FORMATS, ArchiveFormat, ArchiveNames, BatchArchive
from ais_loader.values.entry import Entry, Item
from ais_loader.values.requests import OnError

_INDEX_DIGITS = 6
_MAX_NAME_BYTES = 180
"""Length limit for an object's name in a file name; with index and suffix it stays well below the 255 bytes of a file
system."""


@click.command()
@click.argument("list_file", metavar="LIST", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.argument("argument", metavar="[DIR]", required=False, type=click.Path(allow_dash=True))
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(allow_dash=True),
    help="Write each object to a file in DIR, 000000-NAME and so on. With -, all of them go to standard "
    "output, end to end. With --archive, the archive's file.",
)
@click.option(
    "--archive",
    type=click.Choice(FORMATS),
    default=None,
    help="Write one archive instead of many files: members are named BUCKET/NAME; objects "
    "that could not be delivered become empty members under __404__/.",
)
@click.option(
    "--archive-names",
    type=click.Choice(["bucket", "object"]),
    default="bucket",
    show_default=True,
    help="Name members with or without their bucket.",
)
@click.option(
    "--on-error",
    type=click.Choice(["raise", "placeholder"]),
    default="raise",
    show_default=True,
    help="Stop at the first object that cannot be delivered, or mark it in place and continue.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per entry: index, name, status, size, error.")
@click.option("-f", "--force", is_flag=True, help="Write into DIR even if it is not empty, replacing files.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=30,
    show_default=True,
    help="Longest wait between two objects.",
)
@takes_store
def batch(
    list_file: str,
    argument: str | None,
    output: str | None,
    archive: ArchiveFormat | None,
    archive_names: ArchiveNames,
    on_error: OnError,
    as_json: bool,
    force: bool,
    timeout: float,
    store: StoreChoice,
) -> None:
    """Fetch the objects of LIST with one request, in that order.

    LIST is a file, or - for standard input. Each line is BUCKET/NAME, ais://BUCKET/NAME, or a JSON object with the
    fields bucket and name, and optionally start and length (in bytes) and version; the output of `ls` or `ls --json`
    works too. Blank lines and lines that begin with # are skipped. An object listed twice is delivered twice.

    Without --output, the command fetches the objects and shows a line about each. DIR after LIST means the same as
    --output DIR.
    """
    output = chosen_output(argument, output, "DIR")
    if output == STDOUT:
        if as_json:
            raise click.UsageError("--json and --output - both write to standard output: use only one of them")
        if sys.stdout.isatty():
            raise click.UsageError("--output - would write the objects to the terminal: use a pipe")
    if archive is not None and (output is None or as_json):
        raise click.UsageError("--archive needs --output FILE (or -) and cannot be combined with --json")
    with click.open_file(list_file, "rb") as opened:
        entries = parse_list(opened, "standard input" if list_file == "-" else click.format_filename(list_file))
    if archive is not None and output is not None:
        with store.reading() as client:
            made = client.get_batch(
                entries, archive=archive, archive_names=archive_names, on_error=on_error, timeout_s=timeout
            )
            _write_archive(made, output, force=force)
        return
    folder = None if output in (None, STDOUT) else output
    if folder is not None:
        _make_folder(folder, force=force)
    out = sys.stdout.buffer if output == STDOUT else None
    digits = max(_INDEX_DIGITS, len(str(len(entries) - 1)))
    fetched = fetched_bytes = failed = 0
    with store.reading() as client, OutputLines() as lines, progress(len(entries), unit=" objects") as bar:
        began = time.monotonic()
        with client.get_batch(entries, on_error=on_error, timeout_s=timeout) as answer:
            for item in answer:
                entry = entries[item.index]
                fetched += item.ok
                failed += not item.ok
                fetched_bytes += len(item.data)
                path = None
                if out is not None:
                    out.write(item.data)
                elif folder is not None:
                    path = _write(folder, f"{item.index:0{digits}}-{safe_name(entry)}", item, force=force)
                if as_json:
                    lines.add(json.dumps(_fields(entry, item, path)))
                elif output is None:
                    lines.add(_line(entry, item))
                elif item.error is not None:
                    fail(f"{printable(label(entry))}: {printable(_reason(item))}")
                bar.update()
        if out is not None:
            out.flush()
    _summarize(fetched, fetched_bytes, failed, time.monotonic() - began)
    if failed:
        raise click.exceptions.Exit(1)


def takes_loader(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `loader` and `entries`, for `loader_of`."""
    loader = click.option(
        "--loader",
        metavar="FILE.py:NAME",
        help="The loader of the run, or a function that makes it: a BatchLoader, or a DataLoader with a BatchSampler. "
        'The file is run, without what is under `if __name__ == "__main__"`.',
    )
    entries = click.option(
        "--entries",
        metavar="URL",
        help="For a ShufflePlan: what the dataset was made of, such as ais://speech/en/. STATE holds the plan.",
    )
    return loader(entries(command))


@contextlib.contextmanager
def loader_of(
    loader: str | None, entries: str | None, state: Mapping[str, Any] | None, store: StoreChoice
) -> Iterator[Any]:
    """Make the loader that the options name, of whose store a client stays open."""
    from ais_loader.loading.batch_loader import BatchLoader
    from ais_loader.training.datasets import MapDataset
    from ais_loader.training.ledger import plan_of

    if (loader is None) == (entries is None):
        raise click.UsageError("give either --loader or --entries")
    if loader is not None:
        yield loader_named(loader)
    elif state is None:
        raise click.UsageError("--entries needs STATE, which holds the plan")
    else:
        with store.reading() as client:
            yield BatchLoader(MapDataset(client, str(entries)), plan_of(state), rank=0, world_size=1)


@click.command()
@click.argument("state_file", metavar="STATE", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--step", type=click.IntRange(min=0), required=True, help="Step of the plan, counted from 0.")
@click.option("--epoch", type=click.IntRange(min=0), help="Epoch of the step.  [default: that of STATE]")
@takes_loader
@click.option("--json", "as_json", is_flag=True, help="One JSON object per sample, which `batch` takes as well.")
@takes_store
def ledger(
    state_file: str,
    step: int,
    epoch: int | None,
    loader: str | None,
    entries: str | None,
    as_json: bool,
    store: StoreChoice,
) -> None:
    """Name the exact samples of a training step, in the order of its batch.

    STATE is a file, or - for standard input, with what `loader.state_dict()` returned, as JSON. It has the digests of
    the plan and of its entries, not the entries themselves. Therefore, --loader or --entries has to say where these
    are. If they have changed since, the command fails. Steps before the position of STATE are exactly those that the
    run has had. No data is read.

    A line has the rank, the number of the sample, its source in a mixture, and its object. Ranks are those of the
    number of ranks in STATE.
    """
    from ais_loader.training.ledger import ledger as lines_of

    state = read_object(state_file)
    try:
        with loader_of(loader, entries, state, store) as planned:
            found = lines_of(planned, state, step, epoch)
    except IndexError as error:
        raise click.ClickException(str(error)) from None
    with OutputLines() as lines:
        for line in found:
            lines.add(json.dumps(line) if as_json else _ledger_line(line))


def read_object(file: str) -> dict[str, Any]:
    """Return the JSON object of a file, or of standard input."""
    try:
        with click.open_file(file) as opened:
            found = json.load(opened)
    except ValueError as error:
        raise click.ClickException(f"{click.format_filename(file)} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise click.ClickException(f"{click.format_filename(file)} has no JSON object")
    return found


def loader_named(name: str) -> Any:
    """Return what FILE.py:NAME names or, if it is a function, what it returns."""
    path, _, attribute = name.rpartition(":")
    if not os.path.isfile(path):
        raise click.BadParameter(f"{name!r}: need FILE.py:NAME", param_hint="'--loader'")
    members = runpy.run_path(path)
    if attribute not in members:
        raise click.BadParameter(f"{path} has no {attribute!r}", param_hint="'--loader'")
    return members[attribute]() if callable(members[attribute]) else members[attribute]


def _ledger_line(line: dict[str, Any]) -> str:
    shown = [f"{line.get('rank', ''):>4}  {line.get('number', ''):>10}"]
    shown += [line["source"]] if "source" in line else []
    if "bucket" in line:
        member = f"/{line['member']}" if "member" in line else ""
        shown.append(f"{line['bucket']}/{line['name']}{member}")
    shown += [f"version={line['version']}"] if "version" in line else []
    shown += [f"bytes {line.get('start', 0)}+{line.get('length', '')}"] if {"start", "length"} & line.keys() else []
    shown += [f"piece {line['piece'][0]}+{line['piece'][1]}"] if "piece" in line else []
    return printable("  ".join(shown))


def _write_archive(made: BatchArchive, output: str, *, force: bool) -> None:
    began = time.monotonic()
    written_bytes = 0
    with contextlib.ExitStack() as held:
        held.enter_context(made)
        file: ByteSink = (
            sys.stdout.buffer if output == STDOUT else held.enter_context(written_whole(output, force=force))
        )
        bar = held.enter_context(progress(made.entries, unit=" objects"))
        for chunk in made:
            file.write(chunk)
            written_bytes += len(chunk)
            bar.update(made.delivered - bar.n)
        if output == STDOUT:
            sys.stdout.buffer.flush()
    took_s = time.monotonic() - began
    note(f"archived {count_text(made.entries - made.failed, 'object')} ({size_text(written_bytes)} in {took_s:.2f} s)")
    if made.failed:
        note(f"failed: {count_text(made.failed, 'object')}, below __404__/ in the archive")
        raise click.exceptions.Exit(1)


def _make_folder(folder: str, *, force: bool) -> None:
    os.makedirs(folder, exist_ok=True)
    if not force and os.listdir(folder):
        raise click.ClickException(f"{click.format_filename(folder)} is not empty; use --force to write into it")


def safe_name(entry: Entry) -> str:
    """Convert the entry's name to a part of a file name: characters other than letters, digits and -_.=+@ become _."""
    name = entry.name if entry.member is None else f"{entry.name}/{entry.member}"
    safe = "".join(char if char.isalnum() or char in "-_.=+@" else "_" for char in name)
    # The end is more useful than the beginning: it has the extension.
    return safe.encode()[-_MAX_NAME_BYTES:].decode(errors="ignore")


def _write(folder: str, name: str, item: Item, *, force: bool) -> str:
    """Write the file of an item; for a failed one, NAME.failed with the reason in it."""
    path = os.path.join(folder, name if item.error is None else f"{name}.failed")
    with written_whole(path, force=force) as file:
        file.write(item.data if item.error is None else f"{_reason(item)}\n".encode())
    return path


def _fields(entry: Entry, item: Item, path: str | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"index": item.index, "bucket": entry.bucket, "name": entry.name}
    if entry.member is not None:
        fields["member"] = entry.member
    fields |= {"status": item.status.name, "size_bytes": len(item.data)}
    if item.error is not None:
        fields |= {"error": _reason(item), "kind": item.error.kind}
    if path is not None:
        fields["file"] = path
    return fields


def _line(entry: Entry, item: Item) -> str:
    shown = f"{item.index:>{_INDEX_DIGITS}}  {item.status.name:<16}  {len(item.data):>12}  {printable(label(entry))}"
    return shown if item.error is None else f"{shown}  ({printable(_reason(item))})"


def _reason(item: Item) -> str:
    """Return why an item failed, without its index, which is on its line already."""
    return in_commands(str(item.error).removeprefix(f"entry {item.index}: "))


def _summarize(fetched: int, fetched_bytes: int, failed: int, took_s: float) -> None:
    rate = f", {fetched / took_s:,.0f} objects/s" if fetched and took_s > 0 else ""
    note(f"fetched {count_text(fetched, 'object')} ({size_text(fetched_bytes)} in {took_s:.2f} s{rate})")
    if failed:
        note(f"failed: {count_text(failed, 'object')}")
