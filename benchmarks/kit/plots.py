"""Plot style of the pictures beside the tables: small panels with one y axis each, sharp on dense screens."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ais_loader.extras import needs
from benchmarks.kit.harness import Outcome


def new_figure(columns: int, width: float = 3.4, *, rows: int = 1, height: float = 3.2) -> tuple[Any, Any]:
    """A figure and its panels, `axes[row][column]`; `width` and `height` are one panel's, in inches."""
    with needs("matplotlib", "pictures"):
        import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True})
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(width * columns, height * rows), layout="constrained", squeeze=False
    )
    return figure, axes


def save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, dpi=180)
    pyplot.close(figure)


def plain_log(panel: Any) -> None:
    """A logarithmic x axis whose numbers are written out, and few enough not to touch."""
    from matplotlib import ticker

    panel.set_xscale("log")
    panel.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 3.0)))
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    panel.xaxis.set_minor_formatter(ticker.NullFormatter())
    panel.tick_params(axis="x", labelsize=7)


def draw_rounds(
    rates: Mapping[str, Sequence[float]], outcomes: Sequence[Outcome], unit: str, path: Path, *, width: float = 5.2
) -> None:
    """Plot the result of a harness' run: medians and ranges of rates, and each ratio beside its target."""
    figure, axes = new_figure(2, width=width)
    left, right = axes[0]
    names = list(rates)[::-1]
    for at, name in enumerate(names):
        median = statistics.median(rates[name])
        left.barh(at, median, color="#92c5de", height=0.6)
        left.plot([min(rates[name]), max(rates[name])], [at, at], color="#2166ac", linewidth=2)
    left.set(xlabel=f"{unit}; line: range of the rounds")
    plain_log(left)
    left.set_yticks(range(len(names)), names, fontsize=7)
    for at, outcome in enumerate(outcomes[::-1]):
        right.plot([min(outcome.ratios), max(outcome.ratios)], [at, at], color="#2166ac", linewidth=2, alpha=0.5)
        right.plot([outcome.median] * 2, [at - 0.3, at + 0.3], color="#2166ac", linewidth=2)
        right.plot([outcome.claim.at_least] * 2, [at - 0.3, at + 0.3], color="#c0392b", linewidth=2, linestyle=":")
    labels = [f"{outcome.claim.subject}\n÷ {outcome.claim.baseline}" for outcome in outcomes[::-1]]
    right.set_yticks(range(len(labels)), labels, fontsize=7)
    right.set(xlabel="ratio; bar: median, line: range, dotted: wanted", ylim=(-0.6, len(labels) - 0.4))
    plain_log(right)
    save(figure, path)


def draw_shares(shares: Mapping[str, Sequence[float]], limits: Mapping[str, float], path: Path) -> None:
    """Medians and ranges of shares of time waiting, in percent, and the limits that are wanted."""
    figure, axes = new_figure(1, width=5.2)
    panel = axes[0][0]
    for at, (name, values) in enumerate(shares.items()):
        panel.plot([min(values), max(values)], [at, at], color="#2166ac", linewidth=2, alpha=0.5)
        panel.plot([statistics.median(values)] * 2, [at - 0.3, at + 0.3], color="#2166ac", linewidth=2)
        panel.plot([limits[name]] * 2, [at - 0.3, at + 0.3], color="#c0392b", linestyle=":", linewidth=2)
    panel.set_yticks(range(len(shares)), [name.replace(" and ", "\nand ") for name in shares])
    panel.set(xlabel="% of time waiting; bar: median, dotted: wanted", ylim=(-0.6, 1.6), xlim=(0, None))
    save(figure, path)
