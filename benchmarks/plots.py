"""Plot style of the pictures beside the tables: small panels with one y axis each, sharp on dense screens."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ais_loader.extras import needs
from benchmarks.harness import Outcome


def new_figure(columns: int, width: float = 3.4, *, rows: int = 1) -> tuple[Any, Any]:
    """A figure and its panels, `axes[row][column]`; `width` is one panel's, in inches."""
    with needs("matplotlib", "pictures"):
        import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True})
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(width * columns, 3.2 * rows), layout="constrained", squeeze=False
    )
    return figure, axes


def save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, dpi=180)
    pyplot.close(figure)


def draw_rounds(
    rates: Mapping[str, Sequence[float]], outcomes: Sequence[Outcome], unit: str, path: Path, *, width: float = 5.2
) -> None:
    """What a harness' run found: rates with their ranges, and each ratio's rounds beside what was wanted."""
    figure, axes = new_figure(2, width=width)
    left, right = axes[0]
    names = list(rates)[::-1]
    for at, name in enumerate(names):
        median = statistics.median(rates[name])
        left.barh(at, median, color="#92c5de", height=0.6)
        left.plot([min(rates[name]), max(rates[name])], [at, at], color="#2166ac", linewidth=2)
    left.set(xlabel=f"{unit}; line: range of the rounds", xscale="log")
    left.set_yticks(range(len(names)), names, fontsize=7)
    for at, outcome in enumerate(outcomes[::-1]):
        right.plot(outcome.ratios, [at] * len(outcome.ratios), "o", color="#2166ac", alpha=0.5, markersize=4)
        right.plot([outcome.median] * 2, [at - 0.3, at + 0.3], color="#2166ac", linewidth=2)
        right.plot([outcome.claim.at_least] * 2, [at - 0.3, at + 0.3], color="#c0392b", linewidth=2, linestyle=":")
    labels = [f"{outcome.claim.subject}\n÷ {outcome.claim.baseline}" for outcome in outcomes[::-1]]
    right.set_yticks(range(len(labels)), labels, fontsize=7)
    right.set(xlabel="ratio in a round; bar: median, dotted: wanted", xscale="log", ylim=(-0.6, len(labels) - 0.4))
    save(figure, path)
