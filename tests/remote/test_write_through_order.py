"""Writes of one name that are written through at the same time: both places have the last one in the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

from ais_loader.wire.generated import ais_contents_pb2 as contents
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.remote import Remote
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.remote.bucket_writes import BucketWrites
from storage_node.services.contents import ContentsService
from tests.remote.test_upload_races import within

BUCKET = RemoteBucket("through", b"u" * 16, Remote("s3://bucket"))
_TURNS = 50
"""More turns of the event loop than any of these writes needs."""


async def _turns(count: int = _TURNS) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Places:
    """A remote storage and a store in memory; `slow` writes of the first are those that take long."""

    def __init__(self, *slow: bytes) -> None:
        self.remote: dict[str, bytes] = {}
        self.stored: dict[str, bytes] = {}
        self._slow = slow
        self.is_storing, self.may_store = asyncio.Event(), asyncio.Event()
        host = SimpleNamespace(put_group=self._put_group, store_object=self._store)
        buckets = SimpleNamespace(find=lambda _: BUCKET)
        writes = SimpleNamespace(put=self._put, delete=self._delete)
        tier = SimpleNamespace(host=host, buckets=buckets, write_back=None, writes=writes)
        self.tier = cast(Any, tier)
        self.writes = tier.bucket_writes = BucketWrites(self.tier, cast(Any, writes))

    async def _put(self, bucket: RemoteBucket, header: pb.PutHeader, chunks: AsyncIterator[bytes], _: int) -> Any:
        data = b"".join([chunk async for chunk in chunks])
        if data in self._slow:
            await _turns()
        self.remote[header.name] = data
        return {}

    async def _delete(self, bucket: RemoteBucket, names: Sequence[str]) -> list[None]:
        await asyncio.sleep(0)
        for name in names:
            self.remote.pop(name, None)
        return [None for _ in names]

    async def _put_group(self, objects: Sequence[pb.SmallObject]) -> list[pb.ObjectInfo]:
        self.stored.update((small.name, small.data) for small in objects)
        return [pb.ObjectInfo(name=small.name) for small in objects]

    async def _store(self, header: pb.PutHeader, chunks: AsyncIterator[bytes]) -> pb.ObjectInfo:
        self.is_storing.set()
        await self.may_store.wait()
        self.stored[header.name] = b"".join([chunk async for chunk in chunks])
        return pb.ObjectInfo(name=header.name)

    def delete_many(self, bucket: str, names: Sequence[str], condition: object) -> list[None]:
        for name in names:
            self.stored.pop(name, None)
        return [None for _ in names]


def test_the_last_of_several_objects_with_one_name_wins_in_the_remote_storage() -> None:
    async def scenario() -> None:
        places = Places(b"1", b"3")
        put = [("a", b"1"), ("b", b"2"), ("a", b"3"), ("a", b"4")]
        objects = [pb.SmallObject(bucket=BUCKET.name, name=name, data=data) for name, data in put]
        infos = await places.writes.put_group(objects)
        assert [info.name for info in infos if isinstance(info, pb.ObjectInfo)] == [name for name, _ in put]
        assert places.remote == places.stored == {"a": b"4", "b": b"2"}

    within(scenario())


def test_many_names_are_deleted_after_a_put_of_one_of_them_that_is_being_stored() -> None:
    async def scenario() -> None:
        places = Places()

        async def read(function: Any, *arguments: Any) -> Any:
            return function(*arguments)

        counter = SimpleNamespace(operations=None)
        node = SimpleNamespace(store=places, membership=None, caller=None, read=read, metrics=counter)
        cluster = SimpleNamespace(replica_set=lambda _: None)
        service = ContentsService(cast(Any, node), cast(Any, cluster), places.tier, cast(Any, None))
        service._deleted = lambda results: results  # type: ignore[assignment, method-assign, return-value]

        async def chunks() -> Any:
            yield b"1"

        header = pb.PutHeader(bucket=BUCKET.name, name="a", size_bytes=1)
        putting = asyncio.ensure_future(places.writes.put(BUCKET, header, chunks))
        await places.is_storing.wait()
        request = contents.DeleteManyRequest(bucket=BUCKET.name, name=["b", "a"])
        deleting = asyncio.ensure_future(service.DeleteMany(request, cast(Any, None)))
        await _turns()
        places.may_store.set()
        await asyncio.gather(putting, deleting)
        assert places.remote == places.stored == {}

    within(scenario())
