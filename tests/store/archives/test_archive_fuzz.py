"""Harmed archives through a store: typed errors or right bytes, in bounded memory.

Right bytes are those whose checksum the index has, and those that the standard library reads where it does not complain
either. By hand, longer: AIS_LOADER_FUZZ_EXAMPLES=50000 pytest -m slow, with this file.
"""

from __future__ import annotations

import io
import os
import re
import stat
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from ais_loader.errors import ArchiveError, ArchiveUnsupported, LoaderError
from ais_loader.testing import peak_rss_bytes, reset_peak_rss, rss_bytes, throwaway_folder
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.archives.archive import unpacked
from storage_node.store.archives.kinds import ArchiveKind, kind_of_name
from storage_node.store.archives.member import READABLE
from storage_node.store.checksum import crc32c
from storage_node.store.read.batch_members import status_of
from storage_node.store.read.object_reader import open_member
from storage_node.store.store import Store
from tests.example_count import examples
from tests.store.archives.archive_kit import tar_members
from tests.store.archives.mutations import HARMS, Harm, comparable, harmed, is_plain_speech
from tests.store.store_kit import BUCKET, put, read, store_at

pytestmark = pytest.mark.slow

MORE_MEMORY_BYTES = 400 << 20
"""What one window of zstd, pieces and the allocator's slack may take, whatever an archive claims."""
COMPLAINTS = (
    tarfile.TarError,
    zipfile.BadZipFile,
    KeyError,
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    zlib.error,
    struct.error,
    IndexError,
    OverflowError,
    MemoryError,
)
LONG = int(os.environ.get("AIS_LOADER_FUZZ_EXAMPLES", "1000"))


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with throwaway_folder() as folder, store_at(folder / "drive") as store:
        yield store


@pytest.fixture(autouse=True)
def memory_stays_bounded() -> Iterator[None]:
    before = rss_bytes()
    reset_peak_rss()
    yield
    assert peak_rss_bytes() - before < MORE_MEMORY_BYTES


def served_by(store: Store, name: str, data: bytes) -> dict[str, bytes] | LoaderError:
    """Every member, read through the store; or why there is none. The index is made while the shard is put."""
    put(store, name, data)
    drive, record = store.locate(BUCKET, name)
    try:
        try:
            archive = drive.shards.open(record, name).archive
        except LoaderError as error:
            return error
        found = {}
        for member in archive.index:
            if member.method not in READABLE:
                with pytest.raises(ArchiveUnsupported, match=re.escape(repr(member.name))):
                    open_member(store, BUCKET, name, member.name)
                continue
            parts = open_member(store, BUCKET, name, member.name)
            found[member.name] = b"".join(parts)
            assert (crc32c(found[member.name]), len(found[member.name])) == (member.checksum, member.size_bytes)
        return found
    finally:
        assert read(store, name) == data
        store.delete(BUCKET, name)


def by_the_standard_library(name: str, data: bytes) -> dict[str, bytes] | None:
    """None where it complains."""
    kind = kind_of_name(name)
    assert kind is not None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if kind is ArchiveKind.ZIP:
                return files_of_zip(data)
            if kind.is_compressed_tar:
                data = b"".join(unpacked(kind, [data]))
            return tar_members(data) if is_read_to_its_end(data) and is_plain_speech(data) else None
    except (LoaderError, *COMPLAINTS):
        return None


def is_read_to_its_end(tar: bytes) -> bool:
    """Whether `tarfile` stopped at a block of zeros or the end, and not, as it does without a word, at a header that it
    cannot read."""
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
        archive.getmembers()
        return not tar[archive.offset : archive.offset + tarfile.BLOCKSIZE].strip(b"\0")


def files_of_zip(data: bytes) -> dict[str, bytes]:
    """The last of each name, where that is a file."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist() if info.create_system == 3}
        return {
            name: archive.read(name)
            for name in archive.namelist()
            if not name.endswith("/") and stat.S_IFMT(modes.get(name, 0)) in (0, stat.S_IFREG)
        }


def check(store: Store, harm: Harm) -> None:
    name, data = harmed(harm)
    found = served_by(store, name, data)
    if isinstance(found, LoaderError):
        assert isinstance(found, ArchiveError), found
        assert status_of(found) in (pb.CORRUPT, pb.FAILED)
        assert "byte" in str(found) or "bytes" in str(found) or found.kind == "not-an-archive", found
        return
    reference = by_the_standard_library(name, data) if comparable(harm) else None
    if reference is not None:
        reference.pop("", None)  # who has no name cannot be asked for
        assert found == reference


@settings(max_examples=examples(250), derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(harm=HARMS)
def test_a_harmed_archive_gives_a_typed_error_or_right_bytes(store: Store, harm: Harm) -> None:
    check(store, harm)


@settings(max_examples=LONG, suppress_health_check=[HealthCheck.too_slow])
@given(harm=HARMS)
def test_many_harmed_archives_give_typed_errors_or_right_bytes(store: Store, harm: Harm) -> None:
    check(store, harm)
