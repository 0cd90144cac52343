"""Members of archives: one, those that match, and members that are added."""

from __future__ import annotations

import io
import tarfile
import time

import pytest

from tests.gateway.aistore.conftest import Ais, Answer
from tests.table import table
from tests.tar_kit import packed_tar

MEMBERS = {"a/1.txt": b"one", "a/1.cls": b"1", "a/2.txt": bytes(300_000), "b/1.x.txt": b"", "top": b"top"}


@pytest.fixture
def shard(ais: Ais, bucket: str) -> str:
    ais.put(bucket, "s.tar", packed_tar(MEMBERS))
    return bucket


def test_one_member(ais: Ais, shard: str) -> None:
    for path, data in MEMBERS.items():
        for query in ({"archpath": path}, {"archpath": path, "archregx": ""}, {"archpath": path, "archmime": ".tar"}):
            answer = ais.get(shard, "s.tar", **query)
            assert (answer.status, answer.body == data) == (200, True), path
            assert answer.headers["content-length"] == str(len(data)) and "ais-version" not in answer.headers


def test_members_that_are_refused(ais: Ais, shard: str) -> None:
    missing = ais.get(shard, "s.tar", archpath="none")
    assert (missing.status, missing.message()) == (404, f"none in ais://{shard}/s.tar does not exist")
    assert ais.get(shard, "none.tar", archpath="x").message() == f"ais://{shard}/none.tar doesn't exist"
    ais.put(shard, "plain", b"bytes")
    ais.put(shard, "bad.tar", b"no archive at all")
    for name in ("plain", "bad.tar"):
        answer = ais.get(shard, name, archpath="x")
        assert answer.status == 400 and f"ais://{shard}/{name}" in answer.message()
    ranged = ais.get(shard, "s.tar", {"Range": "bytes=0-1"}, archpath="top")
    assert ranged.status == 400 and ranged.json()["tcode"] == "ErrUnsupp"


def unpacked(answer: Answer) -> dict[str, bytes]:
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-tar"), answer
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as tar:
        return {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]


@table(
    ("mode", "pattern", "names"),
    [
        ("regexp", r"\.txt$", ["a/1.txt", "a/2.txt", "b/1.x.txt"]),
        ("regexp", "^a/1", ["a/1.txt", "a/1.cls"]),
        ("prefix", "a/", ["a/1.txt", "a/1.cls", "a/2.txt"]),
        ("", "b", ["b/1.x.txt"]),
        ("suffix", ".cls", ["a/1.cls"]),
        ("substr", "1.", ["a/1.txt", "a/1.cls", "b/1.x.txt"]),
        ("wdskey", "a/1", ["a/1.txt", "a/1.cls"]),
        ("prefix", "", list(MEMBERS)),
    ],
)
def test_members_that_match(ais: Ais, shard: str, mode: str, pattern: str, names: list[str]) -> None:
    found = unpacked(ais.get(shard, "s.tar", archregx=pattern, **({"archmode": mode} if mode else {})))
    assert list(found) == names and found == {name: MEMBERS[name] for name in names}


def test_matches_that_are_refused(ais: Ais, shard: str) -> None:
    for mode, pattern, status in (("regexp", "(", 400), ("strange", "x", 400), ("suffix", "none", 404)):
        answer = ais.get(shard, "s.tar", archregx=pattern, archmode=mode)
        assert answer.status == status and answer.message()
    assert ais.get(shard, "none.tar", archregx="x", archmode="prefix").status == 404


def test_an_expression_takes_no_longer_than_the_names_are(ais: Ais, bucket: str) -> None:
    """Python's own expressions take twice as long for each further letter, and hold the process meanwhile."""
    ais.put(bucket, "s.tar", packed_tar({f"{'a' * 24}!": b"1"}))
    began_s = time.process_time()
    assert ais.get(bucket, "s.tar", archregx="(a+)+$", archmode="regexp").status == 404
    assert time.process_time() - began_s < 3
    assert "invalid escape sequence" in ais.get(bucket, "s.tar", archregx=r"(a)\1", archmode="regexp").message()


def test_no_member_is_added_to_an_archive(ais: Ais, shard: str) -> None:
    before = ais.get(shard, "s.tar").body
    for name, flags in (("s.tar", {"Ais-Pine": "1"}), ("s.tar", {}), ("t.tar", {"Ais-Pine": "2"})):
        assert ais("PUT", f"objects/{shard}/{name}", b"new", flags, archpath="new").status == 501
    assert (ais.get(shard, "s.tar").body, ais.get(shard, "t.tar").status) == (before, 404)
