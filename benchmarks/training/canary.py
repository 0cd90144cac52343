"""The Canary-style example, trained from sequential shards, single GETs and GetBatch: a table over several runs.

    make .venv-front/.ais-loader-ready
    .venv-front/bin/python -m benchmarks.training.canary  # writes the table and the plot beside this file

Each run is `python -m examples.canary.train --source shards --source get --source getbatch` against a storage node, on
the recordings in tests/data/speech or, with `--data`, on another corpus. Each way of reading trains the same steps of a
small encoder-decoder, with batches of at most 40 s of audio. Nothing is requested ahead, so that a row shows the cost
of its way of reading. A last row shows what the example does by default: it requests two batches ahead, and only the
time that the trainer waits counts. Latencies are those of bytes, without decoding.

Prediction, written before the first run: A batch by GetBatch takes a fifth of the time of one by single GETs, at some
10 recordings per batch and half a millisecond each. Sequential shards have a median near zero and a P99 above that of
GetBatch, because one batch in many fills a shuffle buffer. All of it takes less than a tenth of a step on two cores
without a device.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ais_loader.testing import NodeProcess
from benchmarks.kit.harness import load, machine
from examples.canary.checkpoint import read_lines
from examples.canary.report import COLORS, METHODS, RunReport, draw, run_report

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_suffix(".md")
PLOT = Path(__file__).with_suffix(".png")
AHEAD = "getbatch, 2 ahead"
METHODS[AHEAD], COLORS[AHEAD] = "GetBatch, 2 asked for ahead", "#92c5de"
RUN_S = 1800.0

Rows = dict[str, list[dict[str, Any]]]
"""Rows of the steps, by way of reading."""


def trained(url: str, output: Path, steps: int, *options: str) -> Rows:
    """One run of the example. Raises SystemExit with what it said."""
    command = [sys.executable, "-m", "examples.canary.train", "--stored", "--url", url, "--steps", str(steps)]
    done = subprocess.run(
        [*command, "--fresh", "--json", "--output", str(output), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    found = {path.parent.name: read_lines(path) for path in output.glob("*/batches-0.jsonl")}
    if any(len(rows) != steps for rows in found.values()) or not found:
        raise SystemExit(done.stdout + done.stderr)  # it also fails where so few steps did not lower the loss
    return found


def measure(data: Path, steps: int, rounds: int, here: Path) -> list[Rows]:
    found = []
    with NodeProcess(here / "node") as node:
        put = [sys.executable, "-m", "examples.canary.train", "--url", node.url, "--data", str(data), "--steps", "10"]
        subprocess.run([*put, "--output", str(here / "warm")], cwd=ROOT, capture_output=True, timeout=RUN_S)
        for number in range(rounds):
            names = ["shards", "get", "getbatch"]
            order = names[number % 3 :] + names[: number % 3]
            each = [option for name in order for option in ("--source", name)]
            rows = trained(node.url, here / f"run-{number}", steps, *each)
            rows[AHEAD] = trained(node.url, here / f"ahead-{number}", steps, "--ahead", "2")["getbatch"]
            found.append({name: rows[name] for name in (*names, AHEAD)})
    return found


def latency_table(reports: Sequence[RunReport], of: str) -> str:
    lines = ["| ms | P50 | P95 | P99 | mean |", "|---|---:|---:|---:|---:|"]
    for report in reports:
        cells = " | ".join(f"{value:.3g}" for value in getattr(report, of).values())
        lines.append(f"| {METHODS[report.source]} | {cells} |")
    return "\n".join(lines)


def training_table(reports: Sequence[RunReport], rounds: Sequence[Rows]) -> str:
    lines = ["| | samples/s | waiting for bytes | loss, first and last tenth |", "|---|---:|---:|---:|"]
    for report in reports:
        waits = [report_of(report.source, rows[report.source]).wait_share for rows in rounds]
        lines.append(
            f"| {METHODS[report.source]} | {report.samples_per_s:.0f} | {statistics.median(waits):.1%} "
            f"({min(waits):.1%} – {max(waits):.1%}) | {report.loss_first_tenth:.2f} → {report.loss_last_tenth:.2f} |"
        )
    return "\n".join(lines)


def report_of(source: str, rows: Sequence[Mapping[str, Any]]) -> RunReport:
    return run_report(source, rows, world_size=1, validation_loss=0.0)


def mean_batch_ratios(rounds: Sequence[Rows], subject: str, baseline: str) -> list[float]:
    """Return the ratio of the mean batch times of the two, for each round."""
    means = [
        {name: statistics.fmean(row["fetch_s"] for row in rows[name]) for name in (subject, baseline)}
        for rows in rounds
    ]
    return [of_round[subject] / of_round[baseline] for of_round in means]


@click.command(help=__doc__)
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), default=ROOT / "tests" / "data" / "speech")
@click.option("--corpus", default="tests/data/speech, 100 recordings", help="What the table says of --data.")
@click.option("--steps", default=100, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--write/--no-write", default=True, show_default=True, help="Keep table and plot beside this file.")
def main(data: Path, corpus: str, steps: int, rounds: int, write: bool) -> None:
    with tempfile.TemporaryDirectory() as here:
        found = measure(data, steps, rounds, Path(here))
    pooled = {name: [row for rows in found for row in rows[name]] for name in found[0]}
    reports = [report_of(name, rows) for name, rows in pooled.items()]
    ratios = mean_batch_ratios(found, "get", "getbatch")
    text = "\n\n".join(
        [
            f"# A Canary-style run\n\n{(__doc__ or '').strip()}",
            f"Machine: {machine()}; {load()}. Corpus: {corpus}. {rounds} rounds of {steps} steps; percentiles cover "
            "all rounds. Client and node share the cores, and all data is in the page cache.",
            f"## Training\n\n{training_table(reports, found)}",
            f"## A batch\n\n{latency_table(reports, 'batch_ms')}",
            f"## A sample\n\n{latency_table(reports, 'sample_ms')}",
            f"Within a round, the mean latency of a batch by single GETs is {statistics.median(ratios):.1f} times "
            f"({min(ratios):.1f} – {max(ratios):.1f}) that of a batch by GetBatch.",
            f"![Loss by step of the last round, and share of batches that take longer]({PLOT.name})\n",
        ]
    )
    click.echo(text)
    if write:
        TABLE.write_text(text)
        draw(found[-1], PLOT)


if __name__ == "__main__":
    main()
