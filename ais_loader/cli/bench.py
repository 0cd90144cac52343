"""`ais-loader bench`: a load generator, one command for each workload, and a comparison of two results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ais_loader.bench.plan import MARKED, BenchPlan, size_bytes
from ais_loader.cli.groups import HintingGroup
from ais_loader.cli.show import OutputLines, columns, note, progress, size_text
from ais_loader.cli.stores import StoreChoice, store_of_commands, takes_store
from ais_loader.errors import InvalidRequest

_WORKLOADS = {
    "get": "One object with each call.",
    "get-batch": "Batches of objects, several in flight at once.",
    "members": "Batches of members of tar archives.",
    "ranges": "Batches of byte ranges at random offsets.",
    "list": "Listings of all objects.",
    "sessions": "Connect, fetch one batch, and leave, again and again.",
    "put": "One object with each call.",
    "put-many": "Groups of objects with each call.",
    "mixed": "GETs, and PUTs between them.",
}


@click.group(cls=HintingGroup)
@store_of_commands
def bench(store: str | None) -> None:
    """Benchmark a store: embedded, a node, or a cluster.

    Objects with known bytes are stored in a dedicated bucket and stay there for the next run; a bucket that this
    command did not create is refused. docs/command-line.md describes workloads and figures.
    """


def _measures(name: str, text: str) -> click.Command:
    puts = click.option(
        "--puts",
        "puts_percent",
        metavar="PERCENT",
        type=click.IntRange(0, 100),
        default=20,
        show_default=True,
        help="Of the calls.",
    )
    members = click.option(
        "--members", type=click.IntRange(min=1), default=64, show_default=True, help="Of an archive."
    )
    ranges = click.option(
        "--range", "range_size", metavar="SIZE", default="4KiB", show_default=True, help="Of each object."
    )
    batch = click.option(
        "--batch", metavar="N", type=click.IntRange(min=1), default=128, show_default=True, help="Entries of each."
    )
    in_flight = click.option(
        "--in-flight", metavar="N", type=click.IntRange(min=1), default=3, show_default=True, help="Batches at once."
    )
    of_name: dict[str, list[Callable[[Any], Any]]] = {
        "get-batch": [batch, in_flight],
        "members": [batch, in_flight, members],
        "ranges": [batch, in_flight, ranges],
        "sessions": [batch],
        "put-many": [batch],
        "mixed": [puts],
    }

    def measure(**options: Any) -> None:
        _measure(name, **options)

    command: Callable[..., None] = takes_store(measure)
    for option in reversed([*_common(name), *of_name.get(name, [])]):
        command = option(command)
    return click.command(name, help=text)(command)


def _common(name: str) -> list[Callable[[Any], Any]]:
    number = click.IntRange(min=1)
    options = [
        click.option(
            "--size",
            default="10KiB",
            show_default=True,
            help="Object size: 10KiB, 4KiB..1MiB (uniform), or lognormal:100KiB:0.8 (median, spread).",
        ),
        click.option(
            "--objects",
            metavar="N",
            type=number,
            default=10_000,
            show_default=True,
            help="Number of objects (of archives, for members).",
        ),
        click.option("--threads", metavar="N", type=number, default=1, show_default=True, help="In each process."),
        click.option("--processes", metavar="N", type=number, default=1, show_default=True, help="Of this machine."),
        click.option(
            "--duration",
            metavar="SECONDS",
            type=click.FloatRange(0, min_open=True),
            default=10,
            show_default=True,
            help="Time to measure, after the warm-up.",
        ),
        click.option(
            "--epochs", metavar="N", type=number, help="Read every object N times, instead of for a duration."
        ),
        click.option(
            "--warm-up", metavar="SECONDS", type=click.FloatRange(0), help="Not measured.  [default: 1; with --cold, 0]"
        ),
        click.option("--verify", is_flag=True, help="Compare every byte received with what was stored."),
        click.option(
            "--lane",
            type=click.Choice(["auto", "grpc"]),
            default="auto",
            show_default=True,
            help="How bytes are transferred.",
        ),
        click.option(
            "--bucket", metavar="NAME", default=MARKED, show_default=True, help="Bucket for this command's objects."
        ),
        click.option(
            "--copies", metavar="N", type=number, default=1, show_default=True, help="Copies of a newly created bucket."
        ),
        click.option("--clean", is_flag=True, help="Delete the bucket afterwards."),
        click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the result."),
    ]
    if name in ("put", "put-many", "mixed"):
        return options
    return [*options, click.option("--cold", is_flag=True, help="Drop the store from the page cache first.")]


def _measure(
    workload: str,
    *,
    store: StoreChoice,
    clean: bool,
    json_file: Path | None,
    duration: float,
    epochs: int | None,
    warm_up: float | None,
    range_size: str = "4KiB",
    cold: bool = False,
    **options: Any,
) -> None:
    from ais_loader.bench.result import table
    from ais_loader.bench.tally import new_histogram

    new_histogram()
    try:
        plan = BenchPlan(
            workload=workload,
            url=store.url,
            duration_s=duration,
            epochs=epochs or 0,
            warm_up_s=warm_up if warm_up is not None else float(not cold),
            range_bytes=size_bytes(range_size),
            retry_s=store.retry_s,
            cold=cold,
            **options,
        )
        _ = plan.sizes
    except InvalidRequest as error:
        raise click.UsageError(str(error)) from None
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise click.BadParameter(f"no folder {json_file.absolute().parent}", param_hint="'--json'")
    found = _run(plan, store, clean)
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    with OutputLines() as lines:
        for line in table(found):
            lines.add(line)
    if not found["whole"]:
        raise click.exceptions.Exit(130)
    if found["errors"]:
        raise click.ClickException("some calls failed, see errors")


def _run(plan: BenchPlan, store: StoreChoice, clean: bool) -> dict[str, Any]:
    from ais_loader.bench.crew import finish, prepare, run
    from ais_loader.bench.filling import remove

    # No client of an embedded store remains open: it has only one writer.
    with store.writing(create=True) as client:
        described = client.describe()
        with progress(plan.objects, unit=" objects") as bar:
            prepare(client, plan, lambda done, _: _reach(bar, done))
    try:
        return run(plan, live=_live() if sys.stderr.isatty() else None, described=described)
    finally:
        if sys.stderr.isatty():
            click.echo("\r\x1b[K", nl=False, err=True)
        if clean:
            with store.writing(create=True) as client:
                remove(client, plan.bucket)
        else:
            finish(plan)


def _reach(bar: Any, done: int) -> None:
    bar.update(done - bar.n)


def _live() -> Callable[[float, int, int, int], None]:
    """Return a callback that shows the current rates on one line, which it overwrites."""
    last = (0.0, 0, 0)

    def show(elapsed_s: float, objects: int, moved: int, errors: int) -> None:
        nonlocal last
        span = elapsed_s - last[0]
        if span < 0.5:
            return
        rate, speed = (objects - last[1]) / span, (moved - last[2]) / span
        last = (elapsed_s, objects, moved)
        text = f"{elapsed_s:5.0f} s  {rate:10,.0f} objects/s  {size_text(max(0.0, speed)):>10}/s  {errors:,} errors"
        click.echo(f"\r\x1b[K{text[: columns() - 1]}", nl=False, err=True)  # a wrapped line could not be overwritten

    return show


for _name, _text in _WORKLOADS.items():
    bench.add_command(_measures(_name, _text))


@bench.command()
@click.argument("first", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("second", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def compare(first: Path, second: Path) -> None:
    """Compare two --json results side by side, with the ratio of the second to the first."""
    from ais_loader.bench.result import comparison, load

    one, other = load(first), load(second)
    with OutputLines() as lines:
        for line in comparison(one, other):
            lines.add(line)
    if one["machine"] != other["machine"]:
        note("measured on different machines: ratios say little")
