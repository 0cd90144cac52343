"""Tracebacks of errors: a few frames, however many layers an error has crossed; the cause stays available."""

from __future__ import annotations

import copy
import pickle
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from ais_loader import Bucket, ClusterOptions, connect, errors
from ais_loader.testing import NodeProcess, seeded_bytes
from tests.cluster_processes import ClusterProcesses
from tests.patience import PATIENT_CLIENT
from tests.store.store_kit import flip_a_byte

MOST_LINES = 20
"""Of which seven are the three frames of this file."""

Use = Callable[[Bucket], object]
USES: dict[str, tuple[type[errors.LoaderError], Use]] = {
    "object": (errors.ObjectNotFound, lambda bucket: bucket.get("none")),
    "head": (errors.ObjectNotFound, lambda bucket: bucket.head("none")),
    "bucket": (errors.BucketNotFound, lambda bucket: bucket.client.bucket("none").get("none")),
    "listing": (errors.BucketNotFound, lambda bucket: list(bucket.client.bucket("none").objects())),
    "batch": (errors.ObjectNotFound, lambda bucket: list(bucket.get_batch(["a", "none"]))),
    "tobytes": (errors.ObjectNotFound, lambda bucket: bucket.get_batch(["a", "none"]).tobytes()),
    "range": (errors.RangeError, lambda bucket: bucket.get("a", start=1 << 30, length=1)),
    "archive": (errors.NotAnArchive, lambda bucket: list(bucket.members("a"))),
    "refused": (errors.InvalidRequest, lambda bucket: bucket.get_batch(["a"], on_error="skip")),
    "exists": (errors.BucketExists, lambda bucket: bucket.client.create_bucket(bucket.name)),
    "conflict": (errors.VersionConflict, lambda bucket: bucket.put("a", b"2", if_absent=True)),
    "name": (errors.InvalidName, lambda bucket: bucket.put("../a", b"2")),
    "many": (errors.InvalidName, lambda bucket: bucket.put_many([("../a", b"2")])),
}


def raised(use: Callable[[], object], kind: type[errors.LoaderError]) -> errors.LoaderError:
    with pytest.raises(kind) as caught:
        use()
    return caught.value


def check(error: errors.LoaderError) -> None:
    """A short traceback without chained errors, and an error that pickles with its type and message."""
    shown = "".join(traceback.format_exception(error)).splitlines()
    assert len(shown) <= MOST_LINES, "\n".join(shown)
    assert not any("direct cause" in line or "During handling" in line for line in shown)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(again), str(again)) == (type(error), str(error))


@pytest.mark.parametrize("case", USES)
def test_an_error_shows_the_callers_frame_and_a_few_of_ours(bucket: Bucket, case: str) -> None:
    bucket.put("a", b"1")
    kind, use = USES[case]
    check(raised(lambda: use(bucket), kind))


def test_an_error_while_another_is_handled_has_that_one_as_its_context(bucket: Bucket) -> None:
    def use() -> None:
        try:
            {}["key"]
        except KeyError:
            bucket.head("none")

    error = raised(use, errors.ObjectNotFound)
    assert isinstance(error.__context__, KeyError) and not error.__suppress_context__
    assert not isinstance(error.cause, KeyError)


def test_the_cause_stays_and_debugging_shows_every_layer(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    def head() -> object:
        return bucket.head("none")

    error = raised(head, errors.ObjectNotFound)
    if bucket.client.url.startswith("grpc"):
        assert isinstance(error.cause, grpc.RpcError)
    assert pickle.loads(pickle.dumps(error)).cause is None
    frames = len(traceback.extract_tb(error.__traceback__))
    monkeypatch.setenv("AIS_LOADER_DEBUG", "1")
    assert len(traceback.extract_tb(raised(head, errors.ObjectNotFound).__traceback__)) > frames


def test_pickling_keeps_what_callers_added() -> None:
    error = errors.NodeUnavailable("gone").caused_by(OSError("refused"))
    error.reached = False
    error.add_note("during the epoch")
    again = pickle.loads(pickle.dumps(error))
    assert (again.reached, again.__notes__, again.cause) == (False, ["during the epoch"], None)


@pytest.mark.slow
@pytest.mark.parametrize("in_cluster", [False, True])
def test_errors_of_failing_nodes_show_a_few_frames(in_cluster: bool, tmp_path: Path) -> None:
    names = [str(number) for number in range(64)]
    arguments = ["--set", "max_active_batches=1"]
    with ExitStack() as held:
        if in_cluster:
            cluster = held.enter_context(ClusterProcesses(tmp_path, 3, arguments=arguments))
            nodes, url = cluster.nodes, cluster.url
        else:
            nodes = [held.enter_context(NodeProcess(tmp_path / "drive", arguments=arguments))]
            url = nodes[0].url
        patient = held.enter_context(connect(url, options=PATIENT_CLIENT)).create_bucket("b")
        for name in names:  # one by one, so that each is a file of its own
            patient.put(name, seeded_bytes(100_000, seed=1))
        bucket = held.enter_context(connect(url, options=ClusterOptions(retry_s=0))).bucket("b")

        def overload() -> None:
            with ExitStack() as batches:
                for _ in range(8):
                    next(batches.enter_context(bucket.get_batch(names * 10, assembly="target")))

        check(raised(overload, errors.Overloaded))
        for path in tmp_path.rglob("objects/**/*"):
            if path.is_file():
                flip_a_byte(path, 50_000)
        # The node may still be ending the batches above.
        check(raised(lambda: patient.get("1"), errors.CorruptObject))
        check(raised(lambda: patient.get_batch(["1", "2"]).tobytes(), errors.CorruptObject))
        for node in nodes:
            node.pause()
        check(raised(lambda: bucket.get("1", timeout_s=0.3), errors.SilenceTimeout))
        check(raised(lambda: list(bucket.get_batch(["1", "2"], timeout_s=0.3)), errors.SilenceTimeout))
        for node in nodes:
            node.kill()
        check(raised(lambda: bucket.get("1"), errors.NodeUnavailable))
        check(raised(lambda: list(bucket.get_batch(["1"])), errors.NodeUnavailable))
        check(raised(lambda: bucket.put("1", b"1"), errors.NodeUnavailable))
        anew = held.enter_context(connect(url, options=ClusterOptions(retry_s=0)))
        check(raised(anew.buckets, errors.NodeUnavailable))


@pytest.mark.slow
def test_a_worker_of_a_dataloader_shows_a_few_frames_of_ours(node: NodeProcess, bucket_name: str) -> None:
    from torch.utils.data import DataLoader

    from ais_loader import MapDataset

    with connect(node.url) as client:
        client.create_bucket(bucket_name).put("a", b"1")
    loader = DataLoader(MapDataset(node.url, ["a", "none"], bucket=bucket_name), batch_size=2, num_workers=1)
    error = raised(lambda: list(loader), errors.ObjectNotFound)
    *lines, note = str(error).splitlines()
    assert "ais_loader" in str(error) and len(lines) <= MOST_LINES, str(error)
    assert "none" in lines[-1] and note.startswith("sample 1 of its dataset, ")
