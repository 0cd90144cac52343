"""Plots of `cluster_model.md`, small enough to be kept beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.cluster_costs import MIB
from benchmarks.cluster_experiments import KINDS, MODES, SIZES, Mode, Saturation
from benchmarks.cluster_simulation import Result
from benchmarks.getbatch import label
from benchmarks.plots import new_figure, save

COLOURS = {"target": "#c0392b", "direct": "#2166ac"}
KIND_COLOURS = dict(zip(KINDS, ("#c0392b", "#e59866", "#2166ac"), strict=True))


def _powers(axes: Any, values: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [f"{value:,}" for value in values])
    axes.minorticks_off()


def per_owner_plot(found: Mapping[tuple[int, int, int, Mode], Result], hosts: int, path: Path) -> None:
    """Throughput above and latency below by entries per owner, a column for each size."""
    figure, axes = new_figure(len(SIZES), rows=2)
    for column, size in enumerate(SIZES):
        above, below = axes[0][column], axes[1][column]
        for mode in MODES:
            chosen = {key[2]: result for key, result in found.items() if key[:2] == (hosts, size) and key[3] == mode}
            across = sorted(chosen)
            results = [chosen[per_owner] for per_owner in across]
            rates = [result.bytes_s / hosts / MIB for result in results]
            above.plot(across, rates, "o-", ms=4, color=COLOURS[mode], label=mode)
            below.plot(across, [result.latency_s(99) * 1e3 for result in results], "o-", ms=4, color=COLOURS[mode])
            _powers(above, across)
            _powers(below, across)
        above.set(title=f"{label(size)} entries", ylim=(0, None))
        below.set(xlabel="entries per owner", ylim=(0, None))
    axes[0][0].set_ylabel("MiB/s per host")
    axes[1][0].set_ylabel("P99 of a batch, ms")
    figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=2)
    save(figure, path)


def hosts_plot(found: Mapping[tuple[int, int, int, Mode], Result], per_owner: int, path: Path) -> None:
    figure, axes = new_figure(len(SIZES))
    for column, size in enumerate(SIZES):
        panel = axes[0][column]
        for mode in MODES:
            chosen = {key[0]: each for key, each in found.items() if key[1:3] == (size, per_owner) and key[3] == mode}
            hosts = sorted(chosen)
            points = [(count, chosen[count]) for count in hosts]
            panel.plot(
                hosts,
                [result.bytes_s / count / MIB for count, result in points],
                "o-",
                ms=4,
                color=COLOURS[mode],
                label=mode,
            )
            panel.set_xscale("log")
            panel.set_xticks(hosts, [f"{count:,}" for count in hosts])
            panel.minorticks_off()
        panel.set(title=f"{label(size)}, {per_owner} entries per owner", xlabel="hosts", ylim=(0, None))
    axes[0][0].set_ylabel("MiB/s per host")
    figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=2)
    save(figure, path)


def few_workers_plot(found: Mapping[tuple[int, int, str], Result], path: Path) -> None:
    figure, axes = new_figure(len(SIZES))
    for column, size in enumerate(SIZES):
        panel = axes[0][column]
        for kind, colour in KIND_COLOURS.items():
            chosen = {key[1]: result for key, result in found.items() if key[0] == size and key[2] == kind}
            across = sorted(chosen)
            points = [(per_owner, chosen[per_owner]) for per_owner in across]
            panel.plot(across, [result.bytes_s / 4 / MIB for _, result in points], "o-", ms=4, color=colour, label=kind)
            _powers(panel, across)
        panel.set(title=f"{label(size)} entries", xlabel="entries per owner", ylim=(0, None))
    axes[0][0].set_ylabel("MiB/s per worker")
    figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=3)
    save(figure, path)


def saturation_plot(found: list[Saturation], path: Path) -> None:
    speeds = sorted({point.gigabits for point in found})
    figure, axes = new_figure(len(speeds), 4.2)
    for column, gigabits in enumerate(speeds):
        panel = axes[0][column]
        for kind, colour in KIND_COLOURS.items():
            points = [point for point in found if point.kind == kind and point.gigabits == gigabits]
            across = [point.nodes_per_host for point in points]
            rates = [point.result.bytes_s / 8 / 2**30 for point in points]
            panel.plot(across, rates, "o-", ms=4, color=colour, label=kind)
            _powers(panel, across)
        panel.axhline(gigabits / 8 * 1e9 / 2**30, color="black", lw=0.8, ls="--", label="NIC, one way")
        panel.axhline(gigabits / 16 * 1e9 / 2**30, color="gray", lw=0.8, ls=":", label="half of it")
        panel.set(title=f"NIC of {gigabits} Gbit/s, 1 MiB entries", xlabel="node processes per host", ylim=(0, None))
    axes[0][0].set_ylabel("GiB/s per host")
    figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=5)
    save(figure, path)
