"""Remote locations of one process: opened on first use, with shared limits and counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ais_loader.errors import RemoteLimitReached
from ais_loader.wire.gather.hedging import HedgeBudget
from ais_loader.wire.generated import ais_remote_pb2 as pb
from ais_loader.wire.remote import Remote
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.call_slots import current_tenant
from storage_node.remote.drivers.gate import Gate
from storage_node.remote.location.backend import Backend
from storage_node.remote.location.host_limiter import HostLimiters
from storage_node.remote.location.usage import Usage, UsageCounts
from storage_node.settings.declarations import RemoteSettings


class Backends:
    """Belongs to one event loop. `file_roots`: see `Backend`."""

    def __init__(self, settings: RemoteSettings, *, file_roots: tuple[Path, ...] | None) -> None:
        self._settings = settings
        self._file_roots = file_roots
        self._usage = Usage()
        self._limiters = HostLimiters(settings.max_requests, settings.prefetch_requests)
        self._budget = HedgeBudget(settings.hedge_budget)
        self._gate = Gate()
        self._open: dict[tuple[bytes, Remote], Backend] = {}

    def of(self, bucket: RemoteBucket) -> Backend:
        """Return the remote location of a bucket. Raises RemoteDenied, InvalidRequest."""
        remote = bucket.remote
        key = bucket.uuid, replace(remote, inventory="") if remote.inventory else remote
        found = self._open.get(key)
        if found is None:
            usage = self._usage.of_bucket(bucket.uuid.hex())
            found = self._open[key] = Backend(
                remote,
                self._settings,
                self._limiters,
                usage,
                budget=self._budget,
                file_roots=self._file_roots,
                gate=self._gate,
            )
        return found

    def waiting(self, bucket: RemoteBucket) -> Callable[[], None]:
        """Return a function that counts the time since now, in which a reader has waited for a cold object."""
        uuid, tenant, began_s = bucket.uuid.hex(), current_tenant.get(), time.monotonic()
        return lambda: self._usage.note(uuid, tenant, "wait_s", time.monotonic() - began_s)

    def require_budget(self, bucket: RemoteBucket) -> None:
        """Require that a bucket has not received its limit for this day. Raises RemoteLimitReached."""
        most = bucket.remote.max_bytes_per_day
        if most and (received := self._usage.bytes_today(bucket.uuid.hex())) >= most:
            raise RemoteLimitReached(
                f"{bucket.remote.url}: not fetched: bucket {bucket.name!r} has received {received:,} bytes today, and "
                f"its limit is max_bytes_per_day={most}; raise it with `ais-loader bucket set {bucket.name} "
                "max_bytes_per_day=SIZE`, or wait until midnight UTC"
            )

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

    @property
    def throttled(self) -> int:
        """How many answers have asked for fewer requests."""
        return self._usage.throttled

    @property
    def are_backing_off(self) -> bool:
        """Whether requests wait now because a host has asked for fewer."""
        return self._limiters.are_backing_off

    def usage_by_bucket(self) -> Mapping[str, UsageCounts]:
        """Return the sums of the counters by the uuid of the bucket. Thread-safe."""
        return self._usage.by_bucket()

    async def close(self) -> None:
        backends, self._open = list(self._open.values()), {}
        await asyncio.gather(*(backend.close() for backend in backends), return_exceptions=True)
        self._gate.close()
