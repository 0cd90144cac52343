"""Model of GetBatch on 4 to 1,000 hosts: where a target saturates, when direct assembly pays, how placement fills.

python -m benchmarks.cluster_model                            # writes cluster_model.md and its pictures
python -m benchmarks.cluster_model --quick --folder /tmp/x    # small clusters only
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks import cluster_plots as plots
from benchmarks.cluster_costs import MEASURED, MIB, Hardware
from benchmarks.cluster_experiments import (
    KINDS,
    SIZES,
    Mode,
    PlacementFindings,
    Saturation,
    few_workers,
    grid,
    placement_findings,
    quiet_latency,
    saturation,
    three_nodes,
    validate,
)
from benchmarks.cluster_simulation import Result
from benchmarks.getbatch import label

TEXT = Path(__file__).with_name("cluster_model_text.md")
SESSION_KIB = 53
"""Of a node's memory for an idle session: `memory.md`."""
WORTH = 0.8
"""Direct counts as worth it from this part of a target's throughput on: it frees the nodes of a second hop."""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" + "---:|" * (len(heads) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.1f}"


def validation_table() -> str:
    rows = [
        (name, f"{measured:,}", f"{predicted:,.0f}", f"{predicted / measured - 1:+.0%}")
        for name, measured, predicted in validate()
    ]
    return table(("what", "measured objects/s", "predicted", "error"), rows)


def three_nodes_table() -> str:
    rows = [
        (
            label(size),
            *(f"{value * 1e3:.1f} / {told * 1e3:.1f}" for value, told in zip(real, model, strict=True)),
            *(f"{real[0] / real[other]:.1f} / {model[0] / model[other]:.1f}" for other in (1, 2)),
        )
        for size, real, model in three_nodes()
    ]
    heads = ("entry", "target ms", "each other owner ms", "client ms", "target ÷ owner", "target ÷ client")
    return table(heads, rows)


def costs_table() -> str:
    costs, hardware = MEASURED, Hardware()
    rows = [
        ("node: a sub-request of several entries", f"{costs.node_request_s * 1e6:.0f} µs", "measured"),
        ("node: a request of one entry", f"{costs.node_single_s * 1e6:.0f} µs", "measured"),
        ("node: an entry", f"{costs.node_entry_s * 1e6:.1f} µs", "measured"),
        ("node: a byte, read, verified and sent", f"{costs.node_byte_s * 1e9:.2f} ns", "measured"),
        ("node: of it, reading and verifying", f"{costs.read_byte_s * 1e9:.2f} ns", "measured, embedded store"),
        (
            "client: a sub-request of several entries, of one",
            f"{costs.client_request_s * 1e6:.0f}, {costs.client_single_s * 1e6:.0f} µs",
            "measured",
        ),
        (
            "client: an entry, a byte",
            f"{costs.client_entry_s * 1e6:.1f} µs, {costs.client_byte_s * 1e9:.2f} ns",
            "measured",
        ),
        ("placing an entry, per host", f"{costs.placement_s * 1e9:.1f} ns", "measured"),
        ("target: receiving an answer", "as a client", "assumed"),
        (
            "target: sending on a byte",
            f"{(costs.node_byte_s - costs.read_byte_s) * 1e9:.2f} ns",
            "a node's byte less its reading",
        ),
        (
            "NIC, each way; latency one way",
            f"{hardware.nic_bytes_s * 8 / 1e9:.0f} Gbit/s; {hardware.latency_s * 1e6:.0f} µs",
            "the paper; assumed",
        ),
        (
            "drives of a host",
            f"{hardware.drives} × {hardware.drive_bytes_s / 1e9:.0f} GB/s, "
            f"{hardware.drive_latency_s * 1e6:.0f} µs, {hardware.queue_depth} reads deep",
            "the paper; data sheets",
        ),
    ]
    return table(("what", "figure", "source"), rows)


def sessions_table(hosts_of: Sequence[int]) -> str:
    rows = []
    for hosts in hosts_of:
        for per_host in (2, 64):
            workers = hosts * per_host
            rows.append(
                (
                    f"{hosts:,} hosts, {workers:,} workers",
                    "1",
                    f"{hosts:,}",
                    f"{per_host} + {2 * (hosts - 1):,}",
                    f"{workers:,}",
                    f"{(per_host + 2 * (hosts - 1)) * SESSION_KIB / 1024:,.0f}",
                    f"{workers * SESSION_KIB / 1024:,.0f}",
                )
            )
    heads = (
        "cluster",
        "per worker, target",
        "direct",
        "per node, target (clients' + peers')",
        "direct",
        "MiB per node, target",
        "direct",
    )
    return table(heads, rows)


def placement_tables(found: PlacementFindings, hosts: int, names: int) -> str:
    high, low, worst = found.uniformity
    parts = [
        f"Hashes of {names:,} real names compared with uniform ones, in standard deviations: {high:+.1f} (chi-square "
        f"over 4,096 cells of the high bits), {low:+.1f} (of the low bits), {worst:.1f} (the worst of 64 bits; about "
        "2.6 is expected of so many).\n"
    ]
    rows = [
        (
            name,
            f"{each.objects:,}",
            f"{each.chi_square_sd:+.1f}",
            f"{each.sampled_max:.3f} ({each.sampled_max_expected:.3f})",
            f"{each.full_sd:.2%}",
            f"{each.full_max:.4f}",
            f"{each.full_min:.4f}",
        )
        for name, each in ((f"{hosts:,} equal hosts", found.equal), (f"{hosts:,} hosts, weights 1 to 8", found.mixed))
    ]
    heads = (
        "hosts",
        "objects placed",
        "chi-square, sd from chance",
        "fullest ÷ due (by chance)",
        "10⁸ objects: sd of load",
        "fullest ÷ due",
        "emptiest ÷ due",
    )
    parts.append(table(heads, rows) + "\n")
    moves = [
        (name, f"{each.moved:.3%}", f"{each.needed:.3%}", f"{each.moved * 1e8:,.0f}", f"{each.needless:.0%}")
        for name, each in found.movements
    ]
    parts.append(table(("change", "moved", "the least possible", "of 10⁸ objects", "moved needlessly"), moves))
    return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class Findings:
    """What one run of all experiments found; see the functions that make each."""

    validation: str
    few: dict[tuple[int, int, str], Result]
    quiet: dict[tuple[int, int, Mode], Result]
    full: list[Saturation]
    grid: dict[tuple[int, int, int, Mode], Result]
    placed: PlacementFindings
    placed_hosts: int
    names: int


def collect(quick: bool, say: Callable[[str], None]) -> Findings:
    validation = validation_table()
    placed_hosts, names = (100, 50_000) if quick else (1_000, 1_000_000)
    few = few_workers((4, 32), say, 60) if quick else few_workers((1, 2, 4, 8, 16, 32, 64), say)
    quiet = quiet_latency((16,) if quick else (1, 4, 16, 64))
    full = saturation((1,) if quick else (1, 2, 4, 8), say)
    found = grid((2, 8) if quick else (4, 16, 64, 256, 1_000), say)
    placed = placement_findings(placed_hosts, 40_000 if quick else 2_000_000, names, say)
    return Findings(validation, few, quiet, full, found, placed, placed_hosts, names)


def write(findings: Findings, folder: Path) -> None:
    """The page and its pictures."""
    found, few, quiet, full = findings.grid, findings.few, findings.quiet, findings.full
    hosts_of = sorted({key[0] for key in found})
    per_owners = sorted({key[1] for key in few})
    curve_hosts = 64 if 64 in hosts_of else hosts_of[-1]
    plots.per_owner_plot(found, curve_hosts, folder / "cluster_model_per_owner.png")
    plots.hosts_plot(found, 16, folder / "cluster_model_hosts.png")
    plots.few_workers_plot(few, folder / "cluster_model_few_workers.png")
    plots.saturation_plot(full, folder / "cluster_model_saturation.png")

    grid_rows = []
    for hosts, size, per_owner, mode in found:
        if mode == "direct":
            continue
        target, direct = found[hosts, size, per_owner, "target"], found[hosts, size, per_owner, "direct"]
        owners = max(1, min(hosts, 128 // per_owner))
        grid_rows.append(
            (
                f"{hosts:,}, {label(size)}",
                f"{per_owner} × {owners}",
                f"{target.bytes_s / hosts / MIB:,.0f}",
                f"{direct.bytes_s / hosts / MIB:,.0f}",
                f"{direct.bytes_s / target.bytes_s:.1f}×",
                f"{ms(target.latency_s(50))} / {ms(target.latency_s(99))}",
                f"{ms(direct.latency_s(50))} / {ms(direct.latency_s(99))}",
                f"{target.node_cpu[0]:.0%} / {target.node_cpu[1]:.0%}",
                f"{direct.node_cpu[0]:.0%}",
                f"{target.worker_cpu:.0%}, {direct.worker_cpu:.0%}",
                f"{target.reorder_bytes / MIB:,.0f}",
            )
        )
    heads = (
        "hosts, entry",
        "entries × owners",
        "target MiB/s per host",
        "direct",
        "direct ÷ target",
        "target P50 / P99 ms",
        "direct P50 / P99 ms",
        "target: nodes' CPU mean / busiest",
        "direct: mean",
        "workers' CPU, both",
        "target: most held back, MiB",
    )
    kinds = list(KINDS)
    few_rows, worth = [], []
    for size in SIZES:
        for per_owner in per_owners:
            results = [few[size, per_owner, kind] for kind in kinds]
            few_rows.append(
                (
                    f"{label(size)}, {per_owner}",
                    *(f"{result.bytes_s / 4 / MIB:,.0f}" for result in results),
                    f"{results[2].bytes_s / results[0].bytes_s:.2f}",
                    f"{results[2].bytes_s / results[1].bytes_s:.2f}",
                    f"{results[2].worker_cpu:.0%}, {results[1].worker_cpu:.0%}",
                )
            )
        reached = [n for n in per_owners if few[size, n, kinds[2]].bytes_s >= WORTH * few[size, n, kinds[1]].bytes_s]
        first = min(reached, default=0)
        worth.append(
            (
                label(size),
                str(first or "none"),
                f"{first * size / MIB:.2f} MiB" if first else "none",
                f"{MEASURED.client_request_s / (MEASURED.client_entry_s + size * MEASURED.client_byte_s):.1f}",
            )
        )
    quiet_rows = [
        (f"{label(size)}, {per_owner}", ms(result.latency_s(50)), ms(quiet[size, per_owner, "direct"].latency_s(50)))
        for (size, per_owner, mode), result in quiet.items()
        if mode == "target"
    ]
    full_rows = [
        (
            f"{each.gigabits} Gbit/s, {each.nodes_per_host} nodes per host",
            each.kind,
            f"{each.result.bytes_s / 8 / 2**30:.2f}",
            f"{each.result.node_cpu[0]:.0%} / {each.result.node_cpu[1]:.0%}",
            f"{each.result.nic_out[0]:.0%}",
        )
        for each in full
    ]
    text = TEXT.read_text().format(
        costs=costs_table(),
        validation=findings.validation,
        three_nodes=three_nodes_table(),
        grid=table(heads, grid_rows),
        curve_hosts=curve_hosts,
        few=table(
            (
                "entry, entries per owner",
                *kinds,
                "direct ÷ per session",
                "direct ÷ per request",
                "worker's CPU: direct, target per request",
            ),
            few_rows,
        ),
        worth=table(
            (
                "entry",
                "entries per owner from which direct reaches 0.8 of the target",
                "bytes per owner",
                "entries that cost a client as much as the sub-request",
            ),
            worth,
        ),
        quiet=table(("entry, entries per owner", "target ms", "direct ms"), quiet_rows),
        saturation=table(("host", "kind", "GiB/s per host", "nodes' CPU mean / busiest", "NIC out, mean"), full_rows),
        sessions=sessions_table(hosts_of),
        placement=placement_tables(findings.placed, findings.placed_hosts, findings.names),
        placed_hosts=f"{findings.placed_hosts:,}",
    )
    (folder / "cluster_model.md").write_text(text)


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="Small clusters and samples: seconds instead of minutes.")
@click.option("--folder", type=click.Path(path_type=Path), default=Path(__file__).parent, help="Where to write.")
def main(quick: bool, folder: Path) -> None:
    start = time.perf_counter()

    def say(what: str) -> None:
        click.echo(f"{time.perf_counter() - start:4.0f} s  {what}", err=True)

    write(collect(quick, say), folder)
    say(f"{folder / 'cluster_model.md'} written")


if __name__ == "__main__":
    main()
