"""What the tests of segments share: ways to damage what says which objects are in one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from storage_node.store.files.segment_file import SegmentFile
from storage_node.store.files.segment_format import (
    HEAD_BYTES,
    Head,
    decode_head,
    decode_states,
)
from storage_node.store.fsck import fsck as doctor
from storage_node.store.fsck.report import Report
from storage_node.store.store import Store
from tests.store.snapshot_kit import at, reap
from tests.store.store_kit import BUCKET, contents, object_files, store_at


def head_of(file: Path) -> Head:
    with file.open("rb") as opened:
        return decode_head(opened.read(HEAD_BYTES))


def overwrite(file: Path, at: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(data)


def lose_begin(file: Path) -> None:
    """Everything in front of the objects reads as zeros."""
    overwrite(file, 0, bytes(_head_anywhere(file).index_bytes))


def lose_end(file: Path) -> None:
    """Everything behind the objects reads as zeros."""
    head = _head_anywhere(file)
    overwrite(file, head.copy_at, bytes(head.index_bytes + HEAD_BYTES))


def _head_anywhere(file: Path) -> Head:
    data = file.read_bytes()
    return decode_head(data[:HEAD_BYTES] if any(data[:HEAD_BYTES]) else data[-HEAD_BYTES:])


def states_in(file: Path, copy: int) -> list[int]:
    """What the first (0) or the second (1) copy of the index says."""
    head, data = _head_anywhere(file), file.read_bytes()
    return decode_states(data[(0, head.copy_at)[copy] + HEAD_BYTES :], head.slots).tolist()


def identities_in(file: Path) -> list[bytes | None]:
    """What either copy of the index says."""
    with file.open("rb") as opened:
        return SegmentFile(opened.fileno(), head_of(file), lambda _: None).identities()


# -- a segment that much has happened to

OBJECTS = {f"{number:02d}": bytes([number]) * (number * 977 % 9_000 + 1) for number in range(40)}
NAMES = list(OBJECTS)
GONE, REPLACED = NAMES[::4], NAMES[1::4]
LEFT = [name for name in NAMES if name not in GONE + REPLACED]


def put_group(store: Store, objects: Mapping[str, bytes]) -> None:
    uploads = [store.stage(BUCKET, name, [data], {"of": name}, grouped=True) for name, data in objects.items()]
    assert not [result for result in store.commit_many(uploads) if isinstance(result, Exception)]


def make(root: Path, *, reaped: bool = True) -> tuple[Path, dict[str, bytes], dict[str, bytes]]:
    """A segment some of which is deleted, replaced or seen by a snapshot alone; what is in the bucket, and in that."""
    with store_at(root) as store:
        put_group(store, OBJECTS)
        [segment] = object_files(root)
        store.delete_many(BUCKET, GONE)
        if reaped:
            reap(store)
        store.snapshots.create(BUCKET, "s")
        seen = contents(store)
        store.delete(BUCKET, LEFT[0])
        put_group(store, dict.fromkeys(REPLACED, b"new"))
        return segment, contents(store), seen


def rebuilt(root: Path) -> Report:
    shutil.rmtree(root / "catalog")
    return doctor.rebuild([root])


def assert_holds(root: Path, now: dict[str, bytes], seen: dict[str, bytes]) -> None:
    with store_at(root) as store:
        assert (contents(store), contents(store, at("s"))) == (now, seen)
        assert store.head(BUCKET, LEFT[1]).metadata == {"of": LEFT[1]}
