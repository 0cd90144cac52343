"""Batch metrics: the records of a rank's batches for Prometheus, so that the ranks of a run can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ais_loader.extras import needs

if TYPE_CHECKING:
    from ais_loader.loading.records import BatchRecord

STAGES = (
    ("draw", "draw_s"),
    ("queue", "queue_s"),
    ("receive", "wire_s"),
    ("decode", "decode_s"),
    ("collate", "collate_s"),
    ("transfer", "transfer_s"),
    ("wait", "wait_s"),
    ("node queue", "node_queue_s"),
    ("drive", "drive_s"),
    ("peer", "peer_s"),
    ("cloud", "cloud_s"),
    ("throttle", "throttle_s"),
    ("processor", "starved_s"),
)
"""Values of the label `stage`, and the fields of a BatchRecord."""


class BatchMetrics:
    """A function for `on_batch` of a BatchLoader, which counts what it is called with.

        prometheus_client.start_http_server(9500 + rank)
        loader = BatchLoader(dataset, plan, on_batch=BatchMetrics())

    The metrics have the label `rank`, and a batch that the trainer waited for has its request id as exemplar. Make one
    for each registry and process.

    Args:
        rank: Value of the label. By default, the rank of torch.distributed, or RANK.
        registry: A `prometheus_client.CollectorRegistry`. By default, the global one.
    """

    def __init__(self, rank: int | None = None, registry: Any = None) -> None:
        with needs("prometheus_client", "BatchMetrics"):
            import prometheus_client as prometheus

        from ais_loader.training.plan_position import process_place

        label = str(process_place()[0] if rank is None else rank)
        registry = prometheus.REGISTRY if registry is None else registry
        seconds = prometheus.Counter(
            "ais_loader_trainer_seconds", "Time of a rank's batches, by stage.", ["rank", "stage"], registry=registry
        )
        self._stages = [(field, seconds.labels(label, stage)) for stage, field in STAGES]
        self._bytes = prometheus.Counter(
            "ais_loader_trainer_bytes", "Payload of a rank's batches.", ["rank"], registry=registry
        ).labels(label)
        self._waits = prometheus.Histogram(
            "ais_loader_trainer_wait_seconds",
            "Time that the trainer waited for each batch.",
            ["rank"],
            registry=registry,
        ).labels(label)

    def __call__(self, record: BatchRecord) -> None:
        for field, counter in self._stages:
            counter.inc(getattr(record, field))
        self._bytes.inc(record.payload_bytes)
        first = record.request_id.partition(",")[0]
        self._waits.observe(record.wait_s, {"request_id": first} if first else None)
