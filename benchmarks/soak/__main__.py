"""Soak: mixed operations while processes and nodes are killed, frozen and cut off, judged by their history alone.

    \b
    python -m benchmarks.soak                         # all parts, for as long as the whole soak takes
    python -m benchmarks.soak --store embedded --events 100
    python -m benchmarks.soak --store remote --events 60  # a cluster over a remote bucket
    python -m benchmarks.soak --store coded --events 60  # a cluster with an erasure coded bucket
    python -m benchmarks.soak --store hostile         # a node under attack by hostile connections
    python -m benchmarks.soak fuzz                    # random and mutated messages to every method of a node
    python -m benchmarks.soak judge build/soak/...    # judge once more what a failed run has left behind
    python -m benchmarks.soak page build/soak/*.json  # the page of figures, of the outcomes of several runs

Exit code 1 when anything was found that cannot be; the history, the nodes' logs and, for each violation, the operations
that show it are then kept.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from ais_loader.testing import throwaway_folder
from benchmarks.soak.outcome import Outcome, judge_again
from benchmarks.soak.table import TABLE, table

STORES = ("embedded", "node", "cluster", "damage")


@click.group(help=__doc__, invoke_without_command=True)
@click.option(
    "--store",
    type=click.Choice((*STORES, "coded", "hostile", "remote")),
    multiple=True,
    help="What to run against; by default embedded, node, cluster.",
)
@click.option(
    "--seed", default=1, show_default=True, help="Of everything that is drawn; processes take their own time."
)
@click.option("--duration", "duration_s", type=float, help="Longest time for each store, in seconds.")
@click.option(
    "--events",
    type=int,
    help="Kills and other faults: 1,000 of an embedded store, 200 of a cluster, 60 of damage. Hostile connections go on"
    " for the duration, 300 s by default.",
)
@click.option("--namespaces/--no-namespaces", default=True, help="Part nodes by network namespaces where possible.")
@click.option(
    "--output", type=click.Path(path_type=Path), default=Path("build/soak"), help="For what a failed run leaves."
)
@click.option("--keep", is_flag=True, help="Keep histories of clean runs as well.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
@click.option("--write/--no-write", default=False, help=f"Write the table to {TABLE.name}.")
@click.pass_context
def main(
    context: click.Context,
    store: Sequence[str],
    seed: int,
    duration_s: float | None,
    events: int | None,
    namespaces: bool,
    output: Path,
    keep: bool,
    as_json: bool,
    write: bool,
) -> None:
    if context.invoked_subcommand is not None:
        return
    outcomes = []
    for one in store or STORES:
        kept = output / f"{time.strftime('%Y%m%d-%H%M%S')}-{one}-{seed}"
        with throwaway_folder() as folder:
            outcome = _soak(one, folder, seed, events, duration_s, namespaces=namespaces)
            if keep or not outcome.clean:
                _keep(folder, kept)
                outcome.evidence = str(kept)
        outcomes.append(outcome)
        _end(outcome, kept)
    if as_json:
        click.echo(json.dumps([outcome.json() for outcome in outcomes], indent=1))
    if write:
        TABLE.write_text(table(outcomes))
    raise SystemExit(0 if all(outcome.clean for outcome in outcomes) else 1)


def _soak(
    store: str, folder: Path, seed: int, events: int | None, duration_s: float | None, *, namespaces: bool
) -> Outcome:
    def say(text: str) -> None:
        click.echo(f"{store}: {text}", err=True)

    if store == "embedded":
        from benchmarks.soak.embedded import EmbeddedSoak

        return EmbeddedSoak(folder, seed, say).run(events or 1000, duration_s or 3600.0)
    if store == "node":
        from benchmarks.soak.overload import overload

        return overload(folder, seed, duration_s or 900.0, say)
    if store == "damage":
        from benchmarks.soak.damage import EVENTS, DamageSoak

        with DamageSoak(folder, seed, say) as damaged:
            return damaged.run(events or EVENTS, duration_s or 1800.0)
    if store == "remote":
        from benchmarks.soak.remote import RemoteSoak

        with RemoteSoak(folder, seed, say) as soak:
            return soak.run(events or 100, duration_s or 3600.0)
    if store == "hostile":
        from benchmarks.soak.hostile import hostile

        return hostile(folder, seed, duration_s or 300.0, say)
    from benchmarks.soak.cluster import ClusterSoak, CodedSoak

    kind = CodedSoak if store == "coded" else ClusterSoak
    with kind(folder, seed, say, namespaces=namespaces) as cluster:
        return cluster.run(events or 200, duration_s or 7200.0)


def _keep(folder: Path, kept: Path) -> None:
    """Histories, logs and extracts; not the objects."""
    kept.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.is_file() and path.suffix in (".txt", ".log", ".json"):
            shutil.copy(path, kept)
        elif path.name.startswith("round-"):
            shutil.copytree(path, kept / path.name, dirs_exist_ok=True)


def _end(outcome: Outcome, kept: Path) -> None:
    """Tell it, and write it down beside what is kept."""
    outcome.tree = _tree()
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.with_name(f"{kept.name}.json").write_text(json.dumps(outcome.json(), indent=1))
    _tell(outcome)


def _tree() -> str:
    asked = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(asked, cwd=TABLE.parent, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""  # no checkout


def _tell(outcome: Outcome) -> None:
    events = ", ".join(f"{count} {name}" for name, count in outcome.events.items())
    click.echo(f"{outcome.name}, seed {outcome.seed}: {outcome.operations:,} operations in {outcome.duration_s:.0f} s")
    click.echo(f"  {events}")
    for name, value in outcome.figures.items():
        click.echo(f"  {name}: {value:g}")
    click.echo(f"  slowest call {outcome.slowest_s:.1f} s; {outcome.undecided} keys without a decision")
    for kind, times in Counter(wrong.kind for wrong in outcome.violations).most_common():
        first = next(wrong for wrong in outcome.violations if wrong.kind == kind)
        click.echo(f"  VIOLATION x{times}: {kind}: {first.key}: {first.text}")
    click.echo(f"  {'clean' if outcome.clean else 'NOT CLEAN, see ' + outcome.evidence}")


@main.command()
@click.option("--seed", default=1, show_default=True)
@click.option("--duration", "duration_s", default=300.0, show_default=True, help="In seconds.")
@click.option(
    "--output", type=click.Path(path_type=Path), default=Path("build/soak"), help="For what a failed run leaves."
)
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def fuzz(seed: int, duration_s: float, output: Path, as_json: bool) -> None:
    """Send random and mutated messages to every method of a node, as clients, strangers and insiders."""
    from benchmarks.soak.fuzz import fuzz as run_fuzz

    with throwaway_folder() as folder:
        outcome = run_fuzz(folder, seed, duration_s, lambda text: click.echo(f"fuzz: {text}", err=True))
        kept = output / f"{time.strftime('%Y%m%d-%H%M%S')}-fuzz-{seed}"
        if not outcome.clean:
            (folder / "outcome.json").write_text(json.dumps(outcome.json(), indent=1))
            _keep(folder, kept)
            outcome.evidence = str(kept)
    _end(outcome, kept)
    if as_json:
        click.echo(json.dumps(outcome.json(), indent=1))
    raise SystemExit(0 if outcome.clean else 1)


@main.command()
@click.argument("folders", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path))
def judge(folders: Sequence[Path]) -> None:
    """Judge histories once more: FOLDERS are those of rounds."""
    found = 0
    for folder in folders:
        verdict = judge_again(folder)
        found += len(verdict.violations)
        click.echo(f"{folder}: {len(verdict.violations)} violations")
        for wrong in verdict.violations[:10]:
            click.echo(f"  {wrong.kind}: {wrong.key}: {wrong.text}")
    raise SystemExit(1 if found else 0)


@main.command()
@click.argument("outcomes", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--to", type=click.Path(dir_okay=False, path_type=Path), default=TABLE, help="The page's file.")
def page(outcomes: Sequence[Path], to: Path) -> None:
    """Write the page of figures of OUTCOMES, the .json files that runs leave in their output folder."""
    to.write_text(table([Outcome.of_json(json.loads(path.read_text())) for path in outcomes]))


if __name__ == "__main__":
    # Nodes and networks are put away, also when this is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
