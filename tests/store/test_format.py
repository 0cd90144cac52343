"""FORMAT.md is what the code writes: its tables are read, and real bytes are taken apart with them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from ais_loader.errors import StoreFormatError
from ais_loader.wire.reserved import ALLOWED, DENIED
from storage_node.store import format as fmt
from storage_node.store.checksum import crc32c
from storage_node.store.format import BLOCK_BYTES, Version
from tests.store.store_kit import BUCKET, drive_of, file_of, object_files, put, store_at
from tests.table import table

TEXT = (Path(fmt.__file__).parents[1] / "FORMAT.md").read_text()
U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)
METADATA = st.dictionaries(st.text("kä", max_size=3), st.text("v\x00\U0001f600", max_size=400), max_size=3)


def layout(after: str) -> dict[str, tuple[int, int]]:
    """Field -> (offset, size in bytes) of the first table with offsets after this text."""
    sizes = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "16 bytes": 16}
    found: dict[str, tuple[int, int]] = {}
    for line in TEXT[TEXT.index(after) :].splitlines():
        row = re.fullmatch(r"\| (\d+) \|([^|]*)\| ([^|]*) \|", line)
        if row is not None:
            field = re.split(r"[,:.] (?!epoch|counter|node)", row[3])[0]
            found[field] = int(row[1]), sizes.get(row[2].strip(), 0)
        elif found:
            return found
    return found


def fields(data: bytes, after: str) -> dict[str, int]:
    return {
        name: int.from_bytes(data[at : at + size], "little")
        for name, (at, size) in layout(after).items()
        if size in (1, 2, 4, 8)
    }


def test_an_entry_and_an_identity_are_laid_out_as_the_tables_say(tmp_path: Path) -> None:
    metadata = {"sprache": "grüß"}
    with store_at(tmp_path / "drive") as store:
        put(store, "größe", b"first")
        record = put(store, "größe", b"hello", metadata=metadata)
        bucket_uuid = store.bucket(BUCKET).uuid_bytes
        drive = drive_of(store)
        entry = drive.catalog.get(b"o" + bucket_uuid + "größe".encode())
        path = file_of(store, "größe")
        identity = os.getxattr(path, "user.ais_loader")
        relative = str(path.relative_to(tmp_path / "drive" / "objects")).encode()
    assert entry is not None
    raw_metadata = json.dumps(metadata, ensure_ascii=False, separators=(",", ":")).encode()
    common = {
        "format": 2,
        "version: epoch": record.epoch,
        "version: counter": record.counter,
        "version: node": 0,
        "size": 5,
        "checksum of the object": crc32c(b"hello"),
        "modified": record.modified_ns,
    }
    after = "Entry of an object:"
    assert fields(entry, after) == {
        **common,
        "kind": 1,
        "length of the memory of writes": 0,
        "offset of the object in its file": 0,
        "length of the path": len(relative),
    }
    tail = max(at for at, _ in layout(after).values())
    assert entry[tail:] == relative + raw_metadata
    after = "### Identity"
    name = "größe".encode()
    own = {"generation": record.generation, "length of the name": len(name), "1": 1}
    assert fields(identity, after) == {**common, **own}
    assert identity[1:17] == bucket_uuid
    tail = max(at for at, _ in layout(after).values())
    assert identity[tail:] == name + raw_metadata


def test_a_copy_and_a_tombstone_keep_the_version_that_they_were_given(tmp_path: Path) -> None:
    given, later = fmt.Version(7, 1 << 40, 3), fmt.Version(7, (1 << 40) + 1, 2)
    with store_at(tmp_path / "drive") as store:
        drive_of(store)._garbage._grace_s = 3600.0
        with store.begin_put(BUCKET, "a", version=given) as upload:
            upload.write(b"hello")
            record = upload.commit()
        path = file_of(store, "a")
        identity = os.getxattr(path, "user.ais_loader")
        bucket_uuid = store.bucket(BUCKET).uuid_bytes
        store.delete(BUCKET, "a", version=later, keep_tombstone=True)
        entry = drive_of(store).catalog.get(b"o" + bucket_uuid + b"a")
        garbage = dict(drive_of(store).catalog.scan(b"g"))
    assert record.version == given
    assert garbage == {b"g" + record.generation.to_bytes(8, "big"): record.path}
    assert path.name.rpartition(".")[2] == f"{record.generation:x}"
    stored = fields(identity, "### Identity")
    assert [stored[f"version: {part}"] for part in ("epoch", "counter", "node")] == [7, 1 << 40, 3]
    assert stored["generation"] == record.generation < 1 << 40
    assert entry is not None and len(entry) == layout("Entry of an object:")["path"][0]
    found = fields(entry, "Entry of an object:")
    assert found.pop("modified") > 0
    assert found == {
        "format": 2,
        "kind": 2,
        "length of the memory of writes": 0,
        "version: epoch": 7,
        "version: counter": (1 << 40) + 1,
        "version: node": 2,
        "size": 0,
        "checksum of the object": 0,
        "offset of the object in its file": 0,
        "length of the path": 0,
    }


def test_a_file_is_named_as_described(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        record = put(store, "größe", b"")
        bucket_uuid = store.bucket(BUCKET).uuid_bytes
    digest = xxhash.xxh3_128_digest(bucket_uuid + "größe".encode())
    (path,) = object_files(tmp_path / "drive")

    def expected(generation: int) -> str:
        return f"{generation >> 14 & 63:02x}/{generation >> 8 & 63:02x}/{digest[2:].hex()}.{generation:x}"

    assert str(path.relative_to(tmp_path / "drive" / "objects")) == expected(record.generation)
    for generation in (255, 256, 0x12345678):
        assert fmt.file_path(bucket_uuid, "größe", generation) == expected(generation).encode()


def test_the_catalog_holds_the_keys_of_the_table_and_no_others(tmp_path: Path) -> None:
    data = os.urandom(3 * BLOCK_BYTES + 1)
    with store_at(tmp_path / "drive") as store:
        drive_of(store)._garbage._grace_s = 3600.0
        old = put(store, "a", b"1")
        record = put(store, "a", data)
        found = dict(drive_of(store).catalog.scan(b""))
        bucket_uuid = store.bucket(BUCKET).uuid_bytes
    blocks = b"b" + record.generation.to_bytes(8, "big") + bytes(4)
    garbage = b"g" + old.generation.to_bytes(8, "big")
    assert set(found) == {b"o" + bucket_uuid + b"a", blocks, garbage, b"m:counter", b"m:clock"}
    checksums = [crc32c(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)]
    assert found[blocks] == b"".join(checksum.to_bytes(4, "little") for checksum in checksums)
    assert found[garbage] == old.path
    assert int.from_bytes(found[b"m:counter"], "big") == 1 + 65536
    limit = int.from_bytes(found[b"m:clock"], "big")
    assert record.counter < limit <= record.counter + (1000 << 16)
    with store_at(tmp_path / "drive") as store:
        drive_of(store).catalog.flush()
    again = dict(_closed_catalog(tmp_path / "drive"))
    assert garbage not in again


def _closed_catalog(root: Path) -> list[tuple[bytes, bytes]]:
    from storage_node.store.drive.catalog import Catalog

    catalog = Catalog(root / "catalog", writable=False)
    try:
        return list(catalog.scan(b""))
    finally:
        catalog.close()


def test_the_json_files_have_the_fields_described(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        bucket_uuid, store_uuid, drives = store.bucket(BUCKET).uuid, store.store_uuid, store.record.current.drives
    identity = json.loads((tmp_path / "drive" / "drive.json").read_text())
    assert identity == {"format": 2, "drive_uuid": drives[0], "store_uuid": store_uuid}
    lines = [json.loads(line) for line in (tmp_path / "drive" / "record.json").read_text().splitlines()]
    assert all((line["format"], line["checksum"]) == (12, crc32c(line["record"].encode())) for line in lines)
    whole, *_, change = (json.loads(line["record"]) for line in lines)
    bucket = {"uuid": bucket_uuid, "copies": 1, "remote": None, "quota_bytes": 0, "quota_objects": 0}
    assert change == {"revision": 2, "buckets": {BUCKET: bucket}}
    assert whole == {
        "store_uuid": store_uuid,
        "drives": list(drives),
        "epoch": 1,
        "revision": 1,
        "purging": [],
        "buckets": {},
        "retiring": [],
        "former": [],
        "gone": {},
        "snapshots": {},
        "trimming": [],
        "etl": "",
        "revoked_tokens": {},
        "denied": {},
        "audit": {},
        "segments": 2,
    }
    described = set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE))
    assert set(whole) <= described


def test_a_drive_holds_the_files_described_and_no_others(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        put(store, "a", b"1")
        names = {path.name for path in (tmp_path / "drive").iterdir()}
    assert names == {"drive.json", "record.json", "catalog", "objects", "staging"}
    assert os.readlink(tmp_path / "drive" / "catalog" / "rocksdict-config.json") == "/dev/null"


# -- encoding and decoding


@given(
    name=NAMES,
    numbers=st.tuples(U32, U64, U32, U64, U64, U32, U64),
    bucket=st.binary(min_size=16, max_size=16),
    metadata=METADATA,
)
def test_an_identity_comes_back_or_says_that_its_metadata_did_not_fit(
    name: str, numbers: tuple[int, ...], bucket: bytes, metadata: dict[str, str]
) -> None:
    epoch, counter, node, generation, size, checksum, modified = numbers
    version = fmt.Version(epoch, counter, node)
    identity = fmt.Identity(bucket, name, version, generation, size, checksum, modified, metadata)
    if len(name.encode()) > 1024:
        return
    raw = fmt.identity_of(*identity[:7], fmt.encode_metadata(metadata))
    assert len(raw) <= fmt.MAX_XATTR_BYTES
    found = fmt.decode_identity(raw)
    assert (found.bucket_uuid, found.name, found.version) == (bucket, name, identity.version)
    assert (found.generation, found.size_bytes, found.checksum, found.modified_ns) == numbers[3:]
    fits = 64 + len(name.encode()) + len(fmt.encode_metadata(metadata)) <= fmt.MAX_XATTR_BYTES
    assert found.metadata == (metadata if fits else None)


PATH = st.binary(max_size=60).filter(lambda path: not path.startswith(b"coded/"))  # which a group has to follow


@given(numbers=st.tuples(U32, U64, U32, U64, U32, U64, U64), path=PATH, metadata=METADATA)
def test_an_entry_comes_back(numbers: tuple[int, ...], path: bytes, metadata: dict[str, str]) -> None:
    record = fmt.CatalogEntry._make((*numbers, path, fmt.encode_metadata(metadata), b""))
    assert fmt.decode_entry(fmt.encode_entry(record)) == record
    assert record.metadata == metadata


@given(st.binary(max_size=120))
def test_garbage_is_a_format_error_and_nothing_else(data: bytes) -> None:
    for decode in (fmt.decode_identity, fmt.decode_entry, fmt.decode_metadata, fmt.generation_of_path):
        try:
            decode(data)
        except StoreFormatError:
            continue


@table("raw", [b"[]", b"1", b'{"a": 1}', b"{", b"null"])
def test_metadata_that_is_not_a_mapping_of_strings_is_a_format_error(raw: bytes) -> None:
    with pytest.raises(StoreFormatError, match="metadata"):
        fmt.decode_metadata(raw)


def test_denials_and_their_ends_outrank_what_was_before_and_keep_the_epoch_of_the_store() -> None:
    denying, allowing = (fmt.encode_metadata({key: "why"}) for key in (DENIED, ALLOWED))
    epochs = [3]
    for metadata in (allowing, denying, denying, b"", allowing, allowing, denying):
        epochs.append(fmt.epoch_of_deletion(epochs[-1], metadata))
    bit = fmt.DENIAL_BIT
    assert epochs == [3, 3, 3 + bit, 3 + bit, 3 + bit, 3 + 2 * bit, 3 + 2 * bit, 3 + 3 * bit]
    assert {fmt.store_epoch(epoch) for epoch in epochs} == {3}
    assert [fmt.tombstone(Version(epoch, 1), 0).is_denied for epoch in epochs] == [
        bool(epoch & bit) for epoch in epochs
    ]
    quoted = fmt.encode_metadata({DENIED: '"ais.allowed":""'})
    assert fmt.is_denying(quoted) and not fmt.is_allowing(quoted)
