"""Explanation: the cause that a run waits for, in one sentence with what helps.

The stage that the trainer waits for comes from the loader's own times. If it is "receive", what the nodes say of their
waits decides further. If it is "decode" or "collate", the processor may be the cause: a thread that is ready to run and
has none waits in the run queue of the system.
"""

from __future__ import annotations

from ais_loader.loading.records import Summary

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
