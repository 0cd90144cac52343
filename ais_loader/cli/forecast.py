"""`ais-loader forecast`: the requests, bytes, waiting and cost of epochs before they run, and beside the meter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from ais_loader.cli.batch import loader_of, read_object, takes_loader
from ais_loader.cli.show import OutputLines, size_text
from ais_loader.cli.stores import StoreChoice, takes_store
from ais_loader.values.size_of_text import size_of_text

_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True)
_NUMBER = click.FloatRange(min=0)


@click.command()
@click.argument("state_file", metavar="[STATE]", required=False, type=_FILE)
@takes_loader
@click.option("--epochs", type=click.IntRange(min=1), default=1, show_default=True, help="Number of epochs.")
@click.option("--step-ms", type=_NUMBER, default=0.0, show_default=True, help="Time of a training step.")
@click.option("--latency-ms", type=_NUMBER, help="Latency of remote storage.  [default: measured, with --rate]")
@click.option("--rate", metavar="SIZE", help="Its bytes per second, such as 200MB.")
@click.option("--store-latency-ms", type=_NUMBER, help="Latency of the store.  [default: measured, with --store-rate]")
@click.option("--store-rate", metavar="SIZE", help="Its bytes per second.")
@click.option("--cache", metavar="SIZE", help="Of each remote bucket.  [default: its cache_bytes, on all nodes]")
@click.option("--prices", type=(_NUMBER, _NUMBER), help="Of 1,000 requests, and of 10^9 bytes from remote storage.")
@click.option("--compare", metavar="FILE", type=_FILE, help="Show what was measured since this output of --json.")
@click.option("--summary", metavar="FILE", type=_FILE, help="For --compare: `asdict(loader.summary())` as JSON.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for --compare.")
@takes_store
def forecast(
    state_file: str | None,
    loader: str | None,
    entries: str | None,
    store: StoreChoice,
    compare: str | None,
    summary: str | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Show what the next epochs of a loader request, and how long its trainer waits, before they run.

    STATE is a file, or - for standard input, with what `loader.state_dict()` returned, as JSON. Without it, the loader
    begins where it is. Requests and bytes are those of all ranks. Latencies and rates that are not given are measured
    with the first batch, which is stored from then on.

    With --compare, a forecast is shown beside what the store has counted for its remote buckets since it was made,
    whoever has read them.
    """
    from ais_loader.training import forecast as model

    with OutputLines() as lines:
        if compare is not None:
            with store.reading() as client:
                rows = model.compared(read_object(compare), client, read_object(summary) if summary else None)
            for line in [json.dumps(rows)] if as_json else _table(["forecast", "measured"], rows):
                lines.add(line)
            return
        state = None if state_file is None else read_object(state_file)
        with loader_of(loader, entries, state, store) as planned:
            found = model.forecast(
                planned,
                state,
                epochs=chosen["epochs"],
                step_s=chosen["step_ms"] / 1000,
                store=_door(chosen, "store_"),
                cloud=_door(chosen, ""),
                cache_bytes=None if chosen["cache"] is None else size_of_text(chosen["cache"]),
            )
        for line in [json.dumps(asdict(found))] if as_json else _lines(found, chosen["prices"]):
            lines.add(line)


def _door(chosen: dict[str, Any], prefix: str) -> Any:
    from ais_loader.training.waiting_model import Door

    latency_ms, rate = chosen[f"{prefix}latency_ms"], chosen[f"{prefix}rate"]
    if (latency_ms is None) != (rate is None):
        option = f"--{prefix}".replace("_", "-")
        raise click.UsageError(f"{option}latency-ms and {option}rate: give both or neither")
    return None if rate is None else Door(latency_ms / 1000, size_of_text(rate))


def _lines(found: Any, prices: tuple[float, float] | None) -> list[str]:
    epochs = [asdict(one) for one in found.epochs]
    rows = {name: [one[name] for one in epochs] for name in (epochs[0] if epochs else {}) if name != "epoch"}
    lines = _table([f"epoch {one['epoch']}" for one in epochs], rows)
    lines += _table(
        [], {name: [getattr(found, name)] for name in ("distinct_bytes", "cache_bytes", "missing", "unknown")}
    )
    rates = ", ".join(f"{size_text(size)} for {rate:.0%}" for size, rate in found.hit_rates)
    lines += [f"of the reads, by reuse distance, a cache has {rates}"] if rates else []
    doors = {"store": found.store, "remote storage": found.cloud}
    lines += [f"{name}: {at.latency_s * 1000:,.1f} ms, {size_text(at.bytes_per_s)}/s" for name, at in doors.items()]
    return [*lines, f"cost: {found.cost(*prices):,.2f}"] if prices else lines


def _table(heads: Sequence[str], rows: Mapping[str, Sequence[float]]) -> list[str]:
    texts = {name: [f"{one:,}" if isinstance(one, int) else f"{one:,.2f}" for one in rows[name]] for name in rows}
    all_rows = {"": heads, **texts} if heads else texts
    return [f"{name:<14}" + "".join(f"  {text:>16}" for text in row) for name, row in all_rows.items()]
