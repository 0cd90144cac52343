"""Remote locations of one process: opened on first use, with shared limits and counters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from ais_loader.wire.gather.hedging import HedgeBudget
from ais_loader.wire.generated import ais_remote_pb2 as pb
from ais_loader.wire.remote import Remote
from storage_node.remote.backend import Backend
from storage_node.remote.host_limiter import HostLimiters
from storage_node.remote.usage import Usage
from storage_node.settings.declarations import RemoteSettings


class Backends:
    """Belongs to one event loop. `file_roots`: see `Backend`."""

    def __init__(self, settings: RemoteSettings, *, file_roots: tuple[Path, ...] | None) -> None:
        self._settings = settings
        self._file_roots = file_roots
        self.large_object_bytes = settings.large_object_bytes
        self._usage = Usage()
        self._limiters = HostLimiters(settings.max_requests, settings.prefetch_requests)
        self._budget = HedgeBudget(settings.hedge_budget)
        self._open: dict[tuple[bytes, Remote], Backend] = {}

    def of(self, bucket_uuid: bytes, remote: Remote) -> Backend:
        """Return the remote location of a bucket. Raises RemoteDenied, InvalidRequest."""
        key = bucket_uuid, remote
        found = self._open.get(key)
        if found is None:
            usage = self._usage.of_bucket(bucket_uuid.hex())
            found = self._open[key] = Backend(
                remote, self._settings, self._limiters, usage, budget=self._budget, file_roots=self._file_roots
            )
        return found

    def waited(self, bucket_uuid: bytes, tenant: str, wait_s: float) -> None:
        """Count the time that a reader has waited for a cold object."""
        self._usage.note(bucket_uuid.hex(), tenant, "wait_s", wait_s)

    def usage(self, names: Mapping[str, str]) -> pb.RemoteUsageResponse:
        """Return the counters. `names`: names of buckets by uuid; a deleted bucket is shown by its uuid."""
        return pb.RemoteUsageResponse(
            row=[
                pb.RemoteUsageRow(
                    bucket=names.get(uuid, uuid),
                    tenant=tenant,
                    requests={str(kind): count for kind, count in counts.requests.items()},
                    bytes_in=counts.bytes_in,
                    bytes_out=counts.bytes_out,
                    throttled=counts.throttled,
                    retried=counts.retried,
                    hedged=counts.hedged,
                    errors=counts.errors,
                    wait_s=counts.wait_s,
                )
                for (uuid, tenant), counts in sorted(self._usage.snapshot().items())
            ]
        )

    async def close(self) -> None:
        backends, self._open = list(self._open.values()), {}
        await asyncio.gather(*(backend.close() for backend in backends), return_exceptions=True)
