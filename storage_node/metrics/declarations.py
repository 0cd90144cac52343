"""Metric catalogue: name, type, labels, unit and meaning of each exported metric, and its reader.

Tests compare it with docs/metrics.md and the dashboard, and with what a running node exports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from ais_loader.version import __version__
from storage_node.limits.counters import Histogram

if TYPE_CHECKING:  # a gateway declares metrics too, and has no node
    from storage_node.services.running_node import RunningNode

Type = Literal["counter", "gauge", "histogram"]
Value = float | Histogram | Mapping[Any, Any]
"""A sample, or values by the values of a label; a tuple as a key has the values of several labels. Labels are in the
order of their declaration."""
Reader = Callable[["RunningNode"], Value]
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Metric(Generic[S]):
    """An exported metric, read from an S. A counter's name ends in _total; a histogram's samples add _bucket, _sum, and
    _count."""

    name: str
    type: Type
    labels: tuple[str, ...]
    unit: str
    meaning: str
    read: Callable[[S], Value]


def metric(name: str, type: Type, unit: str, *labels: str) -> Callable[[Reader, str], Metric[RunningNode]]:
    """Declare a metric; the result takes its reader and its meaning."""
    return lambda read, meaning: Metric(name, type, labels, unit, meaning, read)


METRICS = (
    # Throughput.
    metric("ais_loader_batches_total", "counter", "batches", "kind", "outcome")(
        lambda node: node.counts.batches,
        "GetBatch requests that have ended. kind: single (one entry, as sent by a client's get() or open()), many, or "
        "part (what one of several nodes contributes, to a node or a client that assembles the batch). outcome: "
        "complete, stopped (at an entry that failed, as requested), failed, rejected (to be retried), abandoned "
        "(cancelled, or the connection broke).",
    ),
    metric("ais_loader_delivered_entries_total", "counter", "entries", "kind", "content")(
        lambda node: node.counts.entries,
        "Successful entries of batches that reached their end, by the kind of batch: the node that assembles "
        "delivers the entries of a part once more. content: object (whole or a range) or member (of a shard).",
    ),
    metric("ais_loader_delivered_bytes_total", "counter", "bytes", "kind", "content")(
        lambda node: node.counts.entry_bytes, "Payload of delivered entries."
    ),
    metric("ais_loader_session_sent_bytes_total", "counter", "bytes")(
        lambda node: node.counts.sent_bytes,
        "All messages of all sessions, to clients and to peers, including those of abandoned batches.",
    ),
    metric("ais_loader_tenant_bytes_total", "counter", "bytes", "tenant")(
        lambda node: node.resources.slots.charged_bytes,
        "Payload that this node read for batches and parts, by tenant. Tenants without a weight are counted together "
        "as `other`.",
    ),
    metric("ais_loader_requests_total", "counter", "requests", "operation")(
        lambda node: node.counts.requests,
        "Calls on single objects that have ended: put, get, head, delete, list. In a PUT of many objects, each "
        "object counts. A small get() uses a session and is a batch of kind single.",
    ),
    metric("ais_loader_request_bytes_total", "counter", "bytes", "operation")(
        lambda node: node.counts.request_bytes, "Payload that calls on single objects put and got."
    ),
    metric("ais_loader_listed_objects_total", "counter", "objects")(
        lambda node: node.counts.listed_objects, "Objects returned by list calls."
    ),
    # Latency.
    metric("ais_loader_batch_first_byte_seconds", "histogram", "seconds", "kind")(
        lambda node: node.counts.first_byte,
        "Time from a batch's arrival until its first frame was handed to the network.",
    ),
    metric("ais_loader_batch_duration_seconds", "histogram", "seconds", "kind")(
        lambda node: node.counts.duration,
        "Time from a batch's arrival until its end was handed to the network, for complete, stopped, and failed "
        "batches.",
    ),
    metric("ais_loader_peer_wait_seconds_total", "counter", "seconds")(
        lambda node: node.resources.peer_wait_s, "Time that batches waited for entries from other nodes (rxwait)."
    ),
    metric("ais_loader_throttle_seconds_total", "counter", "seconds", "cause")(
        lambda node: node.counts.throttle_s,
        "Time that batches were held back by this node's own limits. cause: memory (of frames in flight), turn "
        "(other batches were served first), cpu and drives (pauses of an overloaded node).",
    ),
    metric("ais_loader_client_wait_seconds_total", "counter", "seconds")(
        lambda node: node.counts.client_wait_s, "Time that batches waited for their clients to take data."
    ),
    # Errors and recoveries.
    metric("ais_loader_hard_errors_total", "counter", "batches", "kind")(
        lambda node: node.counts.hard_errors,
        "Batches ended by an error, by the error's kind, or by the entry's status if an entry ended the batch.",
    ),
    metric("ais_loader_soft_errors_total", "counter", "entries", "status")(
        lambda node: node.counts.soft_errors, "Entries that failed without ending their batch, by status."
    ),
    metric("ais_loader_refusals_total", "counter", "calls", "reason")(
        lambda node: node.counts.refusals,
        "Calls of clients that were refused because of their tokens. reason: missing, "
        "malformed, algorithm, signature, audience (another cluster), expired, not_yet_valid, revoked, rights (too few "
        "for the call), entries (buckets of batches whose entries were refused in their places).",
    ),
    metric("ais_loader_assembly_soft_errors_total", "counter", "entries")(
        lambda node: node.resources.soft_errors,
        "Soft errors in batches gathered from other nodes: entries that no node could deliver.",
    ),
    metric("ais_loader_recoveries_total", "counter", "entries")(
        lambda node: node.resources.recoveries,
        "Entries requested again from another holder, because the first one did not deliver them.",
    ),
    metric("ais_loader_hedged_entries_total", "counter", "entries")(
        lambda node: node.resources.hedging.budget.hedged,
        "Entries of gathered batches that were also requested from a second holder, because the first one was "
        "unusually slow.",
    ),
    metric("ais_loader_request_errors_total", "counter", "requests", "operation", "kind")(
        lambda node: node.counts.request_errors, "Calls on single objects that failed, by the error's kind."
    ),
    metric("ais_loader_rejections_total", "counter", "batches", "reason")(
        lambda node: node.counts.rejections,
        "Batches that were rejected and can be retried. reason: batches (too many are active), answers (no room to "
        "collect the answer), memory (the process is above its critical limit, or there is no room for what other "
        "nodes send or for requests), still (the client received nothing while others waited for its place), "
        "rate (its tenant makes or reads too much in a second), stopping.",
    ),
    # Memory and admission.
    metric("ais_loader_evictions_total", "counter", "calls", "kind")(
        lambda node: {kind: slots.evicted for kind, slots in node.slots.items()},
        "Stalled calls that were ended because others needed their places, or because memory was short. kind: "
        "batches, parts, streams (objects being put or got in calls of their own), replicas (copies that other nodes "
        "write), sessions (idle ones), requests (calls by gRPC whose request did not arrive completely).",
    ),
    metric("ais_loader_slot_refusals_total", "counter", "calls", "kind", "reason")(
        lambda node: {kind: slots.refused for kind, slots in node.slots.items()},
        "Calls that were rejected because there was no place for them, and can be retried. kind: as for evictions. "
        "reason: tenant (their tenant has as many as one may have, see tenant_share), all (all places are taken).",
    ),
    metric("ais_loader_open_streams", "gauge", "calls")(
        lambda node: node.slots["streams"].held, "Objects being put or got in calls of their own."
    ),
    metric("ais_loader_memory_held_bytes", "gauge", "bytes", "kind")(
        lambda node: {kind: budget.held_bytes for kind, budget in node.memory.items()},
        "Payload in memory. kind: frames (on their way to the network), answers (collected before sending), assembly "
        "(what other nodes have sent or may send), requests (of batches being served), messages (of objects being "
        "put), replicas (the same, from other nodes), transforms (inputs and outputs of entries that pass through "
        "transforms), results (of transforms, kept for repeated requests).",
    ),
    metric("ais_loader_memory_limit_bytes", "gauge", "bytes", "kind")(
        lambda node: {kind: budget.limit_bytes for kind, budget in node.memory.items()}, "Limit of each kind of memory."
    ),
    metric("ais_loader_open_sessions", "gauge", "sessions")(
        lambda node: node.batches.open_sessions, "Open GetBatch sessions, including idle ones."
    ),
    metric("ais_loader_open_lanes", "gauge", "connections", "kind")(
        lambda node: {
            **{kind: lanes.open_lanes for kind, lanes in node.lanes.items()},
            "to_peers": node.resources.peers.open_lanes,
        },
        "Open lanes (connections besides gRPC), including idle ones. kind: clients (opened by clients), peers "
        "(opened by other nodes), to_peers (opened by this node, for its sessions with other nodes that do not use "
        "gRPC).",
    ),
    metric("ais_loader_lanes_closed_total", "counter", "connections", "kind", "reason")(
        lambda node: {kind: lanes.closed for kind, lanes in node.lanes.items()},
        "Lanes that the node closed or refused by itself. kind: clients, peers. reason: token (none, or an invalid "
        "one), strangers (too many connections without a token), lanes (too many, in total or from one peer), tenant "
        "(its tenant has as many as one may have, see tenant_share), "
        "descriptors (too few are left), idle (closed to make room for another lane), message (it was not complete "
        "in time).",
    ),
    metric("ais_loader_certificate_expiry_timestamp_seconds", "gauge", "seconds", "file")(
        lambda node: node.node.caller.credentials.expiries_s() if node.node.caller.credentials is not None else {},
        "When certificates of a node with TLS end, in seconds since 1970. file: certificate (the node's own), ca (the "
        "first one that vouches for others).",
    ),
    metric("ais_loader_token_expiry_timestamp_seconds", "gauge", "seconds")(
        lambda node: {} if (end_s := node.counts.first_token_end_s) is None else end_s,
        "When the first of the tokens ends that clients have used within the last hour, in seconds since 1970.",
    ),
    metric("ais_loader_audit_lines_total", "counter", "lines", "outcome")(
        lambda node: {} if (log := node.node.audit) is None else {"written": log.lines, "lost": log.lost},
        "Lines of the audit log. outcome: written, lost (the drive is full or fails, the file was removed or "
        "changed, or too many lines came at once).",
    ),
    metric("ais_loader_active_batches", "gauge", "batches")(
        lambda node: node.resources.batches.held, "Batches being served, without parts."
    ),
    metric("ais_loader_active_parts", "gauge", "batches")(
        lambda node: node.resources.parts.held, "Parts being served."
    ),
    metric("ais_loader_active_batches_limit", "gauge", "batches")(
        lambda node: node.node.config.limits.max_active_batches,
        "Maximum number of active batches; further ones are rejected.",
    ),
    metric("ais_loader_assembled_batches_total", "counter", "batches")(
        lambda node: node.resources.batches_assembled, "Batches for which this node gathered entries from other nodes."
    ),
    metric("ais_loader_pending_reads", "gauge", "reads")(
        lambda node: node.counts.pending_reads,
        "Reads and writes that a drive thread is executing or that wait for one: the node's queue.",
    ),
    metric("ais_loader_read_threads", "gauge", "threads")(
        lambda node: node.node.config.reads.read_threads, "Threads that process the read queue."
    ),
    # Drives.
    metric("ais_loader_drive_up", "gauge", "1 or 0", "drive", "path")(
        lambda node: node.each_drive(lambda drive: 0 if drive.problem else 1),
        "Whether the drive works. path is empty if the drive was not found.",
    ),
    metric("ais_loader_drive_free_bytes", "gauge", "bytes", "drive", "path")(
        lambda node: node.each_readable_drive(lambda drive: drive.free_bytes), "Space available to this process."
    ),
    metric("ais_loader_drive_size_bytes", "gauge", "bytes", "drive", "path")(
        lambda node: node.each_readable_drive(lambda drive: drive.size_bytes), "Size of the drive's file system."
    ),
    metric("ais_loader_drive_objects", "gauge", "objects", "drive", "path")(
        lambda node: node.each_readable_drive(lambda drive: drive.objects_estimate),
        "Estimated number of objects on the drive.",
    ),
    metric("ais_loader_drive_device_busy_seconds_total", "counter", "seconds", "drive", "path")(
        lambda node: node.each_device(lambda device: device.busy_s),
        "Time in which the drive's block device had requests, from whomever; its rate is the busy share. Not exported "
        "for file systems without a device of their own, such as tmpfs and NFS.",
    ),
    metric("ais_loader_drive_device_read_bytes_total", "counter", "bytes", "drive", "path")(
        lambda node: node.each_device(lambda device: device.read_bytes),
        "Bytes read from the drive's block device: not what the page cache has served.",
    ),
    metric("ais_loader_drive_device_written_bytes_total", "counter", "bytes", "drive", "path")(
        lambda node: node.each_device(lambda device: device.written_bytes),
        "Bytes written to the drive's block device.",
    ),
    metric("ais_loader_drive_state", "gauge", "1", "drive", "path", "state")(
        lambda node: node.each_drive(lambda drive: {node.drives.state(drive): 1}),
        "State of the drive: active, retiring (its objects are being moved to the others), disabled (because of too "
        "many errors, or by an operator), missing, failing (in use, but it failed recently).",
    ),
    metric("ais_loader_drive_io_errors_total", "counter", "errors", "drive", "path")(
        lambda node: node.each_drive(lambda drive: drive.io_errors),
        "Reads and writes that the drive, its file system, or its catalog has refused since the node opened the drive.",
    ),
    metric("ais_loader_drive_bad_checksums_total", "counter", "objects", "drive", "path")(
        lambda node: node.each_drive(lambda drive: drive.checksum_errors),
        "How often bytes on the drive differed from those that were put.",
    ),
    metric("ais_loader_drive_changes_total", "counter", "drives", "what")(
        lambda node: {"disabled": node.drives.counts.disabled, "given up": node.drives.counts.given_up},
        "Drives that changed. what: disabled (because of too many errors), given up (their objects are fetched from "
        "other nodes).",
    ),
    metric("ais_loader_drive_moved_objects_total", "counter", "objects")(
        lambda node: node.drives.counts.objects_moved,
        "Objects moved between the node's drives after a drive was added or while one retires.",
    ),
    metric("ais_loader_drive_moved_bytes_total", "counter", "bytes")(
        lambda node: node.drives.counts.bytes_moved, "Bytes of the objects moved between drives."
    ),
    metric("ais_loader_drive_objects_to_move", "gauge", "objects")(
        lambda node: node.drives.counts.objects_left, "Approximate number of objects still to be moved."
    ),
    # The node in its cluster.
    metric("ais_loader_map_version", "gauge", "version")(
        lambda node: 0 if node.membership.view is None else node.membership.view.version,
        "Version of the cluster map; 0 if the node is in no cluster.",
    ),
    metric("ais_loader_map_nodes", "gauge", "nodes", "state")(
        lambda node: node.map_states(), "Nodes in the cluster map, by state: active, joining, leaving."
    ),
    # Repair.
    metric("ais_loader_repair_passes_total", "counter", "passes")(
        lambda node: node.repair.metrics.passes,
        "Passes over all objects of the node in search of copies that other nodes lack.",
    ),
    metric("ais_loader_repair_objects_total", "counter", "objects", "what")(
        lambda node: {
            "pushed": node.repair.metrics.objects_pushed,
            "failed": node.repair.metrics.failed_pushes,
            "fetched": node.repair.metrics.names_fetched,
            "dropped": node.repair.metrics.copies_dropped,
        },
        "Copies handled by repair. what: pushed (to nodes that lacked them or had older ones), failed (pushes that "
        "did not succeed and are retried), fetched (this node lacked them or had older ones), dropped (they belong "
        "to other nodes, which have them).",
    ),
    metric("ais_loader_repair_bytes_total", "counter", "bytes", "what")(
        lambda node: {"pushed": node.repair.metrics.bytes_pushed, "fetched": node.repair.metrics.bytes_fetched},
        "Bytes of the objects pushed and fetched.",
    ),
    metric("ais_loader_repair_tombstones_total", "counter", "objects", "what")(
        lambda node: {
            "pushed": node.repair.metrics.tombstones_pushed,
            "forgotten": node.repair.metrics.tombstones_forgotten,
        },
        "Deletions. what: pushed (to nodes that did not know of them), forgotten (they are no longer needed).",
    ),
    metric("ais_loader_repair_doubtful_names", "gauge", "objects")(
        lambda node: node.node.store.replicas.stale.count(),
        "Objects of which the node has an older copy than another node, or none; it does not serve them until it has "
        "fetched the copy.",
    ),
    metric("ais_loader_repair_doubtful_buckets", "gauge", "buckets", "what")(
        lambda node: {
            "copies": len(node.node.store.replicas.stale.buckets()),
            "gaps": len(node.node.store.replicas.stale.buckets_with_gaps()),
        },
        "Buckets being compared with other nodes. what: copies (any copy may be outdated, so none is served), gaps "
        "(existing copies are served; missing ones may have been on a drive that was given up).",
    ),
    metric("ais_loader_repair_silent_peers", "gauge", "nodes")(
        lambda node: len(node.repair.metrics.silent),
        "Nodes that did not respond when this node came back: it may serve copies older than theirs.",
    ),
    metric("ais_loader_peer_clock_offset_seconds", "gauge", "seconds")(
        lambda node: node.node.peer_clocks.widest_ms / 1000,
        "Offset of the other node's wall clock that differs most from this node's. Above max_clock_offset_s, writes "
        "that involve both nodes are refused.",
    ),
    metric("ais_loader_version_clock_ahead_seconds", "gauge", "seconds")(
        lambda node: node.node.store.clock.ahead_ms / 1000,
        "How far the versions that this node assigns are ahead of its wall clock, because the clock was set back or "
        "objects came from a node whose clock was ahead.",
    ),
    metric("ais_loader_repair_short_objects", "gauge", "objects", "bucket")(
        lambda node: node.repair.short_objects(),
        "Objects with fewer copies than their bucket requires, as of the last pass and the writes since. Each object "
        "is counted by one node: the sum over all nodes is the total.",
    ),
    metric("ais_loader_repair_short_writes_total", "counter", "objects")(
        lambda node: node.repair.metrics.short_writes,
        "Objects that a write coordinated by this node left with fewer copies than their bucket requires.",
    ),
    metric("ais_loader_damaged_copies", "gauge", "objects")(
        lambda node: node.scrub.damaged,
        "Copies on this node that are known to be damaged or missing from their drive and are not repaired yet.",
    ),
    metric("ais_loader_damaged_copies_total", "counter", "objects", "what")(
        lambda node: {"found": node.scrub.found, "mended": node.scrub.mended},
        "Damaged copies. what: found (by readers and by the scrub), mended (rewritten from another holder's copy).",
    ),
    metric("ais_loader_scrubbed_bytes_total", "counter", "bytes")(
        lambda node: node.scrub.scrubbed_bytes, "Bytes read by the scrub, which verifies checksums."
    ),
    metric("ais_loader_scrub_finished_seconds", "gauge", "seconds")(
        lambda node: node.scrub.finished_s,
        "When the scrub had last covered all drives, in seconds since 1970; 0 if it has not covered all of them yet.",
    ),
    # Erasure coding.
    metric("ais_loader_coded_bytes_total", "counter", "bytes")(
        lambda node: node.coding.bytes_coded, "Bytes of the objects that this node has taken from copies to fragments."
    ),
    metric("ais_loader_coded_objects_total", "counter", "objects")(
        lambda node: node.coding.objects_coded, "Objects that this node has taken from copies to fragments."
    ),
    metric("ais_loader_coding_groups", "gauge", "groups", "what")(
        lambda node: {"whole": node.coding.groups - node.coding.short_groups, "short": node.coding.short_groups},
        "Groups of coded objects that this node keeps, as of its last pass. what: whole, short (they lack fragments). "
        "Each group is counted by one node.",
    ),
    metric("ais_loader_coding_groups_total", "counter", "groups", "what")(
        lambda node: {"coded": node.coding.groups_coded, "dissolved": node.coding.groups_dissolved},
        "Groups that this node has coded, and has had brought back to copies.",
    ),
    metric("ais_loader_coding_rebuilt_fragments_total", "counter", "fragments")(
        lambda node: node.coding.fragments_rebuilt, "Lost, damaged or misplaced fragments that were written again."
    ),
    metric("ais_loader_coding_decoded_ranges_total", "counter", "ranges")(
        lambda node: node.resources.coded.groups.decoded,
        "Ranges of fragments that were computed from other fragments, because one was late or could not be read.",
    ),
    # Segments of small objects.
    metric("ais_loader_sparse_segments", "gauge", "segments")(
        lambda node: sum(len(drive.sparse) for drive in node.node.store.drives if drive is not None),
        "Segments of small objects that are less than half live and wait to be compacted.",
    ),
    metric("ais_loader_sparse_segments_removed_total", "counter", "segments")(
        lambda node: sum(drive.sparse.removed for drive in node.node.store.drives if drive is not None),
        "Such segments that were removed, after the rest of their objects had been moved or deleted.",
    ),
    metric("ais_loader_sparse_segments_removed_bytes_total", "counter", "bytes")(
        lambda node: sum(drive.sparse.removed_bytes for drive in node.node.store.drives if drive is not None),
        "Space on the drives that the removed segments had taken.",
    ),
    metric("ais_loader_compacted_objects_total", "counter", "objects")(
        lambda node: node.node.store.upkeep.counts.moved_objects, "Small objects that compaction has moved."
    ),
    metric("ais_loader_compacted_bytes_total", "counter", "bytes")(
        lambda node: node.node.store.upkeep.counts.moved_bytes, "Bytes of the objects that compaction has moved."
    ),
    # Files that become objects.
    metric("ais_loader_promoted_files_total", "counter", "files", "how")(
        lambda node: node.promote.files,
        "Files that this node has turned into objects, on its own drives or other nodes'. how: linked (given up; the "
        "file is now the object's file), cloned (the drive shares the file's blocks), copied_by_server (by the "
        "server of a network file system), copied (read and written).",
    ),
    metric("ais_loader_promoted_bytes_total", "counter", "bytes", "how")(
        lambda node: node.promote.bytes_by_method, "Bytes of the promoted files."
    ),
    metric("ais_loader_promote_skipped_files_total", "counter", "files")(
        lambda node: node.promote.skipped, "Files whose objects existed already."
    ),
    metric("ais_loader_promote_errors_total", "counter", "files", "kind")(
        lambda node: node.promote.errors,
        "Files that were refused, or could not be stored or given up, by the error's kind.",
    ),
    # Copies of remote objects.
    metric("ais_loader_remote_cached_bytes", "gauge", "bytes", "bucket")(
        lambda node: node.resources.remote.space.cached_bytes(),
        "Copies of remote objects on this node, of buckets with a budget (cache_bytes). After a drive was short of "
        "space, of all remote buckets.",
    ),
    metric("ais_loader_remote_evictions_total", "counter", "objects", "bucket")(
        lambda node: node.resources.remote.space.evictions(),
        "Copies of remote objects that were evicted to stay within a bucket's budget, or because a drive was short of "
        "space.",
    ),
    # Writes that are acknowledged before they are uploaded.
    metric("ais_loader_remote_pending_uploads", "gauge", "objects", "bucket")(
        lambda node: {row.bucket: row.count for row in node.resources.remote.write_back.rows(all_buckets=True)},
        'Puts and deletions of buckets with write="back" that are still to be uploaded. In a cluster, each owner of an '
        "object counts it.",
    ),
    metric("ais_loader_remote_pending_upload_bytes", "gauge", "bytes", "bucket")(
        lambda node: {row.bucket: row.bytes for row in node.resources.remote.write_back.rows(all_buckets=True)},
        "Bytes of the objects that are still to be uploaded.",
    ),
    metric("ais_loader_remote_pending_upload_age_seconds", "gauge", "seconds", "bucket")(
        lambda node: {row.bucket: row.oldest_s for row in node.resources.remote.write_back.rows(all_buckets=True)},
        "Age of the oldest put or deletion that is still to be uploaded.",
    ),
    metric("ais_loader_remote_upload_conflicts", "gauge", "objects", "bucket")(
        lambda node: {row.bucket: row.conflicts for row in node.resources.remote.write_back.rows(all_buckets=True)},
        "Objects whose conditional write is not uploaded, because others have changed the remote object.",
    ),
    metric("ais_loader_remote_requests_total", "counter", "requests", "bucket", "class")(
        lambda node: node.each_remote(lambda counts: dict(counts.requests)),
        "Requests that were sent to the remote storage of a bucket, including those that were repeated. class: get, "
        "head, list, put, delete. bucket: its name; (other) for those after the first 256.",
    ),
    metric("ais_loader_remote_bytes_total", "counter", "bytes", "bucket", "direction")(
        lambda node: node.each_remote(lambda counts: {"in": counts.bytes_in, "out": counts.bytes_out}),
        "Bytes of objects that came from the remote storage (in), or were put there (out).",
    ),
    metric("ais_loader_remote_throttled_total", "counter", "requests", "bucket")(
        lambda node: node.each_remote(lambda counts: counts.throttled),
        "Answers of the remote storage that asked for fewer requests.",
    ),
    metric("ais_loader_remote_wait_seconds_total", "counter", "seconds", "bucket")(
        lambda node: node.each_remote(lambda counts: counts.wait_s),
        "Time that readers waited for cold objects, summed over readers.",
    ),
    # Transforms.
    metric("ais_loader_etl_objects_total", "counter", "objects", "transform")(
        lambda node: node.each_transform(lambda counts: counts.objects),
        "Objects, members, and ranges that a transform has transformed, for batches and for jobs. transform: its "
        "name, for transforms that exist now (at most 256) and that this node has used.",
    ),
    metric("ais_loader_etl_failures_total", "counter", "objects", "transform", "kind")(
        lambda node: node.each_transform(lambda counts: counts.failures),
        "Objects, members, and ranges that a transform failed to transform, by the error's kind.",
    ),
    metric("ais_loader_etl_bytes_total", "counter", "bytes", "transform", "what")(
        lambda node: node.each_transform(lambda counts: {"input": counts.input_bytes, "output": counts.output_bytes}),
        "Bytes of the objects transformed. what: input, output.",
    ),
    metric("ais_loader_etl_seconds_total", "counter", "seconds", "transform")(
        lambda node: node.each_transform(lambda counts: counts.busy_s),
        "Time that objects spent in the transform, for all workers or connections together, without waiting for a "
        "turn.",
    ),
    metric("ais_loader_etl_running", "gauge", "workers", "transform")(
        lambda node: node.each_transform(lambda counts: counts.running),
        "Workers of the transform, or connections to its server, that are busy now.",
    ),
    metric("ais_loader_etl_workers", "gauge", "processes", "transform")(
        lambda node: node.each_transform(lambda counts: counts.workers),
        "Workers of the transform, including idle ones.",
    ),
    metric("ais_loader_etl_worker_restarts_total", "counter", "processes", "transform")(
        lambda node: node.each_transform(lambda counts: counts.restarts),
        "Workers that died or were ended by a limit or a timeout, and are replaced by others.",
    ),
    metric("ais_loader_etl_results_total", "counter", "entries", "transform", "how")(
        lambda node: node.each_transform(lambda counts: {"kept": counts.cache_hits, "made": counts.cache_misses}),
        "Entries of batches whose last transform is this one. how: kept (the result existed already, or was being "
        "made, for another request), made. A failure counts as made.",
    ),
    metric("ais_loader_etl_kept_result_bytes_total", "counter", "bytes", "transform")(
        lambda node: node.each_transform(lambda counts: counts.cache_hit_bytes), "Bytes of results that were kept."
    ),
    metric("ais_loader_node_info", "gauge", "1", "version", "store_uuid")(
        lambda node: {(__version__, node.node.store.store_uuid): 1},
        "Version and store UUID of this node.",
    ),
)
