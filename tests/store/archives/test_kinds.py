"""Which objects are archives: the name says so, the first bytes confirm it."""

from __future__ import annotations

import io
import pickle
import tarfile

import pytest

from ais_loader import errors
from ais_loader.errors import ArchiveDamaged, LoaderError, NotAnArchive
from storage_node.store.archives.archive import ShardIndexer
from storage_node.store.archives.kinds import ArchiveKind, kind_of_name, recognise
from storage_node.store.archives.source import ArchiveFile, FdSource, chunks_of, read_exactly
from tests.store.archives.archive_kit import (
    BytesSource,
    content,
    in_zip,
    make_tar,
    open_archive,
    packed_in_every_way,
    served,
)
from tests.table import table

TAR = make_tar([("a", b"a")])
PACKED = packed_in_every_way(TAR)


@table(
    ("name", "kind"),
    [
        ("a.tar", ArchiveKind.TAR),
        ("en/A.TAR", ArchiveKind.TAR),
        ("a.tar.gz", ArchiveKind.TAR_GZ),
        ("a.tgz", ArchiveKind.TAR_GZ),
        ("a.tar.zst", ArchiveKind.TAR_ZST),
        ("a.tar.lz4", ArchiveKind.TAR_LZ4),
        ("a.zip", ArchiveKind.ZIP),
        ("x.target.wav", None),
        ("a.gz", None),
        ("tar", None),
        ("a.tar.bz2", None),
    ],
)
def test_the_suffix_says_which_kind_an_object_is(name: str, kind: ArchiveKind | None) -> None:
    assert kind_of_name(name) is kind


def test_an_object_of_another_name_has_no_members() -> None:
    with pytest.raises(NotAnArchive, match=r"'a\.wav' has no members: its name ends in none of \.tar, "):
        served(TAR, "a.wav")


@table(
    ("name", "data", "message"),
    [
        ("a.tar", PACKED["gzip"][1], r"'a\.tar' is tar by its name, but begins like gzip; name it \.tar\.gz"),
        ("a.tar", PACKED["zstd, one frame"][1], r"begins like zstd; name it \.tar\.zst"),
        ("a.tar", in_zip({"a": b""}), r"begins like zip; name it \.zip"),
        ("a.tar", b"BZh91AY" + bytes(600), "begins like bzip2$"),
        ("a.tar.gz", TAR, r"'a\.tar\.gz' is gzip by its name, but begins like tar; name it \.tar"),
        ("a.tar.zst", PACKED["lz4, linked"][1], r"begins like lz4; name it \.tar\.lz4"),
        ("a.tar.lz4", b"RIFF" + bytes(600), "begins like something else$"),
        ("a.zip", TAR, r"is zip by its name, but begins like tar"),
        ("a.tgz", b"", "begins like something else"),
    ],
)
def test_what_is_not_what_its_name_says_is_told_so(name: str, data: bytes, message: str) -> None:
    with pytest.raises(NotAnArchive, match=message):
        open_archive(BytesSource(data), name)
    indexer = ShardIndexer(name)
    with pytest.raises(NotAnArchive, match=message):
        for at in range(0, len(data), 100):
            indexer.feed(data[at : at + 100])
        indexer.finish(BytesSource(data))


def test_a_first_member_may_be_called_like_a_compression() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("BZh.wav"))
    v7 = bytearray(buffer.getvalue())
    v7[257:265] = bytes(8)
    v7[148:156] = b"%06o\0 " % (sum(v7[:148]) + sum(v7[156:512]) + 256)
    assert recognise("a.tar", bytes(v7)) is ArchiveKind.TAR
    assert served(bytes(v7)) == {"BZh.wav": b""}


def test_a_zstd_shard_may_begin_with_a_skippable_frame() -> None:
    data = b"\x50\x2a\x4d\x18\4\0\0\0abcd" + PACKED["zstd, one frame"][1]
    assert served(data, "a.tar.zst") == {"a": b"a"}


def test_a_shard_that_was_stored_otherwise_than_it_passed_by_gets_no_index() -> None:
    indexer = ShardIndexer("a.tar")
    indexer.feed(TAR)
    with pytest.raises(ArchiveDamaged, match="have passed by"):
        indexer.finish(BytesSource(TAR[:-1]))


def test_errors_have_kinds_of_their_own_and_survive_pickling() -> None:
    ours = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, LoaderError)]
    kinds = {error: error.kind for error in ours}
    del kinds[LoaderError]
    assert len(set(kinds.values())) == len(kinds)
    for error in kinds:
        again = pickle.loads(pickle.dumps(error("byte 5: why")))
        assert (type(again), str(again)) == (error, "byte 5: why")


def test_a_source_is_a_range_of_a_file() -> None:
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.write(b"before" + content(1, 3_000_000) + b"after")
        file.flush()
        source = FdSource(file.fileno(), 3_000_000, 6)
        assert b"".join(chunks_of(source)) == content(1, 3_000_000)
        assert source.pread(10, 2_999_995) == content(1, 3_000_000)[-5:]
        with pytest.raises(ArchiveDamaged, match="byte 3000000: the shard ends here; 5 bytes more"):
            read_exactly(source, 10, 2_999_995)
        seekable = io.BufferedReader(ArchiveFile(source))
        seekable.seek(-4, io.SEEK_END)
        assert seekable.read() == content(1, 3_000_000)[-4:]
        assert FdSource(file.fileno()).size_bytes == 3_000_011
