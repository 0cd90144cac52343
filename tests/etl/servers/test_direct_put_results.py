"""Direct put into a real store: what a server puts is an object as any other, whole or not there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ais_loader.errors import NodeUnavailable, ObjectNotFound, TransformFailed
from storage_node.cluster.replication.put_groups import PutGroups
from storage_node.etl.jobs.job_store import OwnStore
from storage_node.etl.run.direct_put import direct_put_writer
from storage_node.etl.servers.stage import ServerStage
from storage_node.etl.transform_http import PutTarget, TransformHttp
from storage_node.etl.values import Content, Spool
from storage_node.store.store import Store
from tests.etl.servers.server_kit import ORIGIN, WS, Streaming, new_server, open_stage, run

pytestmark = pytest.mark.slow


@contextlib.asynccontextmanager
async def taking(folder: Path, address: str) -> AsyncIterator[tuple[ServerStage, TransformHttp, OwnStore, str]]:
    store = Store.open([folder / "store"], mode="a")
    own = OwnStore(store, asyncio.to_thread, Spool(folder / "spool"))
    await asyncio.to_thread(store.create_bucket, "to")
    putter = PutGroups(own.put_small)
    try:
        async with open_stage(address, WS) as (stage, side):
            side.put_result = direct_put_writer(own, putter, Spool(folder / "spool"))
            yield stage, side, own, await side.start()
    finally:
        await putter.close()
        store.close()


def test_results_are_stored_with_their_stamp_and_the_job_learns_their_versions(tmp_path: Path) -> None:
    async def main(address: str) -> None:
        async with taking(tmp_path, address) as (stage, side, own, url):
            inputs = {f"n{number}": b"%d abc" % number * (1 if number else 500_000) for number in range(20)}
            metadata = {"metadata": {"ais.etl-source": "b/x", "by": "ä"}}

            def target(name: str) -> PutTarget:
                return side.target(url, "to", name, max_bytes=10 << 20, lifetime_s=60, extra=metadata)

            put = await asyncio.gather(
                *(stage.run_to(ORIGIN, Content.of(data), "", target(name)) for name, data in inputs.items())
            )
            for (name, data), result, there in zip(
                inputs.items(), put, await own.heads("to", list(inputs)), strict=True
            ):
                assert not isinstance(there, Exception), there
                assert (there.version, there.size_bytes, there.checksum) == (
                    result.version,
                    result.size_bytes,
                    result.checksum,
                )
                assert there.metadata == metadata["metadata"]
                (one,) = await own.read("to", [name])
                assert not isinstance(one, Exception), one
                assert b"".join(one.content.chunks()) == data.upper()
                one.content.close()

    with new_server("fastapi", Streaming).running() as address:
        run(main(address))


def test_nothing_is_stored_of_a_result_that_fails(tmp_path: Path) -> None:
    async def main(address: str) -> None:
        async with taking(tmp_path, address) as (stage, side, own, url):

            def target(bucket: str, name: str, **extra: object) -> PutTarget:
                return side.target(url, bucket, name, max_bytes=100, lifetime_s=60, extra=extra)

            with pytest.raises(NodeUnavailable, match="larger than its 100 bytes"):
                await stage.run_to(ORIGIN, Content.of(b"x" * 101), "", target("to", "large"))
            with pytest.raises(TransformFailed, match="ValueError: no"):
                await stage.run_to(ORIGIN, Content.of(b"x"), '{"fail": "no"}', target("to", "failed"))
            with pytest.raises(NodeUnavailable, match="bucket-not-found"):
                await stage.run_to(ORIGIN, Content.of(b"x"), "", target("none", "x"))
            with pytest.raises(NodeUnavailable, match="need texts by name, got str"):
                await stage.run_to(ORIGIN, Content.of(b"x"), "", target("to", "odd", metadata="text"))
            for there in await own.heads("to", ["large", "failed", "x", "odd"]):
                assert isinstance(there, ObjectNotFound)

    with new_server("fastapi").running() as address:
        run(main(address))
