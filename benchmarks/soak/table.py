"""Table of a soak's outcomes, with the machine that they were made on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.kit.harness import load, machine
from benchmarks.soak.outcome import Outcome

TABLE = Path(__file__).with_name("soak.md")
_WHAT = {
    "embedded": "an embedded store whose writers are killed at any moment, with readers in other processes",
    "node": "one node with four times as many clients as places for batches",
    "hostile": "one node under attack by hostile connections, with ordinary clients beside them",
    "cluster": "storage nodes as processes, with two or three copies",
    "damage": "storage nodes whose drives have bytes flipped, one node at a time, with two copies",
    "remote": "a cluster over a remote bucket, behind a proxy that throttles, cuts, delays and refuses",
    "fuzz": "random and mutated messages to every method of a node, as clients, strangers, and insiders",
}


def table(outcomes: Sequence[Outcome]) -> str:
    lines = [
        "# Soak",
        "",
        "Clients of every kind run while processes and nodes are killed, frozen, cut off, filled up, added, and",
        "removed. A checker that knows nothing about the product judges what they asked and what they were told. The",
        "promises that it checks are in [docs/guarantees.md](../../docs/guarantees.md).",
        "`python -m benchmarks.soak --write` writes this page from its own run, and `python -m benchmarks.soak page`",
        "writes it from the outcomes of several runs. The first run of each store is shown in detail.",
        "",
        f"Machine: {machine()}; {load()}.",
        "",
        "| store | seed | tree | minutes | operations | faults | slowest call | undecided | violations |",
        "|---|---:|---|---:|---:|---:|---:|---:|---|",
    ]
    for one in outcomes:
        kinds = Counter(wrong.kind for wrong in one.violations)
        said = ", ".join(f"{kind} ({times})" for kind, times in kinds.items()) or "none"
        lines.append(
            f"| {one.name} | {one.seed} | {one.tree} | {one.duration_s / 60:.1f} | {one.operations:,} "
            f"| {one.events.total():,} | {one.slowest_s:.1f} s | {one.undecided} | {said} |"
        )
    detailed = {one.name: one for one in reversed(outcomes)}
    for one in outcomes:
        if one is not detailed[one.name] and not one.note:
            continue
        lines += ["", f"## {one.name}, seed {one.seed}: {_WHAT[one.name]}", ""]
        lines += [one.note, ""] if one.note else []
        lines += ["| what | times |", "|---|---:|"]
        lines += [f"| {name} | {count:,} |" for name, count in sorted(one.events.items())]
        lines += [f"| {name} | {count:,} |" for name, count in sorted(one.counts.items()) if "fault" not in name]
        lines += [f"| error `{name}` | {count:,} |" for name, count in sorted(one.errors.items())]
        lines += [f"| {name} | {value:,.4g} |" for name, value in one.figures.items()]
        for name, found in one.series.items():
            lines += ["", f"{name}, by the minute: {', '.join(f'{value:g}' for _, value in found)}."]
    return "\n".join(lines) + "\n"
