"""Shar pointers as entries of a batch: what they ask for, and what is cut out of what comes."""

from __future__ import annotations

import io
import tarfile
from urllib.parse import quote

import pytest

from ais_loader import Entry
from ais_loader.errors import InvalidRequest
from ais_loader.integrations.lhotse.shar_pointers import SharPointer, SharPointerError
from ais_loader.testing import seeded_bytes, throwaway_store
from tests.tar_kit import packed_tar

LONG = "sub/" * 60 + "recording-ü.wav"
MEMBERS = {"a.wav": seeded_bytes(1000, seed=1), "a.json": b"{}", LONG: seeded_bytes(700, seed=2), "b.json": b"{}"}


def pairs(shard: bytes) -> list[tuple[int, int]]:
    """Byte ranges of the samples, two members each, as Lhotse's index has them."""
    with tarfile.open(fileobj=io.BytesIO(shard)) as archive:
        starts = [member.offset for member in archive.getmembers()][::2]
    return list(zip(starts, [*starts[1:], len(shard)], strict=True))


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_pointer_fetches_its_range_and_finds_its_data(tar_format: int) -> None:
    shard = packed_tar(MEMBERS, tar_format=tar_format)
    (_, _), (start, stop) = pairs(shard)
    with throwaway_store({"a#b?c%20.tar": shard}, bucket="b") as client:
        pointer = SharPointer.parse(f"ais://b/a#b?c%20.tar?o={start}&e={stop}&n={quote(LONG, safe='')}&s=1")
        assert pointer.entry() == Entry("b", "a#b?c%20.tar", start=start, length=stop - start)
        [item] = client.get_batch([pointer.entry()])
        assert pointer.payload(item.data) == MEMBERS[LONG]
        [item] = client.get_batch([pointer.member_entry()])
        assert item.data == MEMBERS[LONG]


def test_what_is_left_out_of_a_pointer_is_not_asked_of_the_range() -> None:
    shard = packed_tar(MEMBERS)
    [(start, stop), _] = pairs(shard)
    assert SharPointer.parse(f"ais://b/s.tar?o={start}&e={stop}") == SharPointer("ais://b/s.tar", start, stop)
    assert SharPointer("ais://b/s.tar", start, stop).payload(shard[start:stop]) == MEMBERS["a.wav"]


def test_another_member_there_is_looked_for_by_its_name_unless_the_pointer_is_strict() -> None:
    shard = packed_tar(MEMBERS)
    [(start, stop), _] = pairs(shard)
    pointer = SharPointer("ais://b/s.tar", start, stop, "b.wav")
    assert pointer.payload(shard[start:stop]) is None
    assert pointer.member_entry() == Entry("b", "s.tar", "b.wav")
    with pytest.raises(SharPointerError, match=r"'b\.wav'.*'a\.wav' lies there"):
        SharPointer("ais://b/s.tar", start, stop, "b.wav", strict=True).payload(shard[start:stop])


def test_a_name_that_is_no_utf8_is_asked_for_as_the_store_writes_it() -> None:
    pointer = SharPointer.parse("ais://b/s.tar?o=0&e=512&n=caf%E9.wav")
    assert pointer.member_entry().member == "caf\\xe9.wav"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (packed_tar(MEMBERS)[:600], "1,000 bytes, of which 88 lie in the range"),
        (b"no tar" * 200, "no tar header there"),
        (b"\0" * 1024, "no file in this range"),
        (b"", "no tar header there|no file"),
        (packed_tar({"a.nodata": b""}), "stands for data that are not in the shard"),
    ],
)
def test_what_cannot_be_read_says_where_and_why(data: bytes, why: str) -> None:
    with pytest.raises(SharPointerError, match=why) as raised:
        SharPointer("ais://b/s.tar", 512, 1024).payload(memoryview(data))
    assert "ais://b/s.tar, bytes 512 to 1,024" in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "ais://b/s.tar",
        "ais://b/s.tar?o=1",
        "ais://b/s.tar?o=a&e=2",
        "ais://b/s.tar?o=1&e=2&s=1",
        "?o=1&e=2",
        "s?o=2&e=2",
    ],
)
def test_what_is_no_pointer_is_refused(text: str) -> None:
    with pytest.raises(SharPointerError, match=r"pointer|before it has begun"):
        SharPointer.parse(text)


def test_a_pointer_to_elsewhere_is_no_entry() -> None:
    with pytest.raises(InvalidRequest):
        SharPointer.parse("/local/s.tar?o=0&e=512").entry()
