"""ETL of one process, a node or an embedded store: its transforms, its result cache, and its runs of batches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from storage_node.etl.registry.registry import Registry
from storage_node.etl.run.node_transforms import NodeTransforms
from storage_node.etl.run.result_cache import ResultCache, args_of, result_key
from storage_node.etl.run.run_state import RunSettings
from storage_node.etl.run.transformed_run import TransformedRun, check_calls, inputs_of
from storage_node.etl.transform_http import TransformHttp
from storage_node.etl.values import Spool
from storage_node.etl.worker.environments import Environments
from storage_node.etl.worker.stage import workers_of
from storage_node.etl.worker.stage_context import StageContext
from storage_node.limits.memory_budget import MemoryBudget
from storage_node.settings.config import ServerConfig
from storage_node.store.read.batch import StoreBatch
from storage_node.store.store import Store

SPOOL = "spool"
"""Name of the spool's folder on a drive."""
_THREADS = 4
_AHEAD_PER_WORKER = 2


class LocalEtl:
    """ETL of one process. Belongs to the event loop that stages run on. Must be closed.

    Args:
        drive: Drive that holds the spool.
        read: Runs a function that reads from drives, outside the event loop.
        environments: Environments of the node, see `StageContext`.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        config: ServerConfig,
        drive: Path,
        read: Callable[..., Awaitable[Any]],
        transform_http: TransformHttp,
        environments: Environments | None = None,
    ) -> None:
        self._store, self.registry, self._read = store, registry, read
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ais-loader-etl")
        self.spool, self.transform_http = Spool(drive / SPOOL), transform_http
        context = StageContext(config, self.spool, self._on_thread, transform_http, environments)
        self.transforms = NodeTransforms(registry.find, context)
        self.cache = ResultCache(config.etl.cache_bytes)
        self.memory = MemoryBudget(config.etl.memory_bytes)
        """Budget for inputs and outputs that are being processed."""
        self.spooled = MemoryBudget(config.etl.spool_bytes)
        """Budget for those that are files."""
        self._settings = RunSettings(
            self.transforms,
            self.cache,
            self.memory,
            self.spooled,
            self.spool,
            read,
            _AHEAD_PER_WORKER * workers_of(config.etl),
        )

    async def _on_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def run(self, request: batch_pb.BatchRequest) -> TransformedRun:
        """Return the run of a batch that requests transforms, looked up in the catalog. Raises InvalidRequest."""
        check_calls(request)
        batch = await self._read(StoreBatch.of_files, self._store, inputs_of(request))
        return TransformedRun(self._settings, request, batch)

    def kept(self, bucket: str, name: str, version: str, call: batch_pb.TransformCall) -> tuple[memoryview, int] | None:
        """Return a cached result of a whole object, in memory, and its checksum. May be called from any thread."""
        try:
            versions = self.transforms.versions(call)
        except LoaderError:
            return None
        content = self.cache.touched(result_key(bucket, name, version, "", None, versions, args_of(call)))
        if content is None or (data := content.data) is None:  # a file, or closed at this moment
            return None
        self.transforms.kept_result(call, len(data))
        return data, content.checksum

    async def close(self) -> None:
        await self.transforms.close()
        self.spool.close()
        self.cache.clear()
        self._threads.shutdown(wait=False)
