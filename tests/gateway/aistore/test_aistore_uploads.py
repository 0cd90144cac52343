"""Uploads in parts, and appends: visible as a whole at the end, and continued by any gateway."""

from __future__ import annotations

import random
from functools import partial

import pytest

from ais_loader.integrations.gateway.aistore import append
from tests.gateway.aistore.conftest import Ais
from tests.gateway.conftest import ACCOUNT, Served
from tests.gateway.gateway_thread import GatewayThread
from tests.gateway.meanwhile_kit import just_before
from tests.gateway.multipart_kit import only_one_part_is_removed
from tests.table import table


def begin(ais: Ais, bucket: str, name: str = "x") -> str:
    answer = ais("POST", f"objects/{bucket}/{name}", {"action": "mpt-upload"})
    assert answer.status == 200 and answer.body
    return answer.body.decode()


def complete(ais: Ais, bucket: str, upload: str, *numbers: int):  # type: ignore[no-untyped-def]
    value = [{"part-number": number, "etag": ""} for number in numbers]
    return ais("POST", f"objects/{bucket}/x?uploadId={upload}", {"action": "mpt-complete", "value": value})


def test_parts_are_joined_by_their_numbers(ais: Ais, bucket: str) -> None:
    ais.put(bucket, "x", b"before")
    upload = begin(ais, bucket)
    parts = {number: random.Random(number).randbytes(size) for number, size in ((7, 400_000), (2, 3), (10_000, 1))}
    for number, part in parts.items():
        ais.put(bucket, "x", part, uploadId=upload, partNumber=str(number))
    assert ais.get(bucket, "x").body == b"before"
    assert complete(ais, bucket, upload, 10_000, 7, 2).status == 200
    assert ais.get(bucket, "x").body == parts[2] + parts[7] + parts[10_000]
    chunked = ais.head(bucket, "x", props="chunked").headers
    assert (chunked["ais-chunks-count"], chunked["ais-chunks-max-chunk-size"]) == ("3", "400000")
    assert ais.get(bucket, "x", {"Range": "bytes=2-4"}).body == parts[2][2:] + parts[7][:2]


def test_a_completion_that_was_cut_as_it_removed_the_parts_is_answered_again(
    served: Served, ais: Ais, bucket: str
) -> None:
    upload = begin(ais, bucket)
    for number in (1, 2):
        ais.put(bucket, "x", b"%d" % number, uploadId=upload, partNumber=str(number))
    with only_one_part_is_removed() as removed:
        assert complete(ais, bucket, upload, 1, 2).status != 200
    assert len(removed) == 1
    assert complete(ais, bucket, upload, 1, 2).status == 200
    assert ais.get(bucket, "x").body == b"12"
    assert complete(ais, bucket, upload, 1, 2).status == 404


def test_what_is_refused(ais: Ais, bucket: str) -> None:
    upload = begin(ais, bucket)
    empty = ais("PUT", f"objects/{bucket}/x", b"", uploadId=upload, partNumber="1")
    assert empty.status == 400 and "invalid size (0)" in empty.message()
    nothing = complete(ais, bucket, upload)
    assert nothing.status == 400 and "no chunks" in nothing.message()
    for number in ("0", "-1", "x", "10001", ""):
        assert ais("PUT", f"objects/{bucket}/x", b"1", uploadId=upload, partNumber=number).status == 400
    ais.put(bucket, "x", b"1", uploadId=upload, partNumber="1")
    ais.put(bucket, "x", b"2", uploadId=upload, partNumber="2")
    for numbers in ((1,), (1, 1), (1, 1, 2), (1, 3), (1, 2, 3)):
        partial = complete(ais, bucket, upload, *numbers)
        assert partial.status == 400 and "partial completion" in partial.message(), numbers
    assert ais.get(bucket, "x").status == 404
    for path in (f"objects/{bucket}/y", f"objects/{bucket}/x"):
        unknown = upload if path.endswith("y") else "0" * 32
        answer = ais("PUT", path, b"1", uploadId=unknown, partNumber="1")
        assert answer.status == 404 and "does not exist" in answer.message()
    assert ais("POST", "objects/none/x", {"action": "mpt-upload"}).message() == 'bucket "ais://none" does not exist'


def test_after_the_end(ais: Ais, bucket: str) -> None:
    for end in ("complete", "abort"):
        upload = begin(ais, bucket)
        ais.put(bucket, "x", b"1", uploadId=upload, partNumber="1")
        if end == "complete":
            assert complete(ais, bucket, upload, 1).status == 200
        else:
            assert ais("DELETE", f"objects/{bucket}/x?uploadId={upload}", {"action": "mpt-abort"}).status == 200
        for answer in (
            complete(ais, bucket, upload, 1),
            ais("PUT", f"objects/{bucket}/x", b"1", uploadId=upload, partNumber="2"),
            ais("DELETE", f"objects/{bucket}/x?uploadId={upload}", {"action": "mpt-abort"}),
        ):
            assert answer.status == 404 and f"ais://{bucket}/x" in answer.message()
        assert ais.get(bucket, "x").body == b"1"


def appended(ais: Ais, bucket: str, handle: str, data: bytes) -> str:
    answer = ais.put(bucket, "x", data, append_type="append", append_handle=handle)
    return answer.headers["ais-append-handle"]


def flush(ais: Ais, bucket: str, handle: str):  # type: ignore[no-untyped-def]
    return ais("PUT", f"objects/{bucket}/x", b"", append_type="flush", append_handle=handle)


@pytest.mark.parametrize("before", [None, b"", b"before"])
def test_appends_are_visible_at_the_end(ais: Ais, served: Served, bucket: str, before: bytes | None) -> None:
    if before is not None:
        ais.put(bucket, "x", before)
        ais("PATCH", f"objects/{bucket}/x", {"action": "", "value": {"k": "v"}})
    pieces = [b"1", random.Random(1).randbytes(400_000), b"", b"end"]
    handle = ""
    with GatewayThread(served.clients, {ACCOUNT.access_key: ACCOUNT}) as other:
        for at, piece in enumerate(pieces):
            handle = appended(Ais(other.port) if at % 2 else ais, bucket, handle, piece)
        assert ais.get(bucket, "x").body == before if before is not None else ais.get(bucket, "x").status == 404
        ended = flush(Ais(other.port), bucket, handle)
    assert ended.status == 200 and "ais-append-handle" not in ended.headers
    assert ais.get(bucket, "x").body == (before or b"") + b"".join(pieces)
    custom = ais.head(bucket, "x", props="custom").headers.get("ais-custom-md")
    assert custom == ("k=v" if before is not None else None)
    again = flush(ais, bucket, handle)
    assert again.status == 404 and "does not exist" in again.message()


def test_a_piece_that_is_sent_again_counts_once(ais: Ais, bucket: str) -> None:
    first = appended(ais, bucket, "", b"1")
    second = appended(ais, bucket, first, b"2")
    assert appended(ais, bucket, first, b"2") == second
    assert flush(ais, bucket, second).status == 200
    assert ais.get(bucket, "x").body == b"12"


def test_more_pieces_than_an_upload_has_parts(ais: Ais, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append, "MAX_PARTS", 5)
    handle, whole = "", b""
    for number in range(17):
        piece = random.Random(number).randbytes(number)
        handle, whole = appended(ais, bucket, handle, piece), whole + piece
    assert flush(ais, bucket, handle).status == 200
    assert ais.get(bucket, "x").body == whole


def test_appends_that_are_refused(ais: Ais, bucket: str) -> None:
    for handle in ("x", "0" * 32, f"{'0' * 32}.99999", f"{'0' * 32}.-1"):
        assert ais("PUT", f"objects/{bucket}/x", b"1", append_type="append", append_handle=handle).status == 400
    unknown = ais("PUT", f"objects/{bucket}/x", b"1", append_type="append", append_handle=f"{'0' * 32}.1")
    assert unknown.status == 404
    assert ais("PUT", f"objects/{bucket}/x", b"", append_type="flush").status == 400
    assert ais("PUT", f"objects/{bucket}/x", b"", append_type="strange").status == 400
    handle = appended(ais, bucket, "", b"1")
    assert flush(ais, bucket, handle.partition(".")[0] + ".2").status == 404
    assert ais.get(bucket, "x").status == 404
    assert ais("PUT", "objects/none/x", b"1", append_type="append").status == 404


@table("change", ["replaced", "deleted"])
def test_an_append_to_an_object_that_changes_meanwhile(ais: Ais, served: Served, bucket: str, change: str) -> None:
    store = served.client.bucket(bucket)
    store.put("x", b"old ")
    changing = partial(store.put, "x", b"new ") if change == "replaced" else partial(store.delete, "x")
    with just_before(served.client._transport, "compose", changing):
        handle = appended(ais, bucket, "", b"piece")
    assert len(list(store.uploads())) == 1
    assert flush(ais, bucket, handle).status == 200
    assert ais.get(bucket, "x").body == (b"new piece" if change == "replaced" else b"piece")


def test_a_part_or_piece_that_arrives_again_at_the_end_is_told_and_ends_nothing(
    ais: Ais, served: Served, bucket: str
) -> None:
    transport, upload = served.client._transport, begin(ais, bucket)

    def part() -> None:
        assert ais("PUT", f"objects/{bucket}/x", b"part", uploadId=upload, partNumber="1").status == 200

    part()
    with just_before(transport, "compose", part):
        answer = complete(ais, bucket, upload, 1)
    assert (answer.status, "was replaced meanwhile" in answer.message()) == (409, True)
    assert complete(ais, bucket, upload, 1).status == 200
    first = appended(ais, bucket, "", b" and ")
    handle = appended(ais, bucket, first, b"piece")
    with just_before(transport, "compose", partial(appended, ais, bucket, first, b"piece")):
        answer = flush(ais, bucket, handle)
    assert (answer.status, "was replaced meanwhile" in answer.message()) == (409, True)
    assert flush(ais, bucket, handle).status == 200
    assert ais.get(bucket, "x").body == b"part and piece"
