"""Benchmark harness: rounds that take turns, medians of ratios, and a table that names its machine.

Machines are shared and noisy, so no absolute figure is a claim. All contestants run once per round, one after another;
a ratio is taken within a round, and the median over the rounds is reported with its range.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias, TypeVar

import click

T = TypeVar("T")
Sized: TypeAlias = tuple[int, int, Path]


@dataclass(frozen=True, slots=True)
class Claim:
    """A ratio that must be reached: `subject` against `baseline`."""

    subject: str
    baseline: str
    at_least: float


@dataclass(frozen=True, slots=True)
class Outcome:
    claim: Claim
    ratios: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def reached(self) -> bool:
        return self.median >= self.claim.at_least


def run_rounds(contestants: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Return the results of each contestant, one a round, as rates per second. The order rotates, so that none always
    follows another."""
    rates: dict[str, list[T]] = {name: [] for name in contestants}
    names = list(contestants)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            rates[name].append(contestants[name]())
    return rates


def judge(rates: Mapping[str, Sequence[float]], claims: Sequence[Claim]) -> list[Outcome]:
    return [
        Outcome(claim, tuple(a / b for a, b in zip(rates[claim.subject], rates[claim.baseline], strict=True)))
        for claim in claims
    ]


def rates_table(rates: Mapping[str, Sequence[float]], unit: str, size_bytes: int | None = None) -> str:
    """Median, lowest and highest rate of each contestant, as Markdown."""
    lines = [f"| what | median {unit} | range |" + (" GiB/s |" if size_bytes else "")]
    lines.append("|---|---:|---:|" + ("---:|" if size_bytes else ""))
    for name, values in rates.items():
        median = statistics.median(values)
        line = f"| {name} | {median:,.0f} | {min(values):,.0f} – {max(values):,.0f} |"
        lines.append(line + (f" {median * size_bytes / 2**30:.2f} |" if size_bytes else ""))
    return "\n".join(lines)


def claims_table(outcomes: Sequence[Outcome]) -> str:
    lines = ["| ratio | wanted | median | range | |", "|---|---:|---:|---:|---|"]
    for outcome in outcomes:
        claim = outcome.claim
        lines.append(
            f"| {claim.subject} ÷ {claim.baseline} | ≥ {claim.at_least:g} | **{outcome.median:.2f}** "
            f"| {min(outcome.ratios):.2f} – {max(outcome.ratios):.2f} | {'reached' if outcome.reached else 'MISSED'} |"
        )
    return "\n".join(lines)


def label(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KiB"


def load() -> str:
    """How busy the machine is, with this and with everything else: figures of a busy one are worth less."""
    return f"load average {os.getloadavg()[1]:.0f} on {len(os.sched_getaffinity(0))} cores"


def machine() -> str:
    """One line: processor, cores, kernel, versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), platform.machine())
    packages = ("grpcio", "rocksdict", "numpy", "torch")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}, "
        f"Python {platform.python_version()}, {versions}"
    )


def page(title: str, story: str, setting: str, *parts: str) -> str:
    """A table's page.

    Args:
        story: a benchmark's docstring.
        setting: what was measured how often, as sentences behind the machine.
    """
    what, _, rest = story.partition("\n\n")
    return "\n\n".join([f"# {title}", what, rest.strip("\n"), f"Machine: {machine()}; {load()}. {setting}", *parts])


def conclude(text: str, table: Path | None, *, reached: bool) -> NoReturn:
    """Keep the text in `table`, unless it is None, and exit with 1 when a claim was missed."""
    if table is not None:
        table.write_text(text)
    raise SystemExit(0 if reached else 1)


def by_size(sizes: str, counts: Mapping[int, int], otherwise: int, folder: Path | None = None) -> Iterator[Sized]:
    """Yield each of these object sizes, how many objects to measure, and a temporary folder below `folder` for them."""
    for size_bytes in map(int, sizes.split(",")):
        with tempfile.TemporaryDirectory(dir=folder) as here:
            yield size_bytes, counts.get(size_bytes, otherwise), Path(here)


class SizeReport:
    """Page with a section for each object size, which is printed as soon as it is measured."""

    def __init__(self, title: str, story: str, setting: str) -> None:
        self._parts = [f"# {title}\n\n{story.strip().splitlines()[0]}\n\nMachine: {machine()}. {load()}. {setting}\n"]
        self._reached = True

    def add(self, section: str) -> None:
        click.echo(section)
        self._parts.append(section)

    def add_size(
        self,
        size_bytes: int,
        count: int,
        rates: Mapping[str, Sequence[float]],
        claims: Sequence[Claim],
        *more: str,
        unit: str = "objects/s",
    ) -> None:
        outcomes = judge(rates, claims)
        self._reached &= all(outcome.reached for outcome in outcomes)
        tables = [rates_table(rates, unit, size_bytes), *([claims_table(outcomes)] if outcomes else []), *more]
        self.add("\n\n".join([f"## {count:,} objects of {label(size_bytes)}", *tables]) + "\n")

    def conclude(self, table: Path | None) -> NoReturn:
        conclude("\n".join(self._parts), table, reached=self._reached)
