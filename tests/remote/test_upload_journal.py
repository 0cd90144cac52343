"""A journal of pending uploads that somebody has changed by hand, or that was damaged: nothing else waits for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ais_loader import Remote, connect
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import WriteBatch
from storage_node.store.fsck.fsck import check, repair
from storage_node.store.store import Store
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import Fault, FaultProxy

pytestmark = pytest.mark.slow
DOWN = Fault(status=503)
NAMES = [f"{at}" for at in range(6)]
OTHER = bytes(16)


def _removed(batch: WriteBatch, keys: list[bytes]) -> None:
    for key in keys[::2]:
        batch.delete(key)


def _of_nothing(batch: WriteBatch, keys: list[bytes]) -> None:
    for key in (
        b"p",
        b"p" + OTHER,
        b"px",
        keys[0][:9],
        keys[0] + b"/none",
        b"p" + OTHER + b"a",
        keys[0][:17] + b"\xff",
    ):
        batch.put(key, b"")


def _unreadable_attempts(batch: WriteBatch, keys: list[bytes]) -> None:
    for key, value in zip(keys, (b"\xff\xfe", b"[" * 100_000, b"{", b"7", b'["a"]', b"\0"), strict=True):
        batch.put(key, value)


CHANGES: dict[str, Callable[[WriteBatch, list[bytes]], None]] = {
    "removed": _removed,
    "of nothing": _of_nothing,
    "unreadable attempts": _unreadable_attempts,
}


def _node(drive: Path) -> NodeServer:
    return NodeServer([drive], ServerConfig(port=0, remote_hosts=("any",)))


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_pending_is_uploaded_whatever_the_journal_says(
    tmp_path: Path, remote_bucket: RemoteBucket, proxy: FaultProxy, change: str
) -> None:
    drive = tmp_path / "drive"
    proxy.on("*", "*", DOWN)
    with _node(drive) as node, connect(node.url) as client:
        remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, write="back")
        bucket = client.create_bucket("train", remote=remote)
        for name in NAMES:
            bucket.put(name, name.encode())
    with Store.open([drive]) as store:
        batch = WriteBatch(raw_mode=True)
        catalog = store.drives[0].catalog
        keys = [key for key, _ in catalog.scan(fmt.PENDING_PREFIX)]
        assert len(keys) == len(NAMES)
        CHANGES[change](batch, keys)
        catalog.write(batch, sync=True)
    lost = NAMES[::2] if change == "removed" else []
    assert sorted(one.name for one in check([drive]).of("not-journaled")) == lost
    assert len(repair([drive]).of("not-journaled")) == len(lost)
    assert not check([drive]).of("not-journaled")
    proxy.clear()
    with _node(drive) as node, connect(node.url) as client:
        bucket = client.bucket("train")
        bucket.put("later", b"later")
        bucket.flush(timeout_s=180)
        assert client.pending_uploads() == []
        assert {name: remote_bucket.get(name) for name in NAMES} == {name: name.encode() for name in NAMES}
        assert remote_bucket.get("later") == b"later"
