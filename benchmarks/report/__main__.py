"""Report of a store on this machine, in parts: rates of GETs and batches on one node and three beside the machine's
limits, latencies of the ways to read, what is wanted and what was reached, and how GETs follow the number of workers.

    python -m benchmarks.report           # make bench: about 15 minutes; writes report.json, report.md and pictures
    python -m benchmarks.report --only workers    # one part anew; the others stay as they are
    python -m benchmarks.report --quick   # make bench-quick: about 2 minutes; fails when a ratio has fallen
    python -m benchmarks.report --quick --record    # this run's ratios are the recorded ones from now on

A part is kept when it is done: a run that is ended loses the part that it was at. Ratios of small rounds on a shared
machine differ by themselves: a quick run that fails is worth a second one.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from benchmarks.kit.harness import Outcome, claims_table, label, load, machine, rates_table
from benchmarks.reads import access_patterns
from benchmarks.reads.access_patterns import Latencies, latency_rows
from benchmarks.report import targets, workers
from benchmarks.report.judging import fallen, ratios
from benchmarks.report.rates import CLIENTS, COUNTS, IN_FLIGHT, claims, measure, pairs

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
BATCHES = (32, 64, 128)
Part = tuple[str, dict[str, Any]]
"""Its section of the page, and its figures."""


def rates_part(rounds: int, folder: Path) -> Part:
    sections, all_rates, found, outcomes = [], {}, {}, []
    for size_bytes, count in COUNTS.items():
        with tempfile.TemporaryDirectory() as here:
            rates = measure(size_bytes, count, rounds, BATCHES, Path(here))
        all_rates[label(size_bytes)] = rates
        found |= ratios(rates, pairs(size_bytes, max(BATCHES)))
        outcomes += targets.of_size(size_bytes, rates, claims(max(BATCHES)))
        sections.append(
            f"### {count:,} objects of {label(size_bytes)}\n\n{rates_table(rates, 'objects/s', size_bytes)}\n"
        )
        click.echo(sections[-1])
    text = (
        f"## Rates\n\n{CLIENTS} clients, {IN_FLIGHT} batches in flight each; {rounds} rounds. Clients and nodes share "
        "the cores, and all is in the page cache.\n\n"
        + "\n".join(sections)
        + f"\n### Ratios\n\n{_table(found)}\n\n{claims_table(outcomes)}\n"
    )
    return text, {"rates": all_rates, "ratios": found, "targets": _plain(outcomes)}


def latencies_part(rounds: int, folder: Path) -> Part:
    with tempfile.TemporaryDirectory() as here:
        found = access_patterns.measure(8, 1000, 100, rounds, Path(here))
    pooled = {name: Latencies() for name in found}
    for name, latencies in found.items():
        for one in latencies:
            pooled[name].extend(one)
    access_patterns.plot(access_patterns.curves(pooled), folder / "latencies.png")
    text = (
        "## Latencies\n\nOf batches of 64 members of 40 KB, of eight tar shards; one client. "
        "benchmarks/reads/access_patterns.md says what the ways are.\n\n### A batch\n\n"
        f"{latency_rows(pooled, lambda one: one.batches_s)}\n\n### A sample\n\n"
        f"{latency_rows(pooled, lambda one: one.samples_s)}\n\n![Latencies](latencies.png)\n"
    )
    return text, {name: {"batches_s": list(one.batches_s)} for name, one in pooled.items()}


def targets_part(rounds: int, folder: Path) -> Part:
    outcomes: list[Outcome] = []
    for some in targets.outcomes(rounds):
        outcomes += some
        click.echo(claims_table(some))
    reached = sum(one.reached for one in outcomes)
    text = (
        f"## Targets\n\n{reached} of {len(outcomes)} reached; {rounds} rounds of each. The tables that they stand in, "
        "and why others are not reached: benchmarks/reads/lane.md, getbatch.md, object_file.md, memory.md; "
        "benchmarks/writes/put.md.\n\n"
        f"{claims_table(outcomes)}\n"
    )
    return text, {"targets": _plain(outcomes)}


def workers_part(rounds: int, folder: Path) -> Part:
    with tempfile.TemporaryDirectory() as here:
        swept = workers.sweep("100KiB", 2_000, 3.0 * rounds, Path(here))
    workers.draw(swept, "100 KiB", folder / "workers.png")
    text = (
        f"## Workers\n\nSingle GETs of 100 KiB from one node. The knee is at **{workers.knee_of(swept)} workers**: the "
        f"fewest with 90 % of the best rate.\n\n{workers.sweep_table(swept)}\n\n"
        "![Rates and latencies by workers](workers.png)\n"
    )
    return text, {"workers": swept, "knee": workers.knee_of(swept)}


PARTS: dict[str, Callable[[int, Path], Part]] = {
    "rates": rates_part,
    "latencies": latencies_part,
    "targets": targets_part,
    "workers": workers_part,
}


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="Fewer objects and rounds; compares with the recorded ratios.")
@click.option("--record", is_flag=True, help="With --quick: keep its ratios as the recorded ones.")
@click.option("--only", type=click.Choice(list(PARTS)), multiple=True, help="These parts; may be repeated.")
@click.option("--rounds", type=click.IntRange(min=1), help="[default: 5; with --quick, 3]")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=HERE, help="Where the report goes.")
def main(quick: bool, record: bool, only: tuple[str, ...], rounds: int | None, folder: Path) -> None:
    if record and not quick:
        raise click.UsageError("--record keeps the ratios of a --quick run")
    if quick and only:
        raise click.UsageError("--only names parts of the whole report, of which --quick measures none")
    if quick:
        _quick(rounds or 3, record=record)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name in only or PARTS:
        text, figures = PARTS[name](rounds or 5, folder)
        made = f"{datetime.now(UTC):%Y-%m-%d}, {machine()}; after it: {load()}"
        _keep(folder, name, {"made": made, "text": text, "figures": figures})
        click.echo(text)


def _keep(folder: Path, name: str, part: dict[str, Any]) -> None:
    """Put one part into the report; the page is made of all that are there."""
    path = folder / "report.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known[name] = part
    path.write_text(json.dumps({name: known[name] for name in PARTS if name in known}, indent=1) + "\n")
    page = [f"{known[name]['text']}\n*{known[name]['made']}.*\n" for name in PARTS if name in known]
    head = "# Report\n\nMade by `make bench`; figures of each round stand in report.json.\n"
    (folder / "report.md").write_text("\n".join([head, *page]))


def _quick(rounds: int, *, record: bool) -> None:
    found: dict[str, float] = {}
    for size_bytes in (10 << 10, 1 << 20):
        with tempfile.TemporaryDirectory() as here:
            rates = measure(size_bytes, COUNTS[size_bytes] // 4, rounds, (max(BATCHES),), Path(here))
        click.echo(f"{label(size_bytes)}\n\n{rates_table(rates, 'objects/s', size_bytes)}\n")
        found |= ratios(rates, pairs(size_bytes, max(BATCHES)))
    click.echo(_table(found))
    if record:
        RECORDED.write_text(json.dumps({"machine": machine(), "load": load(), "ratios": found}, indent=1) + "\n")
        click.echo(f"recorded in {RECORDED}")
        return
    if lines := fallen(found, json.loads(RECORDED.read_text())["ratios"]):
        raise click.ClickException("ratios have fallen\n" + "\n".join(lines))
    click.echo("no ratio is under 80 % of the recorded one")


def _table(found: dict[str, float]) -> str:
    lines = ["| ratio | median |", "|---|---:|", *(f"| {name} | {value:.2f} |" for name, value in found.items())]
    return "\n".join(lines)


def _plain(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    return [
        {
            "ratio": f"{one.claim.subject} ÷ {one.claim.baseline}",
            "at_least": one.claim.at_least,
            "rounds": one.ratios,
            "median": one.median,
        }
        for one in outcomes
    ]


if __name__ == "__main__":
    main()
