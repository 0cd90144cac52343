"""Helpers of the store's tests: short ways to put, read and break things, and the state of a whole store."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from storage_node.store import format as fmt
from storage_node.store.archives.open_archives import ShardLimits
from storage_node.store.drive.drive import Drive
from storage_node.store.format import CatalogEntry
from storage_node.store.fsck.fsck import Report, check
from storage_node.store.read.object_reader import open_object
from storage_node.store.store import Store

BUCKET = "speech"


def put(
    store: Store, name: str, data: bytes, bucket: str = BUCKET, metadata: dict[str, str] | None = None
) -> CatalogEntry:
    with store.begin_put(bucket, name, metadata) as upload:
        upload.write(data)
        return upload.commit()


def read(store: Store, name: str, bucket: str = BUCKET, **how: int | bool | str | None) -> bytes:
    return b"".join(open_object(store, bucket, name, **how))  # type: ignore[arg-type]


def names(store: Store, prefix: str = "", bucket: str = BUCKET) -> list[str]:
    return [name for name, _ in store.objects(bucket, prefix)]


def contents(store: Store, bucket: str = BUCKET) -> dict[str, bytes]:
    """Everything in a bucket, read in full."""
    return {name: read(store, name, bucket) for name in names(store, bucket=bucket)}


@contextlib.contextmanager
def store_at(
    *roots: Path,
    bucket: str | None = BUCKET,
    durability: str = "process",
    shard_limits: ShardLimits | None = None,
    compact_bytes_per_s: float = 0,
) -> Iterator[Store]:
    """An open store; with the bucket already in it. Objects stay where they are unless there is a rate."""
    with Store.open(
        roots,
        durability=durability,  # type: ignore[arg-type]
        shard_limits=shard_limits,
        compact_bytes_per_s=compact_bytes_per_s,
    ) as store:
        if bucket is not None:
            store.create_bucket(bucket, exist_ok=True)
        yield store


@contextlib.contextmanager
def no_new_threads() -> Iterator[None]:
    """No thread can be started meanwhile, as where the system has no more, or the interpreter ends."""
    with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        yield


def file_of(store: Store, name: str, bucket: str = BUCKET) -> Path:
    """The file that holds an object's bytes."""
    drive, record = store.locate(bucket, name)
    return drive.root / "objects" / os.fsdecode(record.path)


def drive_of(store: Store, name: str = "any", bucket: str = BUCKET) -> Drive:
    return store.drive_set.at(store.drive_set.placement.owner(store.bucket(bucket).uuid_bytes, name))


def object_files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "objects").rglob("*") if path.is_file())


def stored_identity(path: Path) -> fmt.Identity:
    return fmt.decode_identity(os.getxattr(path, fmt.XATTR_NAME))


def flip_a_byte(path: Path, at: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0xFF]))


def copy_with_attributes(source: str, target: str) -> str:
    """For `shutil.copytree`, which makes of an open store's drive what a kill would leave."""
    shutil.copy2(source, target)
    for name in os.listxattr(source):
        os.setxattr(target, name, os.getxattr(source, name))
    return target


def kinds(report: Report) -> list[str]:
    """The kinds of a report's findings that ask for something, in order of kind."""
    return sorted(f.kind for f in report.findings if f.severity != "note")


def assert_sound(*roots: Path) -> None:
    """Nothing at all is wrong with the store, down to its bytes."""
    report = check(roots, checksums=True)
    assert not report.findings, report.findings
