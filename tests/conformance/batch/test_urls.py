"""ais:// URLs in place of entries: everything after the bucket is the name, and taken literally."""

from __future__ import annotations

import pytest
from conformance_kit import contents

from ais_loader import Bucket, Client, Entry, Status, errors
from ais_loader.values.urls import ARCHIVE_EXTENSIONS
from storage_node.store.archives.kinds import SUFFIXES

LITERAL = ["a", "a/b.wav", "a#b", "a?b=c", "a%20b", "%2F", "a b", "é/音", "a&b=c;d", "x.tarball/y", "a:b", "a\\b", "~"]


@pytest.mark.parametrize("name", LITERAL)
def test_a_url_names_the_object_literally(client: Client, bucket: Bucket, name: str) -> None:
    bucket.put(name, name.encode())
    [item] = client.get_batch([f"ais://{bucket.name}/{name}"])
    assert item.tobytes() == name.encode()
    assert item.entry == Entry(bucket.name, name)


@pytest.mark.parametrize(
    ("path", "name", "member"),
    [
        ("s.tar/m", "s.tar", "m"),
        ("d/s.tar/m/n.wav", "d/s.tar", "m/n.wav"),
        ("s.tar.gz/m", "s.tar.gz", "m"),
        ("s.tgz/m", "s.tgz", "m"),
        ("s.tar.lz4/m", "s.tar.lz4", "m"),
        ("s.tar.zst/m", "s.tar.zst", "m"),
        ("s.zip/m", "s.zip", "m"),
        ("outer.tar/inner.tar/m", "outer.tar", "inner.tar/m"),
        ("s.tar", "s.tar", None),
        ("s.tar/", "s.tar/", None),
        ("s.tarx/m", "s.tarx/m", None),
        ("s.TAR/m", "s.TAR", "m"),
        ("s.tlz4/m", "s.tlz4", "m"),
        ("s.tzst/m", "s.tzst", "m"),
        ("s.tar/m#1?2%3", "s.tar", "m#1?2%3"),
    ],
)
def test_a_url_is_split_after_the_first_archive(client: Client, path: str, name: str, member: str | None) -> None:
    [item] = client.get_batch([f"ais://no-such-bucket/{path}"], on_error="placeholder")
    assert item.entry == Entry("no-such-bucket", name, member) == Entry.from_url(f"ais://no-such-bucket/{path}")
    assert item.status == Status.NOT_FOUND


def test_urls_know_the_archives_that_nodes_index() -> None:
    assert set(ARCHIVE_EXTENSIONS) == set(SUFFIXES)


def test_an_entry_is_never_split(client: Client, bucket: Bucket) -> None:
    bucket.put("s.tar/m", b"an object of its own")
    assert contents(client.get_batch([Entry(bucket.name, "s.tar/m")])) == [b"an object of its own"]
    assert contents(bucket.get_batch(["s.tar/m"])) == [b"an object of its own"]


def test_urls_and_entries_mix(client: Client, bucket: Bucket) -> None:
    bucket.put("a", b"1")
    bucket.put("b", b"2")
    entries = [f"ais://{bucket.name}/b", Entry(bucket.name, "a"), f"ais://{bucket.name}/a"]
    assert contents(client.get_batch(entries)) == [b"2", b"1", b"1"]


NO_URLS = ["", "a", "ais://", "ais://bucket", "ais://bucket/", "ais:///name", "AIS://b/n", "s3://b/n", "/b/n"]


@pytest.mark.parametrize("text", NO_URLS)
def test_a_string_that_is_no_url_is_refused_at_once(client: Client, text: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="ais://"):
        client.get_batch([text])
    with pytest.raises(errors.InvalidRequest, match="ais://"):
        Entry.from_url(text)


@pytest.mark.parametrize("entry", [None, 5, b"ais://b/n", ("b", "n")], ids=repr)
def test_what_is_neither_an_entry_nor_a_string_is_a_type_error(client: Client, entry: object) -> None:
    with pytest.raises(TypeError):
        client.get_batch([entry])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        Entry.from_url(entry)  # type: ignore[arg-type]
