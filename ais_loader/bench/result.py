"""Result of a measurement: JSON, a table for people, and the comparison of two results."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ais_loader import __version__
from ais_loader.bench import machine
from ais_loader.bench.plan import BenchPlan
from ais_loader.bench.tally import PERCENTILES, BenchTally
from ais_loader.errors import InvalidRequest

FORMAT = "ais-loader bench 1"
_GIB = 1 << 30
LATENCIES = ("mean", *(f"p{percent:g}" for percent in PERCENTILES), "max")


@dataclass(frozen=True, slots=True)
class Measured:
    """Reports of all processes of a measurement, put together."""

    tally: BenchTally
    elapsed_s: float
    """Wall-clock time of the slowest process."""
    cpu_s: float
    peak_bytes: int
    """Peak memory of the processes together."""
    notes: Sequence[str] = ()


def result(
    plan: BenchPlan,
    measured: Measured,
    *,
    node_cpu_s: float | None,
    node_peak_bytes: int | None,
    whole: bool,
    devices: Mapping[str, tuple[float, ...]],
    cold: str | None,
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return the result, as JSON. `whole` is false after Ctrl-C. `devices`: growth of `DeviceCounts`, by drive."""
    tally, elapsed_s, client_cpu_s = measured.tally, measured.elapsed_s, measured.cpu_s
    moved = tally.size_bytes / _GIB
    return {
        "format": FORMAT,
        "version": __version__,
        "machine": machine.name(),
        "load_average": os.getloadavg()[0],
        "plan": asdict(plan),
        "whole": whole,
        "elapsed_s": elapsed_s,
        "calls": tally.calls,
        "objects": tally.objects,
        "bytes": tally.size_bytes,
        "errors": dict(tally.errors),
        "calls_per_s": tally.calls / elapsed_s,
        "objects_per_s": tally.objects / elapsed_s,
        "bytes_per_s": tally.size_bytes / elapsed_s,
        "latency_ms": tally.latency_ms(),
        "client_cpu_s": client_cpu_s,
        "node_cpu_s": node_cpu_s,
        "client_cpu_s_per_gib": client_cpu_s / moved if moved else None,
        "node_cpu_s_per_gib": node_cpu_s / moved if moved and node_cpu_s is not None else None,
        "client_peak_bytes": measured.peak_bytes,
        "node_peak_bytes": node_peak_bytes,
        "drives": {
            path: {"device_read_bytes": read, "device_written_bytes": written, "device_busy_share": busy_s / elapsed_s}
            for path, (read, written, busy_s) in devices.items()
        },
        "cold": cold,
        "notes": [*measured.notes, *notes],
    }


def table(found: Mapping[str, Any]) -> list[str]:
    """Format a result as lines for a terminal."""
    plan = found["plan"]
    rows = [("workload", _workload(plan)), ("measured", f"{found['elapsed_s']:.1f} s, {found['calls']:,} calls")]
    if not found["whole"]:
        rows.append(("", "interrupted: this is what was measured until then"))
    rows.append(("objects", f"{found['objects']:,}, {found['objects_per_s']:,.0f} a second"))
    if found["bytes"]:
        rows.append(
            ("bytes", f"{found['bytes'] / _GIB:,.3f} GiB, {found['bytes_per_s'] / (1 << 20):,.1f} MiB a second")
        )
    if latency := found["latency_ms"]:
        rows.append(("latency, ms", ", ".join(f"{name} {latency[name]:,.2f}" for name in LATENCIES)))
    errors = ", ".join(f"{count:,} {kind}" for kind, count in sorted(found["errors"].items()))
    rows.append(("errors", errors or "none"))
    for role in ("client", "node"):
        used, of_gib, peak = (found[f"{role}_{name}"] for name in ("cpu_s", "cpu_s_per_gib", "peak_bytes"))
        if used is not None:
            text = f"{used:.2f} s of processors"
            text += f", {of_gib:.2f} s for a GiB" if of_gib is not None else ""
            rows.append((role, text + (f", at most {peak / (1 << 20):,.0f} MiB of memory" if peak is not None else "")))
    for path, device in found["drives"].items():
        read, written = (device[f"device_{name}_bytes"] / (1 << 20) for name in ("read", "written"))
        text = f"{path}, its device {device['device_busy_share']:.0%} busy"
        rows.append(("drive", f"{text}, {read:,.1f} MiB read, {written:,.1f} MiB written"))
    if found["cold"] is not None:
        rows.append(("cache", found["cold"]))
    rows += [("note", note) for note in found["notes"]]
    return [f"{name:<12} {text}" for name, text in rows]


def _workload(plan: Mapping[str, Any]) -> str:
    text = f"{plan['workload']}, {plan['objects']:,} objects of {plan['size']}, "
    if plan["workload"] in ("get-batch", "members", "ranges", "sessions", "put-many"):
        text += f"batches of {plan['batch']}, "
    return f"{text}{plan['processes']} × {plan['threads']} threads"


def load(path: Path) -> dict[str, Any]:
    """Load a result written by `--json`. Raises InvalidRequest for other files, OSError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidRequest(f"{path} is no JSON, so no result of `ais-loader bench --json`: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InvalidRequest(f"{path} is no result of `ais-loader bench --json` (format {FORMAT!r})")
    return found


def comparison(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Compare two results line by line, with the ratio of the second to the first, after the plans' differences."""
    lines = []
    for name, value in one["plan"].items():
        if value != other["plan"].get(name):
            lines.append(f"{name} differs: {value} and {other['plan'].get(name)}")
    lines.append(f"{'':<22} {'first':>14} {'second':>14} {'second ÷ first':>15}")
    numbers = [(name, one[name], other[name]) for name in ("objects_per_s", "bytes_per_s", "calls_per_s")]
    numbers += [
        (f"latency {name}, ms", one["latency_ms"].get(name), other["latency_ms"].get(name)) for name in LATENCIES
    ]
    of_both = ("client_cpu_s_per_gib", "node_cpu_s_per_gib", "client_peak_bytes", "node_peak_bytes")
    numbers += [(name, one[name], other[name]) for name in of_both]
    numbers.append(("errors", sum(one["errors"].values()), sum(other["errors"].values())))
    for name, first, second in numbers:
        if first is None and second is None:
            continue
        ratio = f"{second / first:.2f}" if first and second is not None else "-"
        lines.append(f"{name:<22} {_number(first):>14} {_number(second):>14} {ratio:>15}")
    return lines


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:,.3f}"
