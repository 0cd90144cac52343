"""ETL of an embedded store: the code of a node, on an event loop in a thread of its own in the client's process.

It starts at the first use. No permission is needed for code and commands, because the process could run them itself. A
process that reads beside a writer can pass entries through existing transforms; only the writer can create transforms
and jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from ais_loader.errors import Closed, StoreReadOnly
from ais_loader.wire.frame import Frame
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.context.membership import Membership
from storage_node.context.remote_buckets import RemoteBuckets
from storage_node.etl.jobs.job_store import OwnStore
from storage_node.etl.jobs.manager import JobManager
from storage_node.etl.jobs.remote_store import RemoteStore
from storage_node.etl.local_etl import LocalEtl
from storage_node.etl.registry.calls import TransformCalls, etl_calls
from storage_node.etl.registry.registry import Registry
from storage_node.etl.run.transformed_run import TransformedRun
from storage_node.etl.transform_http import TransformHttp
from storage_node.limits.loop_thread import STOP_S, LoopThread
from storage_node.limits.tasks import cancel_others, keep_going, settled
from storage_node.remote.embedded import EmbeddedRemote
from storage_node.settings.config import ServerConfig
from storage_node.store.store import Store

_READERS = 2
T = TypeVar("T")


class EmbeddedEtl:
    """ETL of one store in one process. Used from any thread. Must not be used in a forked child."""

    def __init__(self, store: Store, remote: Callable[[], EmbeddedRemote]) -> None:
        """`remote`: returns the remote tier of the store."""
        self._store, self._remote = store, remote
        self._thread = LoopThread("ais-loader-etl", self._set_up, self._end, readers=_READERS)

    async def _set_up(self, thread: LoopThread) -> None:
        store, read = self._store, thread.read
        registry = Registry(store, read)
        config = ServerConfig(etl_code=True, etl_servers=("*",), etl_sandbox="off")
        drive = next(drive.root for drive in store.drives if drive is not None)
        self._etl = LocalEtl(store, registry, config, drive, read, TransformHttp())
        self._buckets = RemoteBuckets(store, Membership(b""))
        here = OwnStore(store, read, self._etl.spool)
        own = RemoteStore(here, self._buckets, lambda: self._remote().tier, self._on_tier)
        self._jobs = JobManager(b"", own, registry, self._etl.transforms)
        self._calls = etl_calls(TransformCalls(self._etl, b""), self._jobs)
        self._working = (
            asyncio.ensure_future(keep_going("passing buckets through transforms", self._jobs.run))
            if store.writable
            else None
        )

    async def _on_tier(self, work: Coroutine[Any, Any, T]) -> T:
        running = self._remote().begin(work)
        return await settled(asyncio.wrap_future(running), running.cancel)

    # -- calls

    def call(self, method: str, request: Any) -> Any:
        """Call a method of the Etl service. Raises LoaderError."""
        if not self._store.writable and method not in ("ListTransforms", "GetTransform", "ListJobs", "ListJobFailures"):
            raise StoreReadOnly("the store is open for reading only: whoever writes it makes transforms, and runs jobs")
        return self._thread.run(self._calls[method](request))

    def watch(self, name: str) -> Iterator[pb.JobInfo]:
        """Yield the state of a job until it has ended. Raises JobNotFound."""
        yield from self._thread.each(self._jobs.watch(pb.WatchJobRequest(name=name, wait=True)))

    def kept(self, request: batch_pb.BatchRequest) -> memoryview | None:
        """Return a cached result of a whole object, found in the caller's thread; None if `frames` has to be used."""
        store, remote = self._store, self._buckets.find(request.bucket[0])
        if remote is not None and remote.validates:
            return None
        bucket = store.record.current.buckets.get(request.bucket[0])
        found = store.drive_set.cached(bucket.uuid_bytes, request.name[0]) if bucket is not None else None
        if self._thread.is_closed or found is None or not found[1].size_bytes:
            return None
        kept = self._etl.kept(request.bucket[0], request.name[0], str(found[1].version), request.transform[0])
        return None if kept is None else kept[0]

    def frames(self, request: batch_pb.BatchRequest) -> Iterator[Frame]:
        """Yield the frames of a batch that requests transforms. A switch to the event loop and back costs more than a
        small frame."""
        run, frame = self._thread.run(self._start(request))
        try:
            while frame is not None:
                yield frame
                if run.exhausted or (request.fail_fast and frame.status.any()):
                    return
                frame = self._thread.run(_next_of(run))
        finally:
            if not run.exhausted:
                with contextlib.suppress(Closed):
                    self._thread.run(run.close())

    async def _start(self, request: batch_pb.BatchRequest) -> tuple[TransformedRun, Frame | None]:
        run = await self._etl.run(request)
        try:
            return run, await _next_of(run)
        except BaseException:
            await run.close()
            raise

    def close(self) -> None:
        """Stop all workers; return when none is left. May be called again."""
        self._thread.close()

    async def _end(self) -> None:
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait([self._working])
        await cancel_others(STOP_S)  # batches that were not read to their end; each returns its worker
        await self._etl.close()


async def _next_of(run: TransformedRun) -> Frame | None:
    """Return the next frame of a run. The run is closed with its last frame."""
    frame = await run.next()
    if run.exhausted:
        await run.close()
    return frame
