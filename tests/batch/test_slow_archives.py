"""Archives that take long to open: whoever asks for their members waits, and nobody else does."""

from __future__ import annotations

from pathlib import Path

import grpc

from ais_loader import ClusterOptions, Entry, connect
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2_grpc
from ais_loader.wire.reserved import TENANT_KEY
from tests.node.node_kit import CALL_TIMEOUT_S, RawSession, batch_of, bucket_of, serving
from tests.tar_kit import packed_tar

SERVED_S = 60.0
HOSTILE = ((TENANT_KEY, b"hostile"),)


def test_archives_that_take_long_hold_up_nobody_who_does_not_ask_for_them(tmp_path: Path) -> None:
    with serving(tmp_path, read_threads=2, archive_threads=3) as node:
        with bucket_of(node) as bucket:
            bucket.put("slow.tar", packed_tar({"a": b"slow"}))
            bucket.put("other.tar", packed_tar({"a": b"other"}))
            bucket.put("plain", b"plain" * 100_000)
        assert node.batches is not None
        store = node.batches.node.store
        drive, record = store.locate("b", "slow.tar")
        with RawSession(node.url) as hostile, grpc.insecure_channel(node.url.removeprefix("grpc://")) as channel:
            objects = ais_objects_pb2_grpc.ObjectsStub(channel)
            with drive.shards._alone(record.path):  # as if somebody were indexing it, for as long as that takes
                for batch_id in range(8):
                    hostile.send(batch_id, batch_of(["slow.tar"], member=["a"], tenant="hostile"))
                get = objects.Get(pb.GetRequest(bucket="b", name="slow.tar", member="a"), metadata=HOSTILE)
                members = objects.ListMembers.future(
                    pb.ListMembersRequest(bucket="b", name="slow.tar"), metadata=HOSTILE, timeout=CALL_TIMEOUT_S
                )
                eventually(lambda: node.batches is not None and node.batches.node.opening.waiting >= 8)
                with connect(node.url, options=ClusterOptions(tenant="modest", retry_s=SERVED_S)) as client:
                    bucket = client.bucket("b")
                    assert bucket.get("plain") == b"plain" * 100_000
                    assert client.get_batch([Entry("b", "other.tar", "a")] * 2).tobytes() == [b"other"] * 2
                    assert [one.name for one in bucket.members("other.tar")] == ["a"]
                    bucket.put("new", b"x" * 2_000_000)
            ended = 0
            while ended < 8:
                response = hostile.receive()
                assert not response.HasField("reject")
                ended += response.HasField("end")
            assert b"".join(message.data for message in get) == b"slow"
            assert list(members.result().name) == ["a"]
        eventually(lambda: node.batches is not None and node.batches.node.opening.in_use == 0)
