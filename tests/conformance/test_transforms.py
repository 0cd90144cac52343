"""Transforms beside the data: made, shown and stopped, and batches that pass through them, over every transport."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ais_loader import Bucket, Client, Command, Entry, Item, NodeCommand, Pipeline, Stage, Status, connect, errors
from ais_loader.testing import eventually, seeded_bytes
from storage_node.etl.run.transformed_run import TransformedRun
from tests.coding.coded_kit import CodedCluster
from tests.node.cluster_kit import LocalCluster
from tests.node.node_kit import serving

MiB = 1 << 20
ALLOWED = {"etl_code": True, "etl_commands": {"shift": "tr {old:word} {new:word=A}", "same": "cat"}, "etl_workers": 2}
DATA = {f"s/{at:02}": b"sample %02d " % at * (at + 1) for at in range(30)}
LARGE = seeded_bytes(6 * MiB, seed=6)


def shard() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for at in range(4):
            info = tarfile.TarInfo(f"m{at}")
            info.size = 100 + at
            tar.addfile(info, io.BytesIO(bytes([97 + at]) * info.size))
    return made.getvalue()


@pytest.fixture(
    scope="module",
    params=["embedded", "grpc", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cluster", "coded"))],
)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    if request.param == "embedded":
        with connect(folder / "store") as client:
            yield filled(client)
    elif request.param == "grpc":
        with serving(folder, **ALLOWED) as node, connect(node.url) as client:
            yield filled(client)
    elif request.param == "coded":
        with CodedCluster(folder, **ALLOWED) as coded, connect(coded.nodes[0].url) as client:
            filled(client)
            for names in (list(DATA), ["large"], ["shard.tar"]):
                coded.code(names)
            yield client
    else:
        with (
            LocalCluster(folder, 3, copies=2, read_lease_s=120.0, **ALLOWED) as cluster,
            connect("grpc://" + ",".join(node.endpoint for node in cluster.nodes)) as client,
        ):
            yield filled(client)


def filled(client: Client) -> Client:
    bucket = client.create_bucket("b", exist_ok=True)
    assert not bucket.put_many(DATA.items()).failures
    bucket.put("large", LARGE)
    bucket.put("shard.tar", shard())
    client.etl.init("upper", lambda data: bytes(data).upper(), replace=True)
    client.etl.init("times", times, replace=True)
    client.etl.init("fails", fails, replace=True)
    client.etl.init("tr", Command(["tr", "{args.from}", "{args.to:A-Z}"]), replace=True)
    return client


def times(data: memoryview, n: int = 2) -> bytes:
    return bytes(data) * n


def fails(data: memoryview, on: str) -> bytes:
    if on.encode() in bytes(data):
        raise ValueError(f"not with {on}")
    return b"fine"


@pytest.fixture
def bucket(client: Client) -> Bucket:
    return client.bucket("b")


def datas(items: Any) -> list[bytes]:
    return [item.tobytes() for item in items]


# -- commands that operators list


@pytest.mark.slow
def test_a_command_of_the_operator_is_named_and_its_arguments_are_checked(client: Client, bucket: Bucket) -> None:
    listed = {one.name: one.arguments for one in client.etl.commands()}
    if not listed:  # an embedded store has no operator
        with pytest.raises(errors.TransformRefused, match=r"no command 'shift': it has none"):
            client.etl.init("shift", NodeCommand("shift"))
        return
    assert listed == {"shift": "old:word, new:word=A", "same": "no arguments"}
    made = client.etl.init("shift", NodeCommand("shift", {"new": "Z"}), replace=True)
    assert (made.kind, made.source) == ("command", "shift new=Z")
    sample = DATA["s/03"]
    assert bucket.get("s/03", etl="shift", args={"old": "s"}) == sample.replace(b"s", b"Z")
    assert bucket.get("s/03", etl="shift", args={"old": "s", "new": "b"}) == sample.replace(b"s", b"b")
    usage = r".*; shift takes old:word, new:word=A"
    for args, what in [
        ({}, "'old' is missing"),
        ({"old": "-d"}, r"old='-d': need a word"),
        ({"old": "/etc/passwd"}, r"old='/etc/passwd': need a word"),
        ({"old": "s", "new": 5}, r"new=5: need a word"),
        ({"old": "s", "other": 1}, "this command takes no argument 'other'"),
    ]:
        with pytest.raises(errors.TransformFailed, match=what + usage):
            bucket.get("s/03", etl="shift", args=args)
    for command, what in [
        (NodeCommand("shift", {"new": "../x"}), r"new='\.\./x': need a word" + usage),
        (NodeCommand("shift", {"third": "x"}), "this command takes no argument 'third'" + usage),
        (NodeCommand("sh"), r"no command 'sh': it has shift \(old:word, new:word=A\), same \(no arguments\)"),
    ]:
        with pytest.raises(errors.TransformRefused, match=what):
            client.etl.init("wrong", command)
    with pytest.raises(errors.InvalidRequest, match="need JSON values"):
        client.etl.init("wrong", NodeCommand("shift", {"new": b"x"}))


# -- batches


@pytest.mark.parametrize("options", [{}, {"assembly": "target"}, {"streaming": False}, {"on_error": "placeholder"}])
def test_different_transforms_in_one_batch_in_order(client: Client, options: Any) -> None:
    names = list(DATA)
    entries, expected = [], []
    for at, name in enumerate(reversed(names)):
        data = DATA[name]
        match at % 4:
            case 0:
                entries.append(Entry("b", name, etl="upper", opaque=at))
                expected.append(data.upper())
            case 1:
                entries.append(Entry("b", name, opaque=at))
                expected.append(data)
            case 2:
                entries.append(Entry("b", name, etl="times", args={"n": 3}, opaque=at))
                expected.append(data * 3)
            case _:
                entries.append(Entry("b", name, etl=Stage("times", {"n": 2}) >> "upper", opaque=at))
                expected.append(data.upper() * 2)
    items = list(client.get_batch(entries, **options))
    assert datas(items) == expected
    assert [item.entry.opaque for item in items] == list(range(len(names)))


def test_members_ranges_and_versions_choose_the_input(client: Client, bucket: Bucket) -> None:
    version = bucket.head("s/01").version
    entries = [
        Entry("b", "shard.tar", "m1", etl="upper"),
        Entry("b", "s/05", start=3, length=8, etl="upper"),
        Entry("b", "s/01", version=version, etl="upper"),
        Entry("b", "shard.tar", "m2", start=1, length=5, etl="times"),
    ]
    assert datas(client.get_batch(entries)) == [
        b"B" * 101,
        DATA["s/05"][3:11].upper(),
        DATA["s/01"].upper(),
        b"c" * 10,
    ]


@pytest.mark.slow
def test_a_large_input_and_a_large_output_pass(client: Client, bucket: Bucket) -> None:
    assert bucket.get("large", etl="times") == LARGE * 2
    client.etl.init("sum", lambda data: hashlib.sha256(data).digest(), replace=True)
    assert bucket.get("large", etl="sum") == hashlib.sha256(LARGE).digest()
    with bucket.open("large", etl="times", args={"n": 3}) as file:
        file.seek(len(LARGE) - 2)
        assert file.read(4) == LARGE[-2:] + LARGE[:2]
        assert file.seek(0, io.SEEK_END) == 3 * len(LARGE)


def test_an_empty_output_is_one(bucket: Bucket) -> None:
    assert bucket.get("s/03", etl="times", args={"n": 0}) == b""


@pytest.mark.slow
def test_what_fails_fails_in_its_place_typed(client: Client) -> None:
    entries = [
        Entry("b", "s/00", etl="fails", args={"on": "sample 01"}),
        Entry("b", "s/01", etl="fails", args={"on": "sample 01"}),
        Entry("b", "none", etl="upper"),
        Entry("b", "s/02", etl="there is none"),
        Entry("b", "shard.tar", "none", etl="upper"),
        Entry("b", "s/02", start=10**6, length=1, etl="upper"),
        Entry("b", "s/03", etl="upper"),
    ]
    items = list(client.get_batch(entries, on_error="placeholder"))
    assert [item.status for item in items] == [
        Status.OK,
        Status.FAILED,
        Status.NOT_FOUND,
        Status.FAILED,
        Status.MEMBER_NOT_FOUND,
        Status.RANGE,
        Status.OK,
    ]
    assert [type(item.error) for item in items if item.error is not None] == [
        errors.TransformFailed,
        errors.ObjectNotFound,
        errors.TransformNotFound,
        errors.MemberNotFound,
        errors.RangeError,
    ]
    assert "ValueError: not with sample 01 (fails, line" in str(items[1].error)
    assert items[6].tobytes() == DATA["s/03"].upper()
    with pytest.raises(errors.TransformFailed, match="not with sample 01"):
        list(client.get_batch(entries))


@pytest.mark.slow
def test_an_entry_asked_for_twice_is_made_once(client: Client, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    marks = tmp_path / "marks"

    def marked(data: memoryview, marks: str) -> bytes:
        with open(marks, "ab") as file:
            file.write(b"x")
        return b"made"

    client.etl.init("marked", marked, replace=True)
    entry = Entry("b", "s/07", etl="marked", args={"marks": str(marks)})
    assert datas(client.get_batch([entry] * 5)) == [b"made"] * 5
    assert datas(client.get_batch([entry])) == [b"made"]
    owners = 3 if request.node.callspec.params["client"] == "coded" else 2
    assert marks.read_bytes() in {b"x" * made for made in range(1, owners + 1)}  # once on each that was asked


def test_a_get_runs_a_transform_that_fails_once(client: Client, bucket: Bucket, tmp_path: Path) -> None:
    marks = tmp_path / "failed"

    def marked(data: memoryview, marks: str) -> bytes:
        with open(marks, "ab") as file:
            file.write(b"x")
        raise ValueError("never")

    client.etl.init("marked", marked, replace=True)
    with pytest.raises(errors.TransformFailed, match=r"^marked: b/s/07: ValueError: never"):
        bucket.get("s/07", etl="marked", args={"marks": str(marks)})
    assert marks.read_bytes() == b"x"


def test_a_kept_result_is_read_again_by_the_short_way(
    client: Client, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("short", b"abc")
    first = [bucket.get("short", etl="times", args={"n": 4}) for _ in range(2)]

    def long_way(*_: Any) -> Any:
        raise AssertionError("it went as a batch")

    monkeypatch.setattr(TransformedRun, "next", long_way)
    assert [bucket.get("short", etl="times", args={"n": 4}) for _ in range(3)] == [*first, b"abc" * 4]
    monkeypatch.undo()
    bucket.put("short", b"xyz")
    assert bucket.get("short", etl="times", args={"n": 4}) == b"xyz" * 4


@pytest.mark.slow
def test_another_object_another_argument_and_another_version_are_other_results(client: Client, bucket: Bucket) -> None:
    bucket.put("changes", b"one")
    assert bucket.get("changes", etl="upper") == b"ONE"
    bucket.put("changes", b"two")
    assert bucket.get("changes", etl="upper") == b"TWO"
    client.etl.init("own", lambda data: b"first")
    assert bucket.get("changes", etl="own") == b"first"
    with pytest.raises(errors.TransformExists):
        client.etl.init("own", lambda data: b"second")
    client.etl.init("own", lambda data: b"second", replace=True)
    assert bucket.get("changes", etl="own") == b"second"
    client.etl.delete("own")
    with pytest.raises(errors.TransformNotFound):
        bucket.get("changes", etl="own")


@pytest.mark.slow
def test_snapshots_are_inputs(client: Client, bucket: Bucket) -> None:
    bucket.put("frozen", b"then")
    bucket.snapshot("run")
    bucket.put("frozen", b"now")
    try:
        assert client.bucket("b@run").get("frozen", etl="upper") == b"THEN"
        assert bucket.get("frozen", etl="upper") == b"NOW"
    finally:
        bucket.delete_snapshot("run")


@pytest.mark.slow
def test_columns_datasets_and_files_by_the_same_entries(client: Client, bucket: Bucket) -> None:
    names = list(DATA)[:5]
    assert datas(bucket.get_batch(names, etl="tr", args={"from": "a-z"})) == [DATA[name].upper() for name in names]
    packed = client.get_batch([Entry("b", name, etl="upper") for name in names]).packed()
    assert bytes(packed.values) == b"".join(DATA[name].upper() for name in names)

    def decode(item: Item) -> bytes:
        return item.tobytes()

    torch = pytest.importorskip("torch")
    from ais_loader import MapDataset

    dataset = MapDataset(client, [Entry("b", name, etl="upper") for name in names], decode)
    loader = torch.utils.data.DataLoader(dataset, batch_size=3, collate_fn=list)
    assert [one for batch in loader for one in batch] == [DATA[name].upper() for name in names]


def test_wrong_calls_say_so_at_once(client: Client) -> None:
    for entry, what in (
        (Entry("b", "s/00", args={"n": 1}), "args are the arguments of a transform"),
        (Entry("b", "s/00", etl=Stage("a", {"n": 1}), args={"n": 1}), "beside a Stage that has its own"),
        (Entry("b", "s/00", etl=Stage("a") >> "b", args={"n": 1}), "beside a Pipeline"),
        (Entry("b", "s/00", etl="a", args={"n": object()}), "values that JSON can represent"),
        (Entry("b", "s/00", etl="a", ranges=((0, 1), (2, 3))), "several ranges"),
    ):
        with pytest.raises(errors.InvalidRequest, match=what):
            client.get_batch([entry])
    with pytest.raises(TypeError, match="a transform's name, a Stage or a Pipeline"):
        client.get_batch([Entry("b", "s/00", etl=7)])  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidRequest, match="0 stages"):
        Pipeline(())
    assert Stage("a", {"x": 1, "y": 2}) == Stage("a", {"y": 2, "x": 1})
    for limits in ({"workers": -1}, {"retries": -1}, {"timeout_s": -1.0}, {"output_bytes": 1 << 70}):
        with pytest.raises(errors.InvalidRequest, match="limit"):
            client.etl.init("limits", bytes, **limits)
    with pytest.raises(TypeError, match=r"requirements are a list, as \['numpy'\]"):
        client.etl.init("limits", bytes, requirements="numpy")


# -- transforms


def test_what_there_is_is_shown(client: Client, bucket: Bucket) -> None:
    bucket.get("s/09", etl="upper")
    with pytest.raises(errors.TransformFailed):
        bucket.get("s/09", etl="fails", args={"on": "sample"})
    shown = {one.name: one for one in client.etl.list()}
    assert shown["upper"].kind == "function" and shown["tr"].source == "tr {args.from} {args.to:A-Z}"

    def is_told() -> bool:
        """By all nodes, which a busy one may not do in time."""
        shown = {one.name: one for one in client.etl.list()}
        said = [error for node in shown["fails"].nodes for error in node.errors]
        made = sum(node.objects for node in shown["upper"].nodes)
        return made > 0 and any("ValueError: not with sample" in error for error in said)

    eventually(is_told)
    assert "upper" in client.etl and "nothing" not in client.etl
    assert eventually(lambda: "ValueError: not with sample" in client.etl.log("fails"))
    with pytest.raises(errors.TransformNotFound, match=r"there are: .*upper"):
        client.etl.get("nothing")


@pytest.mark.slow
def test_what_an_error_says_is_text_whatever_it_is_made_of(client: Client, bucket: Bucket) -> None:
    """Of a file name that is no UTF-8, and of what steers a terminal."""

    def no_text(data: memoryview) -> bytes:
        raise ValueError("no \udc80.wav\x1b[2J\0, größer")

    client.etl.init("no-text", no_text)
    with pytest.raises(errors.TransformFailed, match=r"ValueError: no \\udc80\.wav\\x1b\[2J\\x00, größer"):
        bucket.get("large", etl="no-text")
    assert "no-text" in [one.name for one in client.etl.list()]

    def is_told() -> bool:
        nodes = client.etl.get("no-text").nodes  # of those that answer in time
        return any(r"\udc80.wav\x1b[2J" in error for node in nodes for error in node.errors)

    eventually(is_told)
    client.create_bucket("of-no-text", exist_ok=True)
    with pytest.raises(errors.TransformIncomplete, match=r"\\udc80\.wav"):
        bucket.transform("of-no-text", etl="no-text", names=["large"])
    client.etl.delete("no-text")


@pytest.mark.slow
def test_one_that_is_stopped_serves_nothing_until_it_is_started(client: Client, bucket: Bucket) -> None:
    before = client.etl.init("paused", lambda data: b"here")
    assert bucket.get("s/00", etl="paused") == b"here"
    assert client.etl.stop("paused").stopped
    with pytest.raises(errors.TransformGone, match="is stopped"):
        bucket.get("s/02", etl="paused")
    assert client.etl.start("paused").version == before.version
    assert bucket.get("s/02", etl="paused") == b"here"
    client.etl.delete("paused")
    with pytest.raises(errors.TransformNotFound):
        client.etl.delete("paused")


@pytest.mark.slow
def test_one_that_cannot_run_is_not_made(client: Client) -> None:
    class NeedsMore:
        def __init__(self) -> None:
            raise RuntimeError("no such model")

    with pytest.raises(errors.TransformFailed, match="RuntimeError: no such model"):
        client.etl.init("needs", NeedsMore)
    with pytest.raises(errors.TransformFailed, match="not installed"):
        client.etl.init("needs", times, requirements=["no-such-package"])
    with pytest.raises(errors.TransformRefused, match=r"there is no program|is none of the programs"):
        client.etl.init("needs", Command(["cat-of-nowhere"]))
    with pytest.raises(errors.InvalidName):
        client.etl.init("../needs", times)
    with pytest.raises(TypeError, match="a list of words"):
        client.etl.init("needs", Command("cat -n"))  # type: ignore[arg-type]
    assert "needs" not in client.etl


@pytest.mark.slow
def test_a_client_that_is_closed_leaves_nothing_of_a_batch_half_read(tmp_path: Path) -> None:
    """Nothing is written to stderr either: a warning is an error here."""
    client = connect(tmp_path / "store")
    bucket = client.create_bucket("b")
    bucket.put_many([(str(at), b"x" * at) for at in range(40)])
    client.etl.init("upper", lambda data: bytes(data).upper())
    items = iter(client.get_batch([Entry("b", str(at), etl="upper") for at in range(40)]))
    next(items)
    client.close()
    with pytest.raises(errors.Closed):
        list(items)
    with pytest.raises(errors.Closed):
        bucket.get("1", etl="upper")
