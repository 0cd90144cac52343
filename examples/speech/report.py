"""Report of a training run, what it took and reached: numbers, a table on the screen, one PNG.

A step's time has three parts. `wait`: blocked for data, that is, in `next(loader)`. `decode`: audio decoding, features
and padding. `compute`: forward, backward, update. Without DataLoader workers decoding happens inside `next(loader)`, in
this process, and is taken out of `wait`. With workers it happens at the same time as `compute`, in other processes: it
is then no part of the step, `wait` is the whole of `next(loader)`, and decoding is reported beside them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

FALLING = 0.5
"""The loss counts as falling when the mean of the last tenth is below this part of the first step's."""
WAIT, DECODE, COMPUTE, LOSS = "#d1495b", "#edae49", "#8fb3c9", "#1f4e79"


@dataclass(slots=True)
class StepLog:
    """Per step: the loss (nats per character) and seconds. `decode_overlaps`: decoding ran in workers."""

    decode_overlaps: bool
    loss: list[float] = field(default_factory=list)
    wait_s: list[float] = field(default_factory=list)
    decode_s: list[float] = field(default_factory=list)
    compute_s: list[float] = field(default_factory=list)

    def add(self, *, loss: float, next_s: float, decode_s: float, compute_s: float) -> None:
        """Record one step; `next_s` is the whole time in `next(loader)`."""
        self.loss.append(loss)
        self.wait_s.append(next_s if self.decode_overlaps else max(0.0, next_s - decode_s))
        self.decode_s.append(decode_s)
        self.compute_s.append(compute_s)

    def step_s(self, first: int = 0) -> float:
        """Seconds of the steps from `first` on, as the trainer sees them."""
        own_decode_s = 0.0 if self.decode_overlaps else sum(self.decode_s[first:])
        return sum(self.wait_s[first:]) + own_decode_s + sum(self.compute_s[first:])

    def mean_loss(self, tenth: int) -> float:
        """Mean loss of one tenth of the run: 0 is the first, -1 the last. At least one step."""
        size = max(1, len(self.loss) // 10)
        return fmean(self.loss[:size] if tenth == 0 else self.loss[-size:])


@dataclass(frozen=True, slots=True)
class Example:
    """Output of the trained model for one utterance of the training set."""

    lang: str
    name: str
    reference: str
    hypothesis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The outcome of a run; `as_json` is what `--json` prints. Shares are parts of the step time, 0 to 1."""

    url: str
    utterances: int
    stored_bytes: int
    put_s: float
    steps: int
    batch_size: int
    num_workers: int
    seed: int
    train_s: float
    samples_per_s: float
    wait_share: float
    decode_share: float
    compute_share: float
    decode_overlaps: bool
    loss_first: float
    loss_last: float
    loss_first_tenth: float
    loss_last_tenth: float
    loss_falling: bool
    character_error_rate: float
    examples: tuple[Example, ...]
    png: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def step_shares(log: StepLog) -> tuple[float, float, float]:
    """Parts of the step time in wait, decode and compute. Overlapping decode is stated against the step time too."""
    total_s = log.step_s()
    return sum(log.wait_s) / total_s, sum(log.decode_s) / total_s, sum(log.compute_s) / total_s


def is_falling(log: StepLog) -> bool:
    return log.mean_loss(-1) < FALLING * log.loss[0]


def edit_distance(reference: str, hypothesis: str) -> int:
    """Insertions, deletions and substitutions between two texts (Levenshtein), one row of the table at a time."""
    row = list(range(len(hypothesis) + 1))
    for i, wanted in enumerate(reference, start=1):
        previous, row[0] = row[0], i
        for j, written in enumerate(hypothesis, start=1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (wanted != written))
    return row[-1]


def describe(summary: Summary) -> str:
    """The closing lines on the screen."""
    beside = " (in workers, at the same time)" if summary.decode_overlaps else ""
    lines = [
        f"samples/s       {summary.samples_per_s:.0f}  ({summary.steps} steps of {summary.batch_size} "
        f"in {summary.train_s:.1f} s)",
        f"step time       waiting for data {summary.wait_share:.1%}, decode {summary.decode_share:.1%}{beside}, "
        f"compute {summary.compute_share:.1%}",
        f"loss            {summary.loss_first:.2f} at the first step, {summary.loss_last:.3f} at the last "
        f"(mean of the first tenth {summary.loss_first_tenth:.2f}, of the last {summary.loss_last_tenth:.3f})",
        f"character error {summary.character_error_rate:.1%}, on the {summary.utterances} utterances trained on: "
        "a sign that the data arrive whole and in order, no more",
    ]
    for example in summary.examples:
        lines += [f"  {example.lang}  said     {example.reference}", f"      written  {example.hypothesis}"]
    return "\n".join([*lines, f"plot            {summary.png}"])


def running_mean(values: list[float], width: int) -> list[float]:
    """Mean of each value and up to `width - 1` before it."""
    return [fmean(values[max(0, i + 1 - width) : i + 1]) for i in range(len(values))]


def draw(log: StepLog, summary: Summary, path: Path) -> None:
    """Write the PNG: loss by step above, each step's time below. Raises OSError when `path` cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter

    steps = range(1, len(log.loss) + 1)
    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(9, 7), layout="constrained")
    figure.suptitle(
        f"Speech model trained through GetBatch: {summary.samples_per_s:.0f} samples/s, "
        f"{summary.wait_share:.1%} of the step time waiting for data",
        fontsize=13,
    )

    top.plot(steps, log.loss, color=LOSS, alpha=0.3, linewidth=1, label="each step")
    top.plot(steps, running_mean(log.loss, 10), color=LOSS, linewidth=2, label="mean of 10 steps")
    top.set_yscale("log")
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    top.yaxis.set_major_formatter(plain)
    if min(log.loss) > 1:  # less than a factor of ten: label the ticks between the powers of ten too
        top.yaxis.set_minor_formatter(plain)
    top.set_ylabel("CTC loss (nats per character)")
    top.legend(loc="upper right", frameon=False)

    parts = [("wait for data", log.wait_s, WAIT, summary.wait_share)]
    if not log.decode_overlaps:
        parts.append(("decode", log.decode_s, DECODE, summary.decode_share))
    parts.append(("compute", log.compute_s, COMPUTE, summary.compute_share))
    base = [0.0] * len(log.loss)
    edges = [step - 0.5 for step in (*steps, len(steps) + 1)]
    for label, seconds, color, share in parts:
        top_ms = [low + 1e3 * s for low, s in zip(base, seconds, strict=True)]
        bottom.stairs(top_ms, edges, baseline=base, fill=True, color=color, label=f"{label} {share:.1%}")
        base = top_ms
    if log.decode_overlaps:
        decode_ms = [1e3 * s for s in log.decode_s]
        label = f"decode, in workers meanwhile {summary.decode_share:.1%}"
        bottom.plot(steps, decode_ms, color=DECODE, linewidth=1.2, label=label)
        base = [max(pair) for pair in zip(base, decode_ms, strict=True)]
    # Rare long steps (the first one starts the workers, other programs take the cores) would flatten all others: they
    # leave the picture, and are named.
    limit_ms = min(3 * median(base), 1.1 * max(base))
    bottom.set_ylim(0, limit_ms)
    longer = [height for height in base if height > limit_ms]
    if longer:
        note = f"{len(longer)} longer step{'s' * (len(longer) > 1)}, up to {max(longer):.0f} ms"
        bottom.annotate(note, (0, 1), (0, 4), "axes fraction", "offset points", va="bottom", fontsize=8)
    bottom.set_xlim(0.5, len(log.loss) + 0.5)
    bottom.set_ylabel("time of a step (ms)")
    bottom.set_xlabel(f"step (batches of {summary.batch_size}, one GetBatch each)")
    bottom.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0, frameon=False, ncols=3)
    for axes in (top, bottom):
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
