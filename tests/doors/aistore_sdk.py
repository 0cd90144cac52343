"""Checks of the gateway with AIStore's SDK: `python aistore_sdk.py ENDPOINT [TOKEN]`.

Prints `ok NAME` or `FAILED NAME REASON` for each check, and exits with 1 if one failed. It needs the package aistore,
and nothing of this repository. Buckets that it makes are deleted.
"""

from __future__ import annotations

import io
import random
import sys
import tarfile
import traceback
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from aistore.sdk import Client, ListObjectFlag
from aistore.sdk.archive_config import ArchiveConfig, ArchiveMode
from aistore.sdk.errors import AISError, ErrBckAlreadyExists, ErrBckNotFound, ErrObjNotFound

CHECKS: list[Callable[[Client, Any], None]] = []
NAMES = ["%", "%25", "%3D", "a+b", "a b", "dir/x y+é#?.txt", "track?name=lofi&v=1", "-x", ".x", "你好", r"y(s\3\)"]


def check(function: Callable[[Client, Any], None]) -> Callable[[Client, Any], None]:
    CHECKS.append(function)
    return function


def data(size_bytes: int) -> bytes:
    return random.Random(size_bytes).randbytes(size_bytes)


def put(bucket: Any, name: str, content: bytes) -> Any:
    found = bucket.object(name)
    found.get_writer().put_content(content)
    return found


def raises(kind: type[Exception], call: Callable[[], object]) -> Exception:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def packed(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


@check
def two_hundred_objects(client: Client, bucket: Any) -> None:
    for number in range(200):
        put(bucket, f"o/{number:03d}", data(number * 100))
    for number in range(200):
        assert bucket.object(f"o/{number:03d}").get_reader().read_all() == data(number * 100), number
    listed = bucket.list_all_objects(prefix="o/", page_size=33)
    assert [entry.name for entry in listed] == [f"o/{number:03d}" for number in range(200)]
    assert [entry.size for entry in listed] == [number * 100 for number in range(200)]
    for number in range(0, 200, 2):
        bucket.object(f"o/{number:03d}").delete()
    assert len(bucket.list_all_objects()) == 100


@check
def large_objects(client: Client, bucket: Any) -> None:
    whole = data(20 << 20)
    found = put(bucket, "large", whole)
    assert found.get_reader().read_all() == whole
    assert b"".join(found.get_reader(chunk_size=1 << 16)) == whole
    assert b"".join(found.get_reader(num_workers=4)) == whole
    assert found.get_reader(byte_range="bytes=1000000-1999999").read_all() == whole[1_000_000:2_000_000]
    assert found.get_reader(direct=True).read_all() == whole
    with found.get_reader().as_file() as file:
        assert file.read(7) == whole[:7] and file.read() == whole[7:]
    assert found.get_reader().raw().read() == whole


@check
def empty_objects(client: Client, bucket: Any) -> None:
    found = put(bucket, "empty", b"")
    assert found.get_reader().read_all() == b"" and found.props.size == 0
    with found.get_reader().as_file() as file:
        assert file.read() == b""


@check
def names(client: Client, bucket: Any) -> None:
    for name in NAMES:
        assert put(bucket, name, name.encode()).get_reader().read_all() == name.encode(), name
        assert [entry.name for entry in bucket.list_objects_iter(prefix=name)].count(name) == 1, name
    assert {entry.name for entry in bucket.list_all_objects()} == set(NAMES)


@check
def attributes(client: Client, bucket: Any) -> None:
    found = put(bucket, "x", b"123")
    reader = found.get_reader()
    assert reader.attributes.size == 3 and reader.attributes.obj_version and reader.attributes.checksum_value
    assert reader.attributes.access_time and reader.attributes.custom_metadata == {}
    found.get_writer().set_custom_props({"a": "1", "b": "2=3"})
    found.get_writer().set_custom_props({"c": "4"})
    assert found.props.custom_metadata == {"a": "1", "b": "2=3", "c": "4"} and found.props.present
    found.get_writer().set_custom_props({"d": "5"}, replace_existing=True)
    assert found.props.custom_metadata == {"d": "5"} and found.get_reader().read_all() == b"123"


@check
def appends(client: Client, bucket: Any) -> None:
    found = put(bucket, "x", b"begin,")
    writer, handle = found.get_writer(), ""
    for piece in (b"1,", b"2,", b"3"):
        handle = writer.append_content(piece, handle)
        assert found.get_reader().read_all() == b"begin,"
    assert writer.append_content(b"", handle, True) == ""
    assert found.get_reader().read_all() == b"begin,1,2,3"
    for mode, expected in (("a", b"begin,1,2,3more"), ("w", b"more")):
        with found.get_writer().as_file(mode=mode) as file:
            file.write(b"mo")
            file.flush()
            file.write(b"re")
        assert found.get_reader().read_all() == expected, mode


@check
def parts(client: Client, bucket: Any) -> None:
    found = bucket.object("x")
    upload = found.multipart_upload().create()
    for number in (3, 1, 2):
        upload.add_part(number).put_content(data(number << 20))
    raises(ErrObjNotFound, lambda: found.get_reader().read_all())
    assert upload.complete().status_code == 200
    assert found.get_reader().read_all() == data(1 << 20) + data(2 << 20) + data(3 << 20)
    assert b"".join(found.get_reader(num_workers=3)) == data(1 << 20) + data(2 << 20) + data(3 << 20)
    assert raises(AISError, upload.complete).status_code == 404  # type: ignore[attr-defined]
    other = found.multipart_upload().create()
    raises(AISError, lambda: other.add_part(1).put_content(b""))
    raises(AISError, other.complete)
    assert other.abort().status_code == 200


@check
def lists(client: Client, bucket: Any) -> None:
    for name in ("a", "d/x", "d/y/z", "e"):
        put(bucket, name, b"12")

    def listed(*flags: Any, **options: Any) -> list[str]:
        return [entry.name for entry in bucket.list_all_objects(flags=list(flags), **options)]

    assert listed() == ["a", "d/x", "d/y/z", "e"]
    assert listed(ListObjectFlag.NO_RECURSION) == ["a", "d/", "e"]
    assert listed(ListObjectFlag.NO_RECURSION, prefix="d/") == ["d/x", "d/y/"]
    assert listed(start_after="d/x", page_size=1) == ["d/y/z", "e"]
    sizes = [entry.size for entry in bucket.list_all_objects(flags=[ListObjectFlag.NAME_ONLY])]
    assert sizes == [0, 0, 0, 0]
    (entry,) = bucket.list_objects(prefix="a", props="name,size,checksum,atime,version,cached,custom").entries
    assert entry.is_ok() and entry.is_cached() and entry.checksum and entry.atime and entry.version
    assert list(bucket.list_objects_iter(prefix="none")) == []


@check
def archives(client: Client, bucket: Any) -> None:
    members = {"a.txt": b"alpha", "a.cls": b"1", "b.txt": b"beta"}
    found = put(bucket, "s.tar", packed(members))
    assert [entry.name for entry in bucket.list_archive("s.tar")] == [f"s.tar/{name}" for name in sorted(members)]
    for name, content in members.items():
        assert found.get_reader(archive_config=ArchiveConfig(archpath=name)).read_all() == content
    wanted = ArchiveConfig(regex="a", mode=ArchiveMode.WDSKEY)
    with tarfile.open(fileobj=io.BytesIO(found.get_reader(archive_config=wanted).read_all())) as tar:
        assert tar.getnames() == ["a.txt", "a.cls"]
    missing = ArchiveConfig(archpath="none")
    raises(AISError, lambda: found.get_reader(archive_config=missing).read_all())


@check
def buckets(client: Client, bucket: Any) -> None:
    assert bucket.name in [one.name for one in client.cluster().list_buckets()]
    raises(ErrBckAlreadyExists, bucket.create)
    bucket.create(exist_ok=True)
    put(bucket, "p/1", b"12345")
    put(bucket, "q", b"1")
    assert bucket.summary(prefix="p/")["TotalSize"]["size_all_present_objs"] == "5"
    assert bucket.info()[1]["ObjCount"]["obj_count_present"] == "2"
    other = client.bucket(f"{bucket.name}-none")
    other.delete(missing_ok=True)
    raises(ErrBckNotFound, other.delete)
    raises(ErrBckNotFound, other.list_objects)
    raises(ErrBckNotFound, other.summary)
    raises(ErrBckNotFound, lambda: other.object("x").get_reader().read_all())
    for name in ("*", " ", "$x", "~x", "a/b", ""):
        raises(AISError, client.bucket(name).create)


@check
def errors(client: Client, bucket: Any) -> None:
    missing = bucket.object("none")
    raises(ErrObjNotFound, lambda: missing.get_reader().read_all())
    raises(ErrObjNotFound, missing.delete)
    raises(AISError, missing.head)
    put(bucket, "x", b"123")
    refused = raises(AISError, lambda: bucket.object("x").get_reader(byte_range="bytes=9-").read_all())
    assert refused.status_code == 416  # type: ignore[attr-defined]
    raises(AISError, lambda: put(bucket, "a//b", b""))


@check
def the_cluster(client: Client, bucket: Any) -> None:
    cluster = client.cluster()
    assert cluster.is_ready()
    targets = cluster.get_info().tmap
    assert targets and set(cluster.get_performance()) == set(targets)
    assert all(isinstance(text, str) for text in cluster.get_cluster_logs().values())


def run(endpoint: str, token: str) -> Iterator[tuple[str, str]]:
    """Yield each check's name, and why it failed; "" if it did not."""
    client = Client(endpoint, token=token)
    for function in CHECKS:
        bucket = client.bucket(f"sdk-{uuid.uuid4().hex[:12]}")
        try:
            bucket.create()
            function(client, bucket)
            why = ""
        except Exception as error:  # noqa: BLE001 - the line says what it was
            at = traceback.extract_tb(error.__traceback__)[-1]
            why = f"{type(error).__name__} {str(error)[:300]} ({at.name}:{at.lineno})".replace("\n", " ")
        finally:
            bucket.delete(missing_ok=True)
        yield function.__name__, why


def main() -> int:
    failed = 0
    for name, why in run(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""):
        print(f"FAILED {name} {why}" if why else f"ok {name}", flush=True)
        failed += bool(why)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
