"""Inventories of manifests: every form gives the same inventory, and a manifest with faults leaves the old one."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote_plus

import pytest

from ais_loader import Remote, errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.remote.manifest import Manifest
from ais_loader.values.entry_table import EntryTable
from ais_loader.wire.inventory import Row, rows_of
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import FaultProxy
from tests.table import table

WHEN = datetime(2026, 5, 1, 12, 30, 15, 250_000, tzinfo=UTC)
WHEN_NS = int(WHEN.timestamp()) * 10**9 + 250 * 10**6
NAMES = ["a b+c%d.wav", "ä/日本/🎧", "en/1", 'en/2,"quoted"', "z" * 300]
TAG = "0123456789abcdef0123456789abcdef"
S3 = Remote("s3://corpus/v1")
HEADER = ["name", "size", "etag", "last_modified"]

Rows = list[list[object]]


def rows() -> Rows:
    """Rows in no order."""
    found: Rows = [[name, at * 1000, TAG, WHEN.isoformat()] for at, name in enumerate(NAMES)]
    random.Random(5).shuffle(found)
    return found


def text_of(header: list[str], records: Rows) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([header, *records] if header else records)
    return text.getvalue()


def write_csv(path: Path) -> Path:
    (file := path / "m.csv").write_text(text_of(HEADER, rows()), newline="")
    return file


def write_csv_gz(path: Path) -> Path:
    (file := path / "m.CSV.gz").write_bytes(
        gzip.compress(text_of(["Key", "Size_Bytes", "ETag", "Modified"], keyed()).encode())
    )
    return file


def keyed() -> Rows:
    """Rows with the keys of the cloud bucket, and others outside the place."""
    found: Rows = [[f"v1/{name}", *rest] for name, *rest in rows()]
    return [*found, ["v1/", 0, TAG, ""], ["v1/en/", 0, TAG, ""], ["v10/en/1", 1, TAG, ""]]


def write_jsonl(path: Path) -> Path:
    lines = [json.dumps(dict(zip(HEADER, row, strict=True))) for row in rows()]
    lines[1] = json.dumps(dict(reversed(json.loads(lines[1]).items())) | {"more": [1]})
    (file := path / "m.jsonl").write_text("\n".join(["", *lines, ""]))
    return file


def write_parquet(path: Path) -> Path:
    import pyarrow
    import pyarrow.parquet

    columns = list(zip(*rows(), strict=True))
    table = pyarrow.table(
        {
            "name": columns[0],
            "size": columns[1],
            "etag": columns[2],
            "last_modified": [WHEN] * len(NAMES),
            "other": columns[1],
        }
    )
    pyarrow.parquet.write_table(table, file := path / "m.parquet")
    return file


def write_s3(path: Path, *, form: str = "CSV", versions: bool = False) -> Path:
    """Write a manifest.json with two files in data/."""
    import pyarrow
    import pyarrow.parquet

    header = ["Bucket", "Key", *(["VersionId", "IsLatest", "IsDeleteMarker"] if versions else [])]
    header += ["Size", "LastModifiedDate", "ETag"]
    records: Rows = []
    for key, size, tag, when in keyed():
        of_version: list[object] = ["", "true", "false"] if versions else []
        records.append(["corpus", key, *of_version, size, when, tag])
        if versions:
            records += [["corpus", key, "", "false", "false", 7, when, "old"]]
    if versions:
        records += [["corpus", "v1/deleted", "", "true", "true", 0, "", ""]]
    (path / "data").mkdir()
    files = []
    for number, part in enumerate((records[:3], records[3:])):
        name = f"part-{number}" + (".csv.gz" if form == "CSV" else ".parquet")
        if form == "CSV":
            coded: Rows = [[one[0], quote_plus(str(one[1])), *one[2:]] for one in part]
            (path / "data" / name).write_bytes(gzip.compress(text_of([], coded).encode()))
        else:
            columns = dict(zip([one.lower() for one in header], zip(*part, strict=True), strict=True))
            pyarrow.parquet.write_table(
                pyarrow.table({key: list(values) for key, values in columns.items()}), path / "data" / name
            )
        content = (path / "data" / name).read_bytes()
        files.append(
            {"key": f"inventories/x/data/{name}", "size": len(content), "MD5checksum": hashlib.md5(content).hexdigest()}
        )
    manifest = {
        "sourceBucket": "corpus",
        "destinationBucket": "arn:aws:s3:::lists",
        "version": "2016-11-30",
        "creationTimestamp": str(WHEN_NS // 10**6),
        "fileFormat": form,
        "fileSchema": ", ".join(header),
        "files": files,
    }
    (file := path / "manifest.json").write_text(json.dumps(manifest))
    return file


def write_s3_parquet(path: Path) -> Path:
    return write_s3(path, form="Parquet")


def write_s3_versions(path: Path) -> Path:
    return write_s3(path, versions=True)


WRITERS = [write_csv, write_csv_gz, write_jsonl, write_parquet, write_s3, write_s3_parquet, write_s3_versions]


def read(file: Path, remote: Remote = S3) -> list[Row]:
    return [row for block in Manifest(file, remote).blocks() for row in rows_of(block)]


@pytest.mark.slow
@table("write", WRITERS, ids=lambda write: write.__name__.removeprefix("write_"))
def test_every_form_has_the_same_rows(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    expected = [Row(name.encode(), at * 1000, WHEN_NS, f'"{TAG}"'.encode()) for at, name in enumerate(NAMES)]
    assert sorted(read(write(tmp_path))) == sorted(expected)


def test_columns_may_be_missing_but_for_name_and_size(tmp_path: Path) -> None:
    (file := tmp_path / "m.csv").write_text("size,name\r\n5,a\r\n\r\n0,b\r\n")
    assert read(file, Remote("gs://corpus")) == [Row(b"a", 5, 0, b""), Row(b"b", 0, 0, b"")]


def faulty_csv(text: str) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        (file := path / "m.csv").write_text(text)
        return file

    return write


def truncated(path: Path) -> Path:
    file = write_csv_gz(path)
    file.write_bytes(file.read_bytes()[:-20])
    return file


def other_s3(change: dict[str, object]) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        file = write_s3(path)
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
        return file

    return write


def damaged_s3(path: Path) -> Path:
    file = write_s3(path)
    part = path / "data" / "part-1.csv.gz"
    part.write_bytes(part.read_bytes()[:-20])
    return file


def no_parquet(path: Path) -> Path:
    (file := path / "m.parquet").write_bytes(b"PAR1 or not")
    return file


def other_form(path: Path) -> Path:
    (file := path / "m.orc").write_bytes(b"")
    return file


FAULTS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no name": (faulty_csv("path,size\na,1\n"), "has no column name or key; its columns are path, size"),
    "no size": (faulty_csv("name,bytes\na,1\n"), "has no column size or size_bytes"),
    "empty": (faulty_csv(""), "has no column name or key; its columns are none"),
    "a size that is none": (faulty_csv("name,size\na,1\nb,x\n"), "record 2: its size is 'x'"),
    "a negative size": (faulty_csv("name,size\na,-1\n"), "record 1: its size is '-1'"),
    "a short record": (faulty_csv("name,size\na,1\nb\n"), "record 2: has 1 columns instead of 2"),
    "a time that is none": (faulty_csv("name,size,modified\na,1,yesterday\n"), "its time is 'yesterday'"),
    "twice": (faulty_csv("name,size\na,1\nb,1\na,2\n"), "the name 'a' twice"),
    "truncated gzip": (truncated, "is damaged or incomplete"),
    "another bucket": (other_s3({"sourceBucket": "other"}), "is of the cloud bucket 'other'"),
    "another format": (other_s3({"fileFormat": "ORC"}), "has files of ORC"),
    "no files": (other_s3({"files": [{"key": "x/none.csv.gz"}]}), "is neither in this folder nor in data/"),
    "no manifest": (other_s3({"files": None}), "is no manifest.json of S3 Inventory"),
    "damaged": (damaged_s3, "its MD5 checksum is not the one"),
    "no Parquet": (no_parquet, "is no Parquet file"),
    "another form": (other_form, "need .parquet, .csv"),
}


@pytest.mark.slow
@table("fault", FAULTS)
def test_a_manifest_with_a_fault_leaves_the_old_inventory(
    cold: Bucket, remote_bucket: RemoteBucket, tmp_path: Path, fault: str
) -> None:
    cold.set(remote=Remote(f"{remote_bucket.url}/v1", endpoint=remote_bucket.endpoint))
    remote_bucket.put("v1/kept", b"1")
    old = cold.refresh_inventory()
    write, message = FAULTS[fault]
    file = write(tmp_path)
    if file.name == "manifest.json" and fault != "another bucket":
        file.write_text(file.read_text().replace('"sourceBucket": "corpus"', f'"sourceBucket": "{remote_bucket.name}"'))
    with pytest.raises(errors.InvalidRequest, match=message.replace("(", r"\(")):
        cold.refresh_inventory(manifest=file)
    assert cold.inventory() == old and [entry.name for entry in cold.entries()] == ["kept"]


def test_a_manifest_is_listed_as_the_cloud_would_be(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, tmp_path: Path
) -> None:
    names = ["a", "b/ü", "b/z", "c"]
    tags = {name: remote_bucket.put(name, name.encode() * 3) for name in names}
    by_listing = [(info.name, info.size_bytes, info.version) for info in cold.objects()]
    records: Rows = [[name, 3 * len(name.encode()), tags[name].strip('"')] for name in reversed(names)]
    records += [["a//b", 1, ""], ["x/../y", 1, ""]]
    (file := tmp_path / "m.csv").write_text(text_of(["key", "size", "etag"], records))
    proxy.forget()
    info = cold.refresh_inventory(manifest=str(file))
    assert (info.count, info.skipped, info.skipped_names) == (4, 2, ("a//b", "x/../y"))
    assert (info.source, info.has_etags) == ("manifest", True)
    assert [(info.name, info.size_bytes, info.version) for info in cold.objects()] == by_listing
    assert proxy.count("*") == 0
    assert [cold.get(name) for name in names] == [name.encode() * 3 for name in names]
    assert cold.refresh_inventory("b/", manifest=file).count == 2
    with pytest.raises(FileNotFoundError):
        cold.refresh_inventory(manifest=tmp_path / "none.csv")


@pytest.mark.slow
def test_names_of_any_length_are_marked_and_sent(cold: Bucket, remote_bucket: RemoteBucket, tmp_path: Path) -> None:
    names = [f"{number:04}" + "ü" * 510 for number in range(5000)]  # 1,024 bytes each
    (file := tmp_path / "m.csv").write_text("name,size\n" + "".join(f"{name},1\n" for name in names))
    assert cold.refresh_inventory(manifest=file).count == 5000
    cold.put(names[0], b"22")
    cold.delete(names[1])
    table = cold.entries()
    assert isinstance(table, EntryTable) and table.names(range(len(table))) == [names[0], *names[2:]]
    assert [info.size_bytes for info in cold.objects(names[0])] == [2]


@pytest.mark.slow
def test_a_large_manifest_in_no_order_is_sorted_and_a_late_duplicate_found(
    cold: Bucket, tmp_path: Path, remote_bucket: RemoteBucket
) -> None:
    names = [f"{number % 7}/{number:06}" for number in range(70_000)]
    random.Random(1).shuffle(names)
    (file := tmp_path / "m.csv").write_text("name,size\n" + "".join(f"{name},1\n" for name in names))
    counts: list[int] = []
    assert cold.refresh_inventory(manifest=file, progress=counts.append).count == 70_000
    assert counts[-1] == 70_000
    table = cold.entries()
    assert isinstance(table, EntryTable) and table.names(range(70_000)) == sorted(names)
    assert [entry.name for entry in cold.entries("3/000")] == sorted(name for name in names if name.startswith("3/000"))
    assert [info.name for info in cold.objects("6/06999")] == sorted(
        name for name in names if name.startswith("6/06999")
    )
    file.write_text(file.read_text() + f"{names[0]},1\n")
    with pytest.raises(errors.InvalidRequest, match=f"the name '{names[0]}' twice"):
        cold.refresh_inventory(manifest=file)
    assert len(cold.entries()) == 70_000


def test_a_web_server_is_listed_from_a_manifest(client: object, bucket_name: str, tmp_path: Path, cold: Bucket) -> None:
    bucket = cold.client.create_bucket(f"{bucket_name}-web", remote=Remote("http://127.0.0.1:9/data"))
    with pytest.raises(errors.Unsupported, match="give a manifest"):
        bucket.refresh_inventory()
    (file := tmp_path / "m.csv").write_text("name,size\nen/1,5\nen/2,6\n")
    assert bucket.refresh_inventory(manifest=file).size_bytes == 11
    assert [(info.name, info.size_bytes) for info in bucket.objects()] == [("en/1", 5), ("en/2", 6)]
    bucket.drop_inventory()
    assert list(bucket) == []
    cold.client.delete_bucket(bucket.name)
