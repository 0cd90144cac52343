"""What a notebook shows of buckets, listings and batches: the first rows, escaped, and nothing is moved on by it."""

from __future__ import annotations

import re
from datetime import datetime

from conformance_kit import contents, fill

from ais_loader import Bucket, Client, Entry


def cells(html: str) -> list[list[str]]:
    return [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)[1:]]


def test_a_bucket_and_a_listing_are_tables_of_their_first_objects(client: Client, bucket: Bucket) -> None:
    fill(bucket, {"<b>&": b"1" * 1234, "a": b""})
    html = bucket._repr_html_()
    rows = cells(html)
    assert [row[:2] for row in rows] == [["&lt;b&gt;&amp;", "1,234"], ["a", "0"]]
    assert [row[3] for row in rows] == [info.version for info in bucket.objects()]
    stored = datetime.strptime(rows[0][2], "%Y-%m-%d %H:%M:%S")
    assert abs((datetime.now() - stored).total_seconds()) < 600
    assert f"<caption>ais://{bucket.name}/, 2 in all</caption>" in html
    fill(bucket, {f"n/{at:02d}": b"" for at in range(21)})
    listing = bucket.objects("n/")
    assert next(listing).name == "n/00"
    assert [row[0] for row in cells(listing._repr_html_())] == [f"n/{at:02d}" for at in range(20)]
    assert "and more" in listing._repr_html_() and repr(listing) == f"<Listing of ais://{bucket.name}/n/>"
    assert [info.name for info in listing] == [f"n/{at:02d}" for at in range(1, 21)]
    assert "no-such-bucket" in client.bucket("no-such-bucket")._repr_html_()


def test_a_batch_is_a_table_of_its_entries_and_is_not_read_by_it(client: Client, bucket: Bucket) -> None:
    fill(bucket, {"a<": b"123", "b": b"4"})
    batch = client.get_batch([Entry(bucket.name, "a<", start=1, length=2), Entry(bucket.name, "b")])
    assert cells(batch._repr_html_()) == [
        ["0", bucket.name, "a&lt;", "", "1 to 3", ""],
        ["1", bucket.name, "b", "", "all", ""],
    ]
    assert contents(batch) == [b"23", b"4"]
    names = bucket.get_batch(["b"])
    assert cells(names._repr_html_()) == [["0", bucket.name, "b", "", "all", ""]]
    assert names.tobytes() == [b"4"]
    table = bucket.entries()
    assert repr(table) == f"<EntryTable of 2 objects of bucket {bucket.name!r}>"
    assert [row[2] for row in cells(table._repr_html_())] == ["a&lt;", "b"]  # type: ignore[attr-defined]
