"""Gateways over a cluster of three nodes with two copies of each object, while nodes are killed."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from ais_loader import Client
from ais_loader.integrations.gateway.clients import Clients
from ais_loader.testing import eventually, seeded_bytes, throwaway_folder
from tests.cluster_processes import ClusterProcesses
from tests.gateway.command_kit import s3_at
from tests.gateway.conftest import ACCOUNT
from tests.gateway.gateway_thread import GatewayThread

pytestmark = pytest.mark.slow
BUCKET = "b"
PART = 5 << 20


class Served:
    """A cluster and two gateways over it."""

    def __init__(self, cluster: ClusterProcesses, client: Client, urls: list[str]) -> None:
        self.cluster, self.client = cluster, client
        # As clients do, they repeat what is refused while a node is away or has just come back.
        keys = ACCOUNT.access_key, ACCOUNT.secret_key
        self.one, self.other = (s3_at(url, *keys, attempts=10) for url in urls)


@pytest.fixture(scope="module")
def running() -> Iterator[Served]:
    keys = {ACCOUNT.access_key: ACCOUNT}
    with contextlib.ExitStack() as held:
        folder = held.enter_context(throwaway_folder())
        cluster = held.enter_context(ClusterProcesses(folder, 3, buckets={BUCKET: 2}, min_copies=2))
        clients = [Clients(cluster.url, [ACCOUNT]) for _ in range(2)]
        for one in clients:
            held.callback(one.close)
        urls = [held.enter_context(GatewayThread(one, keys)).url for one in clients]
        yield Served(cluster, clients[0].of(ACCOUNT), urls)


@pytest.fixture
def served(running: Served) -> Iterator[Served]:
    running.cluster.start()
    eventually(lambda: succeeds(running.one.list_objects_v2, Bucket=BUCKET))
    yield running
    running.cluster.start()


def succeeds(call: Any, **arguments: Any) -> bool:
    try:
        call(**arguments)
    except (ClientError, BotoCoreError):
        return False
    return True


def test_objects_are_there_and_can_be_put_while_a_node_is_down(served: Served) -> None:
    bodies = {f"d/{at:03d}": seeded_bytes(at * 3000, at) for at in range(60)}
    for key, body in bodies.items():
        served.one.put_object(Bucket=BUCKET, Key=key, Body=body)
    served.cluster.kill([1])
    for key, body in bodies.items():
        assert served.other.get_object(Bucket=BUCKET, Key=key)["Body"].read() == body
    listed = served.other.list_objects_v2(Bucket=BUCKET, Prefix="d/")
    assert {row["Key"]: row["Size"] for row in listed["Contents"]} == {key: len(body) for key, body in bodies.items()}
    for at in range(60, 80):
        key, body = f"d/{at:03d}", seeded_bytes(at * 3000, at)
        eventually(lambda key=key, body=body: succeeds(served.one.put_object, Bucket=BUCKET, Key=key, Body=body))
        bodies[key] = body
    served.cluster.start()
    for key, body in bodies.items():
        assert served.one.get_object(Bucket=BUCKET, Key=key)["Body"].read() == body


def test_an_upload_in_parts_goes_on_after_a_node_was_killed(served: Served) -> None:
    """Parts go to one gateway and the end of the upload to the other; a node is down for one part and for the end."""
    parts = [seeded_bytes(PART, at) for at in range(2)] + [b"the end"]
    upload_id = served.one.create_multipart_upload(Bucket=BUCKET, Key="large")["UploadId"]
    upload = {"Bucket": BUCKET, "Key": "large", "UploadId": upload_id}
    etags = {}
    for number, part in enumerate(parts, 1):
        if number == 2:
            served.cluster.kill([0])

        def put(number: int = number, part: bytes = part) -> bool:
            try:
                etags[number] = served.one.upload_part(**upload, PartNumber=number, Body=part)["ETag"]
            except (ClientError, BotoCoreError):
                return False
            return True

        eventually(put)
        if number == 2:
            served.cluster.start()
        assert [row["PartNumber"] for row in served.other.list_parts(**upload)["Parts"]] == list(range(1, number + 1))
    assert not succeeds(served.one.head_object, Bucket=BUCKET, Key="large")
    made = {"Parts": [{"PartNumber": number, "ETag": etag} for number, etag in sorted(etags.items())]}
    served.cluster.kill([1])

    def complete() -> bool:
        with contextlib.suppress(ClientError, BotoCoreError):
            served.other.complete_multipart_upload(**upload, MultipartUpload=made)
        return succeeds(served.one.head_object, Bucket=BUCKET, Key="large")

    eventually(complete)
    assert served.one.get_object(Bucket=BUCKET, Key="large")["Body"].read() == b"".join(parts)


def test_a_get_in_which_a_node_is_killed_is_complete_or_cut(served: Served) -> None:
    body = seeded_bytes(64 << 20, 7)
    served.one.put_object(Bucket=BUCKET, Key="streamed", Body=body)
    whole = 0
    for number in range(3):
        answer = served.other.get_object(Bucket=BUCKET, Key="streamed")["Body"]
        found = answer.read(1 << 20)
        served.cluster.kill([number])
        try:
            while piece := answer.read(1 << 20):
                found += piece
            assert found == body
            whole += 1
        except (BotoCoreError, HTTPClientError):  # the connection ended before the length that was announced
            assert body.startswith(found)
        answer.close()
        served.cluster.start()
        eventually(lambda: succeeds(served.other.head_object, Bucket=BUCKET, Key="streamed"))
    assert whole  # one node of three has no copy of it, and others go on from the second copy


def test_puts_during_which_nodes_are_killed_are_whole_or_not_there(served: Served) -> None:
    """Each object is what one of the puts to it sent, and what was acknowledged is there."""
    stopping = threading.Event()
    acknowledged: dict[str, bytes] = {}

    def put(s3: Any, worker: int) -> None:
        at = 0
        while not stopping.is_set():
            key, body = f"racing/{worker}-{at}", os.urandom(200_000)
            if succeeds(s3.put_object, Bucket=BUCKET, Key=key, Body=body):
                acknowledged[key] = body
            at += 1

    threads = [threading.Thread(target=put, args=(s3, at)) for at, s3 in enumerate((served.one, served.other))]
    for thread in threads:
        thread.start()
    try:
        for number in range(3):
            before = len(acknowledged)
            served.cluster.kill([number])
            eventually(lambda before=before: len(acknowledged) > before + 5)
            served.cluster.start([number])
            eventually(lambda before=before: len(acknowledged) > before + 10)
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    for key, body in acknowledged.items():
        assert served.one.get_object(Bucket=BUCKET, Key=key)["Body"].read() == body
    listed: dict[str, int] = {}
    for page in served.other.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="racing/"):
        listed |= {row["Key"]: row["Size"] for row in page.get("Contents", ())}
    assert acknowledged.keys() <= listed.keys() and set(listed.values()) == {200_000}
