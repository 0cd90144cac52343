"""Files of member indexes on a drive that are not what was written: found out, made again, never believed."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from ais_loader.testing import seeded_bytes
from storage_node.store.archives import index
from storage_node.store.archives import open_archives as shards
from storage_node.store.archives.index import MemberIndex
from storage_node.store.archives.index_format import HEADER_BYTES, ShardState
from storage_node.store.checksum import crc32c
from storage_node.store.read.object_reader import open_member
from storage_node.store.store import Store
from tests.store.archives.archive_kit import in_zip, packed_in_every_way
from tests.store.store_kit import BUCKET, assert_sound, put, store_at
from tests.tar_kit import packed_tar

MEMBERS = {f"{at}/ä.bin": seeded_bytes(at * 2_111, seed=at) for at in range(40)}
TAR = packed_tar(MEMBERS)
SHARDS = dict(packed_in_every_way(TAR).values()) | {"s.tar": TAR, "s.zip": in_zip(MEMBERS)}
BODY_SUM_AT, HEADER_SUM_AT, PLAN_BYTES_AT = 44, 124, 88


def believed(data: bytes) -> bytes:
    """With right checksums: what a bug, or another version, would leave."""
    data = data[:BODY_SUM_AT] + struct.pack("<I", crc32c(data[HEADER_BYTES:])) + data[BODY_SUM_AT + 4 :]
    return data[:HEADER_SUM_AT] + struct.pack("<I", crc32c(data[:HEADER_SUM_AT])) + data[HEADER_BYTES:]


def with_a_lying_plan(data: bytes) -> bytes:
    """Its first number; of a shard without a plan, the size of the content."""
    (plan_bytes,) = struct.unpack_from("<Q", data, PLAN_BYTES_AT)
    at = len(data) - plan_bytes - -plan_bytes % 8 if plan_bytes else 64
    return believed(data[:at] + struct.pack("<Q", struct.unpack_from("<Q", data, at)[0] + (1 << 20)) + data[at + 8 :])


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "cut in its header": lambda data: data[:100],
    "cut behind its header": lambda data: data[:HEADER_BYTES],
    "cut before its end": lambda data: data[:-1],
    "longer": lambda data: data + bytes(8),
    "zeros": lambda data: bytes(len(data)),
    "zeros from a page on, as after a loss of power": lambda data: data[:1024] + bytes(len(data) - 1024),
    "of the format before": lambda data: believed(data[:8] + struct.pack("<I", 1) + data[12:]),
    "of a later format": lambda data: believed(data[:8] + struct.pack("<I", 3) + data[12:]),
    "of another version of the shard": lambda data: believed(data[:24] + bytes([data[24] ^ 1]) + data[25:]),
    "of a shard of another checksum": lambda data: believed(data[:40] + bytes([data[40] ^ 1]) + data[41:]),
    "with a lying plan": with_a_lying_plan,
    "another file": lambda data: b"not an index at all" * 20,
}


def members(store: Store, name: str) -> dict[str, bytes]:
    drive, record = store.locate(BUCKET, name)
    found = drive.shards.open(record, name).archive.index
    return {member.name: b"".join(open_member(store, BUCKET, name, member.name)) for member in found}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARDS)
@pytest.mark.sampled(3)
def test_an_index_file_that_is_not_what_was_written_is_made_again(tmp_path: Path, name: str) -> None:
    root = tmp_path / "drive"
    with store_at(root) as store:
        put(store, name, SHARDS[name])
        drive, record = store.locate(BUCKET, name)
        state = ShardState(record.version, record.size_bytes, record.checksum)
        (path,) = (root / shards.FOLDER_NAME).glob("*.index")
        written = path.read_bytes()
        listed = list(MemberIndex.open(path, state))
        flips = random.Random(name).sample(range(len(written)), 12)
        harmed = [harm(written) for harm in HARMS.values()]
        harmed += [written[:at] + bytes([written[at] ^ 64]) + written[at + 1 :] for at in flips]
        for data in harmed:
            drive.shards.close()  # forgets what it knows
            path.unlink()
            path.write_bytes(data)
            assert data != written
            assert members(store, name) == MEMBERS
            assert list(MemberIndex.open(path, state)) == listed
    assert_sound(root)


@pytest.mark.parametrize("most_read_bytes", [0, index.READ_BYTES], ids=["mapped", "read"])
def test_a_file_that_is_cut_while_it_is_used_ends_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_read_bytes: int
) -> None:
    monkeypatch.setattr(index, "READ_BYTES", most_read_bytes)
    root = tmp_path / "drive"
    with store_at(root) as store:
        put(store, "s.tar", TAR)
        (path,) = (root / shards.FOLDER_NAME).glob("*.index")
        written = path.stat().st_size
        for left in (written - 1, HEADER_BYTES, 0):
            assert members(store, "s.tar") == MEMBERS
            os.truncate(path, left)
            assert members(store, "s.tar") == MEMBERS
            store.locate(BUCKET, "s.tar")[0].shards.close()
            assert members(store, "s.tar") == MEMBERS
            assert path.stat().st_size == written
    assert_sound(root)


def test_an_index_that_cannot_be_read_or_replaced_hinders_nobody(tmp_path: Path) -> None:
    root = tmp_path / "drive"
    with store_at(root) as store:
        put(store, "s.tar", TAR)
        (path,) = (root / shards.FOLDER_NAME).glob("*.index")
        path.unlink()
        path.mkdir()
        assert members(store, "s.tar") == MEMBERS
        store.locate(BUCKET, "s.tar")[0].shards.close()
        assert members(store, "s.tar") == MEMBERS
