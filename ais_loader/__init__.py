"""ais-loader: training data where the batch is the storage request.

`connect` returns a client for an embedded store or for storage nodes. `Client.get_batch` fetches any set of samples, in
exactly the requested order, with one request. `BatchLoader` does this ahead of a PyTorch trainer, for the samples of a
`MapDataset`. `__all__` is the entire public API. Importing the package loads neither torch nor ray.
"""

from __future__ import annotations

import sys
from dataclasses import is_dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ais_loader import errors
from ais_loader.version import __version__ as __version__

if TYPE_CHECKING:
    from ais_loader.errors import LoaderError
    from ais_loader.loading.batch_loader import BatchLoader
    from ais_loader.loading.batch_metrics import BatchMetrics
    from ais_loader.objects.bucket import Bucket
    from ais_loader.objects.client import Client, WithOpaque, connect
    from ais_loader.objects.multipart import MultipartUpload, PartInfo, UploadInfo
    from ais_loader.objects.object_file import ObjectFile, ObjectReader
    from ais_loader.plans.shuffle_plan import ShufflePlan
    from ais_loader.training.batch_sampler import BatchSampler
    from ais_loader.training.clips import Clip, Clips
    from ais_loader.training.collate import drop_placeholders
    from ais_loader.training.concat import concat
    from ais_loader.training.datasets import MapDataset
    from ais_loader.training.lines import Lines
    from ais_loader.training.megatron_tokens import MegatronTokens
    from ais_loader.training.parquet_rows import ParquetRows
    from ais_loader.training.records import Records
    from ais_loader.training.token_windows import TokenWindows
    from ais_loader.transforms.etl import Command, NodeCommand, NodeCommandInfo, Server, TransformInfo
    from ais_loader.transforms.transform_job import JobCounts, JobFailures, PlannedResult, TransformJob
    from ais_loader.transport.base import PendingUploads, RemoteUsage
    from ais_loader.values.batch import Batch
    from ais_loader.values.changes import (
        CopySummary,
        DeleteSummary,
        DownloadSummary,
        EvictSummary,
        Failure,
        Progress,
        PromoteSummary,
        PutSummary,
        RenameSummary,
        WarmSummary,
    )
    from ais_loader.values.entry import Entry, Item, MemberInfo, ObjectInfo, Status
    from ais_loader.values.entry_table import EntryTable
    from ais_loader.values.options import ClusterOptions, EmbeddedOptions
    from ais_loader.values.packed import PackedBatch
    from ais_loader.values.pipeline import Pipeline, Stage
    from ais_loader.values.promote import PromoteResult
    from ais_loader.values.requests import BatchOptions
    from ais_loader.values.summary import BucketSummary, InventoryInfo, SnapshotInfo
    from ais_loader.values.timing import BatchTiming
    from ais_loader.wire.remote import Remote

__all__ = [
    "Batch",
    "BatchLoader",
    "BatchMetrics",
    "BatchOptions",
    "BatchSampler",
    "BatchTiming",
    "Bucket",
    "BucketSummary",
    "Client",
    "Clip",
    "Clips",
    "ClusterOptions",
    "Command",
    "CopySummary",
    "DeleteSummary",
    "DownloadSummary",
    "EmbeddedOptions",
    "Entry",
    "EntryTable",
    "EvictSummary",
    "Failure",
    "InventoryInfo",
    "Item",
    "JobCounts",
    "JobFailures",
    "Lines",
    "LoaderError",
    "MapDataset",
    "MegatronTokens",
    "MemberInfo",
    "MultipartUpload",
    "NodeCommand",
    "NodeCommandInfo",
    "ObjectFile",
    "ObjectInfo",
    "ObjectReader",
    "PackedBatch",
    "ParquetRows",
    "PartInfo",
    "PendingUploads",
    "Pipeline",
    "PlannedResult",
    "Progress",
    "PromoteResult",
    "PromoteSummary",
    "PutSummary",
    "Records",
    "Remote",
    "RemoteUsage",
    "RenameSummary",
    "Server",
    "ShufflePlan",
    "SnapshotInfo",
    "Stage",
    "Status",
    "TokenWindows",
    "TransformInfo",
    "TransformJob",
    "UploadInfo",
    "WarmSummary",
    "WithOpaque",
    "concat",
    "connect",
    "drop_placeholders",
    "errors",
]

if "torch" not in sys.modules and find_spec("torch") is None:
    # `import *` takes the available names; requested individually, these say which extra installs torch.
    _TORCH = {
        "BatchLoader",
        "BatchSampler",
        "Clip",
        "Clips",
        "Lines",
        "MapDataset",
        "MegatronTokens",
        "ParquetRows",
        "Records",
    }
    __all__ = [one for one in __all__ if one not in _TORCH | {"TokenWindows", "concat", "drop_placeholders"}]

_HOMES = {
    "Batch": "ais_loader.values.batch",
    "BatchLoader": "ais_loader.loading.batch_loader",
    "BatchMetrics": "ais_loader.loading.batch_metrics",
    "BatchOptions": "ais_loader.values.requests",
    "BatchSampler": "ais_loader.training.batch_sampler",
    "BatchTiming": "ais_loader.values.timing",
    "Bucket": "ais_loader.objects.bucket",
    "BucketSummary": "ais_loader.values.summary",
    "Client": "ais_loader.objects.client",
    "Clip": "ais_loader.training.clips",
    "Clips": "ais_loader.training.clips",
    "ClusterOptions": "ais_loader.values.options",
    "Command": "ais_loader.transforms.etl",
    "CopySummary": "ais_loader.values.changes",
    "DeleteSummary": "ais_loader.values.changes",
    "DownloadSummary": "ais_loader.values.changes",
    "EmbeddedOptions": "ais_loader.values.options",
    "Entry": "ais_loader.values.entry",
    "EntryTable": "ais_loader.values.entry_table",
    "Failure": "ais_loader.values.changes",
    "InventoryInfo": "ais_loader.values.summary",
    "Item": "ais_loader.values.entry",
    "JobCounts": "ais_loader.transforms.transform_job",
    "JobFailures": "ais_loader.transforms.transform_job",
    "Lines": "ais_loader.training.lines",
    "LoaderError": "ais_loader.errors",
    "MapDataset": "ais_loader.training.datasets",
    "MegatronTokens": "ais_loader.training.megatron_tokens",
    "MemberInfo": "ais_loader.values.entry",
    "MultipartUpload": "ais_loader.objects.multipart",
    "NodeCommand": "ais_loader.transforms.etl",
    "NodeCommandInfo": "ais_loader.transforms.etl",
    "ObjectFile": "ais_loader.objects.object_file",
    "ObjectInfo": "ais_loader.values.entry",
    "ObjectReader": "ais_loader.objects.object_file",
    "PackedBatch": "ais_loader.values.packed",
    "ParquetRows": "ais_loader.training.parquet_rows",
    "PartInfo": "ais_loader.objects.multipart",
    "Pipeline": "ais_loader.values.pipeline",
    "PlannedResult": "ais_loader.transforms.transform_job",
    "Progress": "ais_loader.values.changes",
    "PromoteResult": "ais_loader.values.promote",
    "PromoteSummary": "ais_loader.values.changes",
    "PutSummary": "ais_loader.values.changes",
    "EvictSummary": "ais_loader.values.changes",
    "Records": "ais_loader.training.records",
    "Remote": "ais_loader.wire.remote",
    "PendingUploads": "ais_loader.transport.base",
    "RemoteUsage": "ais_loader.transport.base",
    "WarmSummary": "ais_loader.values.changes",
    "RenameSummary": "ais_loader.values.changes",
    "Server": "ais_loader.transforms.etl",
    "ShufflePlan": "ais_loader.plans.shuffle_plan",
    "SnapshotInfo": "ais_loader.values.summary",
    "Stage": "ais_loader.values.pipeline",
    "Status": "ais_loader.values.entry",
    "TokenWindows": "ais_loader.training.token_windows",
    "TransformInfo": "ais_loader.transforms.etl",
    "TransformJob": "ais_loader.transforms.transform_job",
    "UploadInfo": "ais_loader.objects.multipart",
    "WithOpaque": "ais_loader.objects.client",
    "concat": "ais_loader.training.concat",
    "connect": "ais_loader.objects.client",
    "drop_placeholders": "ais_loader.training.collate",
}
"""Maps each lazily imported name to its module."""


def __getattr__(name: str) -> Any:
    # Datasets need torch, which takes seconds to import and may not be installed. numpy and gRPC's messages take half a
    # second, for which `ais-loader --help` would have to wait.
    if name in _HOMES:
        import importlib

        from ais_loader.transport.fork_safety import GATE

        with GATE.call():  # a forked child would wait forever for another thread's import
            value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
            if isinstance(value, type) and is_dataclass(value):
                from ais_loader.wire.field_help import describe_fields

                describe_fields(value)
        return value
    if name == "decoders":
        import importlib

        return importlib.import_module("ais_loader.decoders")
    raise AttributeError(f"module 'ais_loader' has no attribute {name!r}", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, "decoders"})
