"""Jobs over a store of this process, with a transform whose runs are counted, and told what to do."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ais_loader.errors import LoaderError, TransformNotFound
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.etl.jobs.job_store import OwnStore
from storage_node.etl.jobs.manager import JobManager
from storage_node.etl.registry.registry import Registry
from storage_node.etl.values import Content, Origin, PutResult, ResultDestination, Spool
from storage_node.store.read.object_reader import open_object
from storage_node.store.store import Store
from tests.node.loop_kit import settle

T = TypeVar("T")


class Upper:
    """The transform "upper"."""

    def __init__(self) -> None:
        self.version = uuid.uuid4().bytes
        self.runs: Counter[tuple[str, str]] = Counter()
        self.answer: Callable[[Origin, bytes], bytes] = lambda origin, data: data.upper()

    def versions(self, call: batch_pb.TransformCall) -> tuple[bytes, ...]:
        for stage in call.stage:
            if stage.name != "upper":
                raise TransformNotFound(f"there is no transform {stage.name!r}")
        return (self.version,) * len(call.stage)

    async def run(
        self, call: batch_pb.TransformCall, origin: Origin, content: Content, versions: Sequence[bytes] = ()
    ) -> Content:
        self.runs[origin.name, origin.version] += 1
        try:
            await settle()
            return Content.of(self.answer(origin, b"".join(content.chunks())))
        finally:
            content.close()

    def puts(self, call: batch_pb.TransformCall) -> bool:
        return False

    async def run_to(
        self,
        call: batch_pb.TransformCall,
        origin: Origin,
        content: Content,
        destination: ResultDestination,
        versions: Sequence[bytes] = (),
    ) -> PutResult:
        raise NotImplementedError

    def burst(self, call: batch_pb.TransformCall) -> int:
        return 7

    async def run_many(
        self, call: batch_pb.TransformCall, inputs: Sequence[tuple[Origin, Content]], versions: Sequence[bytes] = ()
    ) -> list[Content | LoaderError]:
        made: list[Content | LoaderError] = []
        for origin, content in inputs:
            try:
                made.append(await self.run(call, origin, content, versions))
            except LoaderError as error:
                made.append(error)
        return made


class OneStore:
    """A store with the buckets "a" and "b"."""

    def __init__(self, folder: Path) -> None:
        self.store = Store.open([folder], mode="a")
        for bucket in ("a", "b"):
            self.store.create_bucket(bucket)
        self.upper = Upper()
        self.spool = Spool(folder / "spool")

    def put(self, bucket: str, objects: dict[str, bytes]) -> None:
        done = self.store.commit_many([self.store.stage(bucket, name, [data], {}) for name, data in objects.items()])
        assert not any(isinstance(one, LoaderError) for one in done)

    def contents(self, bucket: str) -> dict[str, bytes]:
        return {name: b"".join(open_object(self.store, bucket, name)) for name, _ in self.store.objects(bucket)}

    def metadata(self, bucket: str, name: str) -> dict[str, str]:
        return dict(self.store.head(bucket, name).metadata)

    @contextlib.asynccontextmanager
    async def manager(self) -> AsyncIterator[JobManager]:
        async def work(function: Callable[..., T], /, *arguments: Any) -> T:
            return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)

        own, registry = OwnStore(self.store, work, self.spool), Registry(self.store, work)
        manager = JobManager(b"n" * 16, own, registry, self.upper, workers=2)
        task = asyncio.create_task(manager.run())
        try:
            yield manager
        finally:
            task.cancel()
            await asyncio.wait([task])

    def run(self, during: Callable[[JobManager], Awaitable[None]] | None = None, **fields: Any) -> pb.JobInfo:
        """Run a job to its end."""

        async def go() -> pb.JobInfo:
            async with asyncio.timeout(180), self.manager() as manager:
                started = await manager.start(pb.StartJobRequest(job=job_of(**fields)))
                if during is not None:
                    await during(manager)
                return await ended(manager, started.job.name)

        return asyncio.run(go())


def job_of(**fields: Any) -> pb.TransformJob:
    defaults: dict[str, Any] = {"bucket": "a", "to_bucket": "b", "continue_on_error": True}
    defaults["stage"] = [pb.JobStage(name="upper")]
    return pb.TransformJob(**{**defaults, **fields})


async def ended(manager: JobManager, name: str) -> pb.JobInfo:
    last = pb.JobInfo()
    async for info in manager.watch(pb.WatchJobRequest(name=name, wait=True)):
        last = info
    return last
