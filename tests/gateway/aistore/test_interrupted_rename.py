"""Renames of a bucket that are interrupted: repeating one finishes it, and no object is lost or doubled."""

from __future__ import annotations

import contextlib
import http.client
import signal
import threading
from pathlib import Path

import pytest

from ais_loader import Client, connect, errors
from ais_loader.testing import NodeProcess, eventually
from tests.gateway.aistore.calls import action, call, job_of
from tests.gateway.aistore.conftest import Ais
from tests.gateway.command_kit import GatewayCommand
from tests.gateway.conftest import Served
from tests.gateway.test_boto3 import data


def stored(client: Client, bucket: str) -> dict[str, bytes]:
    handle = client.bucket(bucket)
    return {item.entry.name: item.tobytes() for item in handle.get_batch(list(handle))}


@pytest.mark.slow
def test_a_gateway_is_killed_in_the_middle_of_a_rename(tmp_path: Path) -> None:
    objects = {f"d{at % 7}/{at:04}": data(at, 50 + at % 100) for at in range(1500)}
    with NodeProcess(tmp_path / "drive") as node, connect(node.url) as client:

        def is_cut() -> bool:
            """Whether the gateway was killed before it was done: a busy machine may be late to kill it."""
            for name in [info.name for info in client.buckets()]:
                client.delete_bucket(name, force=True)
            client.create_bucket("from", quota_objects=10_000).put_many(objects.items())
            with GatewayCommand(node.url, "--no-keys") as gateway:
                asking = threading.Thread(target=_rename_until_cut, args=(gateway.port,))
                asking.start()
                eventually(lambda: not has_first())
                gateway.end(signal.SIGKILL)
                asking.join(180)
                assert not asking.is_alive()
            return "from" in [info.name for info in client.buckets()] and bool(list(client.bucket("from")))

        def has_first() -> bool:
            with contextlib.suppress(errors.BucketNotFound):
                return client.bucket("from").exists("d0/0049")
            return False

        eventually(is_cut)
        left, moved = stored(client, "from"), stored(client, "to")
        assert left and moved and left | moved == objects
        with GatewayCommand(node.url, "--no-keys") as gateway:
            ais = Ais(gateway.port, "")
            client.create_bucket("other").put("x", b"x")
            refused = ais("POST", "buckets/other", action("move-bck"), bck_to="ais/@#/to/")
            assert (refused.status, refused.message()) == (409, 'bucket "ais://to" already exists')
            assert ais("POST", "buckets/from", action("move-bck"), bck_to="ais/@#/to/").status == 200
            assert stored(client, "to") == objects
            assert [info.name for info in client.buckets()] == ["other", "to"]
            assert client.bucket("to").info().quota_objects == 10_000
            assert list(client.bucket("to").uploads()) == []


def _rename_until_cut(port: int) -> None:
    with contextlib.suppress(http.client.HTTPException, OSError):
        Ais(port, "")("POST", "buckets/from", action("move-bck"), bck_to="ais/@#/to/")


def test_an_empty_bucket_with_the_same_settings_is_taken(served: Served, bucket: str) -> None:
    to = f"{bucket}-to"
    served.client.bucket(bucket).put("x", b"x")
    served.client.create_bucket(to)
    job_of(served, call(served, "POST", f"buckets/{bucket}", action("move-bck"), bck_to=f"ais/@#/{to}/"))
    assert stored(served.client, to) == {"x": b"x"}
    assert bucket not in [info.name for info in served.client.buckets()]


def test_an_empty_bucket_with_other_settings_is_not_taken(served: Served, bucket: str) -> None:
    to = f"{bucket}-to"
    served.client.create_bucket(to, quota_bytes=1 << 30)
    refused = call(served, "POST", f"buckets/{bucket}", action("move-bck"), bck_to=f"ais/@#/{to}/")
    assert (refused.status, refused.message()) == (409, f'bucket "ais://{to}" already exists')
    same = call(served, "POST", f"buckets/{bucket}", action("move-bck"), bck_to=f"ais/@#/{bucket}/")
    assert same.status == 400
