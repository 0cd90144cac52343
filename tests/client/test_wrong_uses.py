"""Wrong uses as somebody new types them: each says what was wrong and what to do, word for word, and leaves nothing.

The lines below are run as they stand, one after the other, against a store of pictures in the working folder.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ais_loader
from ais_loader import Entry, ShufflePlan, connect
from ais_loader.extras import install_command
from ais_loader.integrations.fsspec import AISFileSystem
from ais_loader.testing import throwaway_folder
from tests.table import table
from tests.tar_kit import packed_tar

IMPORTS = """
from pathlib import Path
from torch.utils.data import DataLoader
import ais_loader
from ais_loader import *
from ais_loader import decoders
"""
NAMES = [f"cat/{number}.png" for number in range(6)]

WRONG: list[tuple[str, str]] = [
    # -- where the store is
    (
        'connect("localhost:7480")',
        "InvalidRequest: 'localhost:7480' has no scheme: need grpc://localhost:7480; a folder of that name is "
        "{here}/localhost:7480",
    ),
    (
        'connect("localhost")',
        "InvalidRequest: 'localhost' is the address of a machine: need grpc://localhost:PORT, where PORT is 7480 "
        "unless the node was started with another; a folder of that name is {here}/localhost",
    ),
    (
        'connect("http://node-1:7480")',
        "InvalidRequest: 'http://node-1:7480': a storage node's URL is grpc://node-1:7480",
    ),
    (
        'connect("ais://pictures")',
        "InvalidRequest: 'ais://pictures' names something in a store, not the store: connect to the store itself, by "
        "its path, file:///path or grpc://host:port, and then use client.bucket('pictures')",
    ),
    (
        'connect("$HOME/store")',
        "InvalidRequest: '$HOME/store': $HOME is a variable of the shell, which is not replaced here: pass the path "
        "through os.path.expandvars; a folder of that name is {here}/$HOME/store",
    ),
    (
        r'connect(r"C:\data")',
        r"InvalidRequest: 'C:\\data' is a Windows path, and this is not Windows: need a path such as /data/store (in "
        r"WSL, drive C: is /mnt/c); to use a folder of that name, write './C:\\data'",
    ),
    (
        'connect("d:/data", mode="r")',
        "InvalidRequest: 'd:/data' is a Windows path, and this is not Windows: need a path such as /data/store (in "
        "WSL, drive C: is /mnt/c); to use a folder of that name, write './d:/data'",
    ),
    ("connect()", "InvalidRequest: no store named: pass a URL or a path, or set AIS_LOADER_URL"),
    (
        'connect("stoer", mode="r")',
        'StoreNotFound: no store at {here}/stoer; look at the path, or mode="a" creates one',
    ),
    (
        'connect("note.txt")',
        "StoreFormatError: {here}/note.txt is not a folder: a store consists of one folder or several",
    ),
    (
        'connect("note.txt/store")',
        "StoreFormatError: {here}/note.txt is not a folder, and nothing can be at {here}/note.txt/store: a store "
        "consists of one folder or several",
    ),
    (
        'connect("grpc://no-machine.invalid:7480", options=ClusterOptions(retry_s=0)).buckets()',
        "NodeUnavailable: no-machine.invalid:7480: no machine of that name can be found; look at the URL",
    ),
    (
        'connect("grpc://127.0.0.1:70000")',
        "InvalidRequest: 'grpc://127.0.0.1:70000': '127.0.0.1:70000' is not host:port with a port from 1 to 65535, as "
        "in grpc://10.0.0.5:7480",
    ),
    ('Entry("b", "n", lenght=3)', "TypeError: Entry: no option 'lenght'; did you mean 'length'?"),
    ('connect("store", mod="r")', "TypeError: connect: no option 'mod'; did you mean 'mode'?"),
    (
        'connect("node://store")',
        "InvalidRequest: 'node://store': a path follows the two slashes of node://; need node://{here}/store",
    ),
    (
        'connect("grcp://127.0.0.1:7480")',
        "InvalidRequest: 'grcp://127.0.0.1:7480': unknown scheme 'grcp'; need file:///path, a path, node:///path, or "
        "grpc://host:port; did you mean 'grpc'?",
    ),
    (
        'connect("s3://pictures")',
        "InvalidRequest: 's3://pictures' is storage outside, not a store: connect to a store, and then use "
        "client.create_bucket(NAME, remote='s3://pictures')",
    ),
    (
        'client.bucket("pictures").get("cafe\u0301.png")',
        "ObjectNotFound: no object 'cafe\u0301.png' in bucket 'pictures'; accents of this name are characters of their "
        "own (Unicode NFD), those of most names are not (NFC)",
    ),
    (
        'BatchLoader(MapDataset(client, ["ais://pictures/cat/1.png"]), [], num_workers=4)',
        "TypeError: BatchLoader: no option 'num_workers'; worker processes are workers=",
    ),
    (
        'connect("papers")',
        "StoreFormatError: {here}/papers is not a store, and not empty either (thesis.tex); look at the path, or give "
        "an empty or new folder",
    ),
    ('connect("store", mode="w")', 'InvalidRequest: mode=\'w\': need "a", to read and write, or "r", to read'),
    (
        'connect("store")',
        "StoreLocked: {here}/store is open for writing by this process; one writer at a time, any number of readers: "
        'connect(..., mode="r")',
    ),
    # -- which bucket, and which object
    (
        'client.bucket("picture").get("cat/1.png")',
        "BucketNotFound: bucket 'picture' does not exist; create_bucket makes it; did you mean 'pictures'?",
    ),
    (
        'client.bucket("ais://pictures").head("cat/1.png")',
        "BucketNotFound: bucket 'ais://pictures' does not exist; create_bucket makes it; did you mean 'pictures'?",
    ),
    (
        'client.create_bucket("pictures")',
        "BucketExists: bucket 'pictures' exists; pass exist_ok=True to use it",
    ),
    (
        'client.create_bucket("my pictures")',
        "InvalidName: bucket name 'my pictures': need 1 to 63 of the characters a-z A-Z 0-9 - _ . and no leading dot",
    ),
    (
        'client.create_bucket("pictures/cat")',
        "InvalidName: bucket name 'pictures/cat': need 1 to 63 of the characters a-z A-Z 0-9 - _ . and no leading dot",
    ),
    (
        'client.delete_bucket("pictures")',
        "BucketNotEmpty: bucket 'pictures' holds objects; pass force=True to delete them with it",
    ),
    (
        'bucket.get("ais://pictures/cat/1.png")',
        "ObjectNotFound: no object 'ais://pictures/cat/1.png' in bucket 'pictures'; did you mean 'cat/1.png', without "
        "the bucket?",
    ),
    (
        'bucket.get("/cat/1.png")',
        "ObjectNotFound: no object '/cat/1.png' in bucket 'pictures', and there can be none: it begins or ends with "
        "'/'",
    ),
    (
        'bucket.get(Entry("pictures", "cat/1.png"))',
        "InvalidRequest: object name Entry(bucket='pictures', name='cat/1.png', [...]: need a str, got Entry",
    ),
    (
        'bucket.entries("/cat/")',
        "InvalidRequest: entries('/cat/'): no object's name begins with '/'; did you mean 'cat/'?",
    ),
    (
        'bucket.download("cat/", "note.txt")',
        "InvalidRequest: note.txt is not a folder: download writes files below a folder",
    ),
    (
        'bucket.get("cat/*.png")',
        "ObjectNotFound: no object 'cat/*.png' in bucket 'pictures'; a name is not a pattern: "
        "Bucket.entries(pattern=...) lists the objects that match one",
    ),
    (
        'list(bucket.get_batch(["cat/1.png", "*.npy"]))',
        "ObjectNotFound: entry 1: no object '*.npy' in bucket 'pictures'; a name is not a pattern: "
        "Bucket.entries(pattern=...) lists the objects that match one",
    ),
    ('client.open("cat/1.png")', "InvalidRequest: 'cat/1.png': need a URL like ais://bucket/name"),
    (
        'Entry.from_url("ais://pictures")',
        "InvalidRequest: 'ais://pictures': need both a bucket and a name, as in ais://bucket/name",
    ),
    # -- writing
    (
        'bucket.put("a", "text")',
        "TypeError: data is a str: pass bytes, or pathlib.Path(...) to store a file's contents",
    ),
    ('bucket.put("a", Path("none.png"))', "InvalidRequest: none.png: no such file"),
    ('bucket.put("../a", b"")', "InvalidName: object name '../a': it has the component '..'"),
    (
        'bucket.transform("pictures", etl="no-such", to_prefix="small/", prefix="cat/", name="my job")',
        "InvalidName: job name 'my job': need 1 to 63 of the characters a-z A-Z 0-9 - _ . and no leading dot",
    ),
    ('bucket.put("/cat/1.png", b"")', "InvalidName: object name '/cat/1.png': it begins or ends with '/'"),
    ('bucket.put("a\\0b", b"")', "InvalidName: object name 'a\\x00b': it contains a NUL character"),
    (
        'with open("note.txt") as file: bucket.put("a", file)',
        "TypeError: the file was opened in text mode: open it with 'rb'",
    ),
    ('bucket.put_folder("note.txt")', "InvalidRequest: note.txt: not a folder"),
    ('bucket.put_many({"a": b"1"})', "TypeError: objects is a dict: pass its items()"),
    ('bucket.put_folder("pictures")', "InvalidRequest: pictures: no such folder"),
    (
        'reader.bucket("pictures").put("a", b"1")',
        'StoreReadOnly: the store is open for reading only; connect with mode="a" to write',
    ),
    # -- batches
    ('client.get_batch("ais://pictures/cat/1.png")', "TypeError: entries is one str; pass a list of entries"),
    (
        "client.get_batch(NAMES)",
        "InvalidRequest: 'cat/0.png': need an Entry, or a URL like ais://bucket/name; for a plain name, "
        "pass bucket=...",
    ),
    (
        'list(client.get_batch([Entry("pictures", "cat/")]))',
        "ObjectNotFound: no object 'cat/' in bucket 'pictures', and there can be none: it begins or ends with '/'",
    ),
    ("bucket.get_batch([1, 2])", "InvalidRequest: a name must be a str with a UTF-8 form: 1 is a int"),
    ("bucket.get_batch(NAMES, timeout=3)", "TypeError: get_batch: no option 'timeout'; did you mean 'timeout_s'?"),
    ("bucket.get_batch(None)", "TypeError: names is a NoneType; pass a list of names"),
    ("bucket.get_batch([None])", "InvalidRequest: a name must be a str with a UTF-8 form: None is a NoneType"),
    ("client.get_batch(5)", "TypeError: entries is a int; pass a list of entries"),
    ("client.get_batch(NAMES, bucket=bucket)", "TypeError: bucket is a Bucket; need a str; pass its name"),
    (
        'client.get_batch(NAMES, bucket=bucket, archive="tar")',
        "TypeError: bucket is a Bucket; need a str; pass its name",
    ),
    (
        'client.get_batch([Entry("pictures", "a", version=3)])',
        "InvalidRequest: a version must be a str with a UTF-8 form: 3 is a int",
    ),
    ('client.get_batch([Entry(5, "a")])', "InvalidRequest: Entry.bucket must be a str: 5 is a int"),
    ('bucket.get_batch(NAMES, ordered="no")', "TypeError: ordered is a str; need True or False"),
    ("list(client.get_batches([NAMES], in_flight='3'))", "TypeError: in_flight is a str; need an int"),
    ("bucket.objects(page_size=2.5)", "TypeError: page_size is a float; need an int"),
    ("bucket.summary(depth=-1)", "InvalidRequest: depth=-1: need at least 0"),
    ('bucket.set(copies="2")', "TypeError: copies is a str; need an int"),
    ('client.create_bucket("b", copies=0)', "InvalidRequest: copies=0: need at least 1"),
    ('bucket.put("a", b"1", checksum="90f599e3")', "TypeError: checksum is a str; need the CRC-32C as an int"),
    (
        'bucket.put("a", b"1", checksum=-1)',
        "InvalidRequest: checksum=-1: a CRC-32C is a number from 0 to 4294967295",
    ),
    ("bucket.delete_many(5)", "TypeError: names is a int; pass a list of names"),
    ("bucket.delete_prefix(None)", "InvalidRequest: prefix None: need a str, got NoneType"),
    ('bucket.download(None, "out")', "InvalidRequest: prefix None: need a str, got NoneType"),
    ("bucket.entries(pattern=5)", "TypeError: pattern is a int; need shell patterns such as '*.wav'"),
    ('connect("  ")', "InvalidRequest: no store named: pass a URL or a path, or set AIS_LOADER_URL"),
    (
        'bucket.get("x" * 2000)',
        "ObjectNotFound: no object '" + "x" * 77 + "...' in bucket 'pictures', and there can be none: names have 1 to "
        "1,024 bytes of UTF-8, and this one has 2,000",
    ),
    (
        'client.get_batch(NAMES, buckt="pictures")',
        "TypeError: get_batch: no option 'buckt'; did you mean 'bucket'?",
    ),
    ('bucket.get_batch(NAMES, ect="x")', "TypeError: get_batch: no option 'ect'; did you mean 'etl'?"),
    (
        "bucket.get_batch(NAMES, quick=True)",
        "TypeError: get_batch: no option 'quick'; its options are etl, args, on_error, timeout_s, ordered, streaming, "
        "assembly, colocation, verify_ranges",
    ),
    (
        'bucket.get_batch(NAMES, on_error="skip")',
        "InvalidRequest: on_error='skip': one of 'raise', 'placeholder'",
    ),
    (
        'Entry("pictures", "a.npy", start=-1)',
        "RangeError: 'a.npy': start=-1: need 0 or more, because ranges are counted from an object's first byte",
    ),
    (
        'Entry("pictures", "a.npy", length=-1)',
        "RangeError: 'a.npy': length=-1: need 0 or more, because ranges are counted from an object's first byte",
    ),
    (
        'Entry("pictures", "a.npy", ranges=[(0, 4), (-4, 4)])',
        "RangeError: 'a.npy': start=-4: need 0 or more, because ranges are counted from an object's first byte",
    ),
    (
        'Entry("pictures", "a.npy", start=0.5)',
        "TypeError: 'a.npy': start is a float; need a whole number of bytes",
    ),
    (
        'Entry("pictures", "a.npy", ranges=(0, 4))',
        "TypeError: 'a.npy': ranges=(0, 4): need pairs of a start and a length in bytes",
    ),
    (
        'bucket.get("cat/1.png", start=-1)',
        "RangeError: 'cat/1.png': start=-1: need 0 or more, because ranges are counted from an object's first byte",
    ),
    (
        "batch = bucket.get_batch(NAMES); list(batch); list(batch)",
        "InvalidRequest: this batch has been read already: each item is delivered once; keep list(batch), or fetch the "
        "entries again",
    ),
    (
        "import pickle; pickle.dumps(bucket.get_batch(NAMES))",
        "TypeError: a Batch is a response that this process is receiving, and cannot be pickled or copied: send "
        "list(batch), whose items have their bytes, or batch.tobytes() or batch.packed(); or send the entries, and "
        "fetch them in the other process",
    ),
    (
        'list(client.get_batch([Entry("pictures", "cat/1.png", start=2, length=100)]))',
        "RangeError: 'cat/1.png': start=2, length=100 reaches past the end of 3 bytes",
    ),
    (
        'list(client.get_batch([Entry("pictures", "shard.tar", "2.png")]))',
        "MemberNotFound: 'shard.tar' has no member '2.png'",
    ),
    # -- datasets and plans
    *(
        (
            f"ShufflePlan({given}, 2)",
            f"InvalidRequest: ShufflePlan: n is a {kind}; need the number of samples: with dataset = MapDataset(store, "
            "entries), write BatchLoader(dataset, ShufflePlan(len(dataset), batch_size))",
        )
        for given, kind in (("NAMES", "list"), ("bucket", "Bucket"), ("bucket.entries()", "EntryTable"))
    ),
    ("ShufflePlan(9, 0)", "InvalidRequest: ShufflePlan: batch_size=0: need at least 1"),
    ("ShufflePlan(9, 2, seed=0.5)", "TypeError: ShufflePlan: seed is a float; need an int"),
    (
        "BatchLoader(client, plan)",
        "TypeError: a dataset turns numbers into samples, got Client; need a MapDataset",
    ),
    (
        "BatchLoader(MapDataset(client), plan)",
        "InvalidRequest: the plan has n=7 numbers, for 0 samples",
    ),
    (
        "BatchLoader(MapDataset(client, bucket), 5)",
        "TypeError: batches is a int; need a plan, with batch(epoch, step) and steps(epoch), or a batch sampler",
    ),
    (
        "MapDataset(bucket.entries(), client)",
        "TypeError: need a Client, or a store's URL or path, before what is read, got EntryTable",
    ),
    (
        'MapDataset(client, "pictures")',
        "InvalidRequest: 'pictures': need a list of entries, or the URL of a prefix, ais://bucket/prefix, or the "
        "path of a saved EntryTable; did you mean 'ais://pictures/'?",
    ),
    (
        'MapDataset(client, "ais://pictures/dog/")',
        "InvalidRequest: 'ais://pictures/dog/': no object of bucket 'pictures' has a name that begins with 'dog/'",
    ),
    (
        'MapDataset(client, "ais://pictures/cat/*.png")',
        "InvalidRequest: 'ais://pictures/cat/*.png': no object of bucket 'pictures' has a name that begins with "
        "'cat/*.png'; a prefix is not a pattern: pass client.bucket('pictures').entries('cat/', pattern='*.png')",
    ),
    (
        "MapDataset(client, bucket, tranform=len)",
        "TypeError: MapDataset: no option 'tranform'; did you mean 'transform'?",
    ),
    (
        "MapDataset(client, bucket, retry_s=240.0)",
        "InvalidRequest: retry_s=240.0: a Client has its own: connect(url, options=ClusterOptions(retry_s=...))",
    ),
    (
        'MapDataset(client, "ais://pictures//cat/")',
        "InvalidRequest: entries('/cat/'): no object's name begins with '/'; did you mean 'cat/'?",
    ),
    (
        "MapDataset(client, bucket, batch_size=8)",
        "TypeError: MapDataset: no option 'batch_size'; with MapDataset the DataLoader takes it, otherwise the plan, "
        "ShufflePlan",
    ),
    (
        'MapDataset(client, bucket)["cat/1.png"]',
        "TypeError: a dataset's index is an int or a slice, not 'cat/1.png'; get_batch fetches by name",
    ),
    (
        'MapDataset("localhost:7480", NAMES, bucket="pictures")',
        "InvalidRequest: 'localhost:7480' has no scheme: need grpc://localhost:7480; a folder of that name is "
        "{here}/localhost:7480",
    ),
    ("client.open(bucket.head('cat/1.png'))", "TypeError: need a URL like ais://bucket/name, got ObjectInfo"),
    ('MapDataset(client, bucket, "image")', "TypeError: decode is a str: need a function"),
    # -- fsspec, and the module itself
    (
        'files.open("pictures/cat/9.png")',
        "FileNotFoundError: pictures/cat/9.png: no object 'cat/9.png' in bucket 'pictures'",
    ),
    ('files.open("pictures")', "IsADirectoryError: pictures is a bucket"),
    ("ais_loader.conect", "AttributeError: module 'ais_loader' has no attribute 'conect'"),
]


@pytest.fixture(scope="module")
def typed() -> Iterator[dict[str, Any]]:
    """What the lines see: a store in `here`, open for writing and for reading."""
    AISFileSystem.clear_instance_cache()
    with throwaway_folder() as here:
        (here / "note.txt").write_text("buy milk")
        (here / "papers").mkdir()
        (here / "papers" / "thesis.tex").write_text("")
        with connect(here / "store") as client, connect(here / "store", mode="r") as reader:
            bucket = client.create_bucket("pictures")
            bucket.put_many((name, b"png") for name in NAMES)
            bucket.put("shard.tar", packed_tar({"1.png": b"png"}))
            imported: dict[str, Any] = {}
            exec(IMPORTS, imported)
            yield imported | {
                "NAMES": NAMES,
                "here": here,
                "client": client,
                "reader": reader,
                "bucket": bucket,
                "plan": ShufflePlan(len(NAMES) + 1, 2),
                "files": AISFileSystem(here / "store"),
            }
    AISFileSystem.clear_instance_cache()


def said(line: str, typed: dict[str, Any]) -> str:
    try:
        exec(line, dict(typed))
    except Exception as error:  # noqa: BLE001 - whatever it says is looked at
        return f"{type(error).__name__}: {error}"
    return "nothing"


@table(("line", "told"), WRONG, ids=[line for line, _ in WRONG])
def test_a_wrong_use_says_what_was_wrong_and_what_to_do(
    typed: dict[str, Any], line: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(typed["here"])
    monkeypatch.delenv("AIS_LOADER_URL", raising=False)
    assert said(line, typed) == told.format(here=typed["here"])
    assert sorted(os.listdir(".")) == ["note.txt", "papers", "store"]
    assert sorted(typed["bucket"]) == [*NAMES, "shard.tar"]


@table(
    ("package", "line", "told"),
    [
        (
            "PIL",
            "MapDataset(client, bucket, decoders.image)[0]",
            f"MissingExtra: PIL is needed for pictures and cannot be imported: {install_command('images')} (",
        ),
        (
            "soundfile",
            "MapDataset(client, bucket, decoders.audio)[0]",
            f"MissingExtra: soundfile is needed for sounds and cannot be imported: {install_command('audio')} (",
        ),
        (
            "cloudpickle",
            'client.etl.init("t", lambda data: data)',
            "MissingExtra: cloudpickle is needed for a transform of Python code and cannot be imported: "
            f"{install_command('etl')} (",
        ),
    ],
)
def test_a_package_that_is_not_installed_is_told_with_the_extra_that_brings_it(
    typed: dict[str, Any], package: str, line: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert said(line, typed).startswith(told)


def test_a_module_has_what_it_lists_and_what_is_near_can_be_found() -> None:
    assert {"MapDataset", "BatchLoader", "ShufflePlan", "decoders", "connect"} <= set(dir(ais_loader))
    assert all(hasattr(ais_loader, name) for name in dir(ais_loader))
    with pytest.raises(AttributeError) as told:
        _ = ais_loader.conect
    assert (told.value.name, told.value.obj) == ("conect", ais_loader)  # Python then says which one may be meant


def test_an_entry_takes_integers_of_any_kind_and_pairs_of_any_kind(typed: dict[str, Any]) -> None:
    entry = Entry("pictures", "cat/1.png", start=np.int64(1), length=np.uint8(2))
    assert (type(entry.start), type(entry.length)) == (int, int)
    several = Entry("pictures", "cat/1.png", ranges=np.array([[0, 1], [2, 1]]))
    assert several.ranges == ((0, 1), (2, 1)) and hash(several) == hash(pickle.loads(pickle.dumps(several)))
    assert typed["client"].get_batch([entry, several]).tobytes() == [b"ng", b"pg"]


def test_what_a_batch_gave_can_be_sent_to_another_process(typed: dict[str, Any]) -> None:
    bucket, data = typed["bucket"], [b"png"] * 6
    items = pickle.loads(pickle.dumps(list(bucket.get_batch(NAMES))))
    assert [(item.entry.name, item.tobytes()) for item in items] == list(zip(NAMES, data, strict=True))
    assert pickle.loads(pickle.dumps(bucket.get_batch(NAMES).tobytes())) == data
    packed = pickle.loads(pickle.dumps(bucket.get_batch(NAMES).packed()))
    assert [bytes(packed[at]) for at in range(6)] == data
