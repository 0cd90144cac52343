"""Plot style of the pictures beside the tables: small, one row of panels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ais_loader.extras import needs


def new_figure(columns: int, width: float = 3.4) -> tuple[Any, Any]:
    """A figure and its panels, `axes[0][column]`; `width` is one panel's, in inches."""
    with needs("matplotlib", "pictures"):
        import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True})
    figure, axes = pyplot.subplots(1, columns, figsize=(width * columns, 3.2), layout="constrained", squeeze=False)
    return figure, axes


def save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, dpi=90)
    pyplot.close(figure)
