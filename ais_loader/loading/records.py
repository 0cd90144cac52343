"""Records: where the time of each batch went, and the stage that a run waits for.

The stage that the trainer waits for comes from the loader's own times. If it is "receive", what the nodes say of their
waits decides further. If it is "decode" or "collate", the processor may be the cause: a thread that is ready to run and
has none waits in the run queue of the system.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, fields

from ais_loader.loading.workers import FetchedBatch
from ais_loader.values.timing import BatchTiming

_WAITING = 0.05
"""A trainer that waits for a smaller part of its time is itself the bottleneck."""


_PARTS = tuple(one.name for one in fields(BatchTiming) if one.name not in ("node", "request_id"))
_NONE = (0,) * len(_PARTS)
_values = operator.attrgetter(*_PARTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord(BatchTiming):
    """One batch that the trainer received. Times of several requests are added up; all are in seconds."""

    step: int
    """The step of the plan or, for a sampler, the number of the batch in its iteration."""
    worker: str
    draw_s: float
    """Time to draw its numbers."""
    collate_s: float
    transfer_s: float
    """Time from the worker to the trainer's process."""
    wait_s: float
    """Time that the trainer waited for it."""
    starved_s: float
    """Part of `decode_s` and `collate_s` in which the worker had no processor. 0 if the system does not tell."""

    @classmethod
    def of(cls, fetched: FetchedBatch, *, step: int, draw_s: float, wait_s: float) -> BatchRecord:
        timings = fetched.timings
        values = _values(timings[0]) if len(timings) == 1 else map(sum, zip(_NONE, *map(_values, timings), strict=True))
        parts = dict(zip(_PARTS, values, strict=True))
        if not fetched.timings:
            parts["decode_s"] = fetched.dataset_s
        return cls(
            **parts,
            step=step,
            worker=fetched.worker,
            draw_s=draw_s,
            collate_s=fetched.collate_s,
            transfer_s=fetched.transfer_s,
            wait_s=wait_s,
            starved_s=fetched.starved_s,
            node=max(timings, key=lambda one: one.peer_s).node if timings else "",
            request_id=",".join(one.request_id for one in timings),
        )


@dataclass(slots=True, kw_only=True)
class Summary:
    """The sums of all records of a loader, in seconds and bytes."""

    workers: int = 1
    """Number of workers that share the stages from "receive" to "transfer"."""
    batches: int = 0
    entries: int = 0
    payload_bytes: int = 0
    retries: int = 0
    draw_s: float = 0.0
    queue_s: float = 0.0
    wire_s: float = 0.0
    decode_s: float = 0.0
    collate_s: float = 0.0
    transfer_s: float = 0.0
    wait_s: float = 0.0
    """Time that the trainer waited for batches."""
    trainer_s: float = 0.0
    """Time between a batch and the request for the next one."""
    node_queue_s: float = 0.0
    drive_s: float = 0.0
    peer_s: float = 0.0
    cloud_s: float = 0.0
    throttle_s: float = 0.0
    starved_s: float = 0.0
    nodes_s: dict[str, float] = field(default_factory=dict)
    """Parts of `peer_s` by the node that was waited for the longest in each batch."""
    slowest: str = ""
    """The request id of the batch for which the trainer waited the longest, as in the nodes' logs."""
    slowest_s: float = 0.0

    @property
    def bottleneck(self) -> str:
        """The stage that the run waits for: "trainer", "draw", "receive", "decode", "collate" or "transfer"."""
        if self.wait_s <= _WAITING * (self.wait_s + self.trainer_s):
            return "trainer"
        stages = {"draw": self.draw_s * self.workers, "receive": self.queue_s + self.wire_s}
        stages |= {name: getattr(self, f"{name}_s") for name in ("decode", "collate", "transfer")}
        return max(stages, key=lambda name: stages[name])

    def add(self, record: BatchRecord) -> None:
        self.batches += 1
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(record, name))
        if record.node:
            self.nodes_s[record.node] = self.nodes_s.get(record.node, 0.0) + record.peer_s
        if record.wait_s > self.slowest_s:
            self.slowest, self.slowest_s = record.request_id, record.wait_s


_SUMMED = sorted({one.name for one in fields(Summary)} & {one.name for one in fields(BatchRecord)})


_HELP = {
    "trainer": "the data arrives in time; a faster training step is what makes the run faster",
    "draw": "drawing the numbers of a batch takes the time: use a plan, or a sampler that computes less",
    "queue": "nodes reject or queue requests: add nodes, or raise their max_active_batches and read_threads",
    "drive": "reading what is stored takes the time: spread the bucket over more or faster drives",
    "peer": "one node answers late: look for its load, its network and its drives (ais-loader status)",
    "cloud": "objects come from remote storage for the first time: warm the bucket before the run, or raise in_flight=",
    "throttle": "remote storage asks for fewer requests: lower remote_max_requests, or warm the bucket before",
    "network": "requests and answers take their time on the way: raise in_flight=, or compare the bytes with what the "
    "network carries",
    "decode": "decode and transform take the time: raise workers=, or do less for each sample",
    "collate": "collate takes the time: raise workers=, or collate arrays instead of lists",
    "transfer": "the way from worker processes takes the time: use threads=, output='packed', or smaller batches",
    "processor": "workers are ready and have no processor: lower workers=, or leave the processors to them",
}
CAUSES = tuple(_HELP)


def cause_of(summary: Summary) -> str:
    """Return what the run waits for: one of CAUSES."""
    stage = summary.bottleneck
    if stage in ("decode", "collate"):
        return "processor" if summary.starved_s > 0.4 * (summary.decode_s + summary.collate_s) else stage
    if stage != "receive":
        return stage
    told = {"drive": summary.drive_s, "peer": summary.peer_s, "cloud": summary.cloud_s, "throttle": summary.throttle_s}
    told["queue"] = summary.node_queue_s + (summary.queue_s if summary.retries else 0.0)
    told["network"] = summary.queue_s + summary.wire_s - sum(told.values())
    return max(told, key=lambda cause: told[cause])


def explained(summary: Summary) -> str:
    """Return the cause in a sentence, with what helps."""
    if not summary.batches:
        return "no batch has been received yet"
    cause = cause_of(summary)
    waited = summary.wait_s / (summary.wait_s + summary.trainer_s or 1.0)
    text = f"{cause}: the trainer waited {waited:.0%} of the time for {summary.batches:,} batches; {_HELP[cause]}"
    if cause == "peer" and summary.nodes_s:
        text += f"; {max(summary.nodes_s, key=summary.nodes_s.__getitem__)} was waited for the longest"
    if cause in ("queue", "drive", "peer", "cloud", "throttle") and summary.slowest:
        text += (
            f"; the longest wait, {summary.slowest_s:.2f} s, was for request {summary.slowest}, which nodes log if slow"
        )
    return text
