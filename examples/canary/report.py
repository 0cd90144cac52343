"""Report of runs: losses, samples/s, the share of time that waited for data, and what batches and samples took.

The table has the form of table 2 in "GetBatch: Distributed Multi-Object Retrieval for ML Data Loading". A batch's
latency is the time from asking for its bytes until the last is there; a sample's, from its own request for single GETs,
from the sample before it for a shard, and for GetBatch the batch's divided by its samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from examples.speech.report import running_mean

FALLING = 0.85
"""The loss counts as falling when the mean of the last tenth is below this part of the first tenth's."""
METHODS = {"shards": "sequential shards", "get": "random GET", "getbatch": "GetBatch"}
COLORS = {"shards": "#edae49", "get": "#d1495b", "getbatch": "#1f4e79"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run, of all its steps, those before it was resumed too."""

    source: str
    steps: int
    samples: int
    """Number of samples of rank 0."""
    samples_per_s: float
    """Rate of all ranks together."""
    wait_share: float
    """Part of the step time in which the trainer waited for bytes, 0 to 1."""
    loss_first_tenth: float
    loss_last_tenth: float
    validation_loss: float
    batch_ms: dict[str, float]
    sample_ms: dict[str, float]

    @property
    def loss_falling(self) -> bool:
        return self.loss_last_tenth < FALLING * self.loss_first_tenth

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"loss_falling": self.loss_falling}


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    """P50, P95, P99 and mean, in milliseconds."""
    if not seconds:
        return {}
    p50, p95, p99 = np.percentile(seconds, [50, 95, 99])
    return {"P50": 1e3 * p50, "P95": 1e3 * p95, "P99": 1e3 * p99, "mean": 1e3 * fmean(seconds)}


def run_report(source: str, rows: Sequence[Mapping[str, Any]], *, world_size: int, validation_loss: float) -> RunReport:
    """`rows` are rank 0's step lines."""
    tenth = max(1, len(rows) // 10)
    losses = [row["loss"] for row in rows]
    step_s = sum(row["step_s"] for row in rows)
    samples = sum(len(row["cuts"]) for row in rows)
    return RunReport(
        source=source,
        steps=len(rows),
        samples=samples,
        samples_per_s=world_size * samples / step_s,
        wait_share=sum(row["wait_s"] for row in rows) / step_s,
        loss_first_tenth=fmean(losses[:tenth]),
        loss_last_tenth=fmean(losses[-tenth:]),
        validation_loss=validation_loss,
        batch_ms=percentiles_ms([row["fetch_s"] for row in rows]),
        sample_ms=percentiles_ms([seconds for row in rows for seconds in row["sample_s"]]),
    )


def table(reports: Sequence[RunReport]) -> str:
    """The closing lines on the screen."""
    lines = ["", f"{'':20}{'samples/s':>10}{'waiting':>9}{'loss, first and last tenth':>28}{'validation':>12}"]
    for report in reports:
        losses = f"{report.loss_first_tenth:.2f} → {report.loss_last_tenth:.2f}"
        lines.append(
            f"{METHODS[report.source]:20}{report.samples_per_s:10.0f}{report.wait_share:9.1%}{losses:>28}"
            f"{report.validation_loss:12.2f}"
        )
    for title, of in (("batch", "batch_ms"), ("sample", "sample_ms")):
        lines += ["", f"{f'{title} latency (ms)':20}" + "".join(f"{name:>9}" for name in ("P50", "P95", "P99", "mean"))]
        for report in reports:
            values = getattr(report, of)
            lines.append(f"{METHODS[report.source]:20}" + "".join(f"{value:9.2f}" for value in values.values()))
    return "\n".join(lines)


def draw(runs: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Write the PNG: loss by step, and the share of batches that take longer. `runs`: step lines of each source."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    for source, rows in runs.items():
        label, color = METHODS[source], COLORS[source]
        steps = [row["step"] for row in rows]
        losses = [row["loss"] for row in rows]
        left.plot(steps, losses, color=color, alpha=0.25, linewidth=0.8)
        left.plot(steps, running_mean(losses, 10), color=color, linewidth=2, label=label)
        taken_ms = np.sort([1e3 * row["fetch_s"] for row in rows])
        longer = 1 - np.arange(1, len(taken_ms) + 1) / len(taken_ms)
        right.step(taken_ms, longer, color=color, linewidth=2, where="post", label=label)
    left.set(xlabel="step", ylabel="loss (nats per character)", title="Loss; thick: mean of 10 steps")
    right.set(xlabel="batch latency (ms)", ylabel="share of batches that take longer", title="Getting a batch's bytes")
    right.set_xscale("log")
    right.set_ylim(0, 1)
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    plt.close(figure)
