"""A summary of a bucket whose copies differ: each name counts by its newest version, wherever that is."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from ais_loader.errors import InvalidRequest
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_contents_pb2 as pb
from ais_loader.wire.generated import ais_contents_pb2_grpc as rpc
from storage_node.cluster.repair import usage
from storage_node.store.format import Version
from storage_node.store.store import Store
from storage_node.store.summary import MAX_FOLDER_BYTES, MAX_FOLDERS, NameSummary
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.write_kit import CALL_TIMEOUT_S, cluster_of


def summary_by(cluster: LocalCluster, number: int, prefix: str = "") -> pb.Summary:
    with grpc.insecure_channel(cluster.nodes[number].url.removeprefix("grpc://")) as channel:
        request = pb.SummarizeRequest(bucket=BUCKET, prefix=prefix, depth=1)
        answers = list(rpc.ContentsStub(channel).Summarize(request, timeout=CALL_TIMEOUT_S))
    assert [answer.HasField("summary") for answer in answers] == [False] * (len(answers) - 1) + [True]
    return answers[-1].summary


def all_heard(cluster: LocalCluster, number: int, prefix: str = "") -> pb.Summary:
    """What all nodes have answered to, which a busy one may not do in time."""

    def heard() -> pb.Summary | None:
        found = summary_by(cluster, number, prefix)
        return None if found.silent or found.incomplete else found

    return eventually(heard)


def put(store: Store, name: str, size: int, version: Version) -> None:
    with store.begin_put(BUCKET, name, version=version) as upload:
        upload.write(bytes(size))
        upload.commit()


@pytest.mark.slow
@pytest.mark.parametrize("page", [1, 7, 5000])
def test_the_newest_version_counts_once_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(usage, "PAGE_NAMES", page)
    with cluster_of(tmp_path, 3, copies=1) as cluster:  # whose repair moves to their owners what is put here and there
        stores = [cluster.batches(number).node.store for number in range(3)]
        sizes: dict[str, int] = {}
        for at in range(60):
            name = f"{at % 4}/{at}"
            put(stores[at % 3], name, at, Version(90, 10, 1))
            sizes[name] = at
            if at % 5 == 0:
                put(stores[(at + 1) % 3], name, 1000, Version(90, 20, 1))
                sizes[name] = 1000
            if at % 5 == 1:
                stores[(at + 2) % 3].delete(BUCKET, name, Version(90, 30, 1), keep_tombstone=True)
                del sizes[name]
            if at % 5 == 2:
                put(stores[(at + 1) % 3], name, 7, Version(90, 5, 1))
        for number in range(3):
            found = all_heard(cluster, number)
            assert (found.objects, found.size_bytes) == (len(sizes), sum(sizes.values()))
            for one in found.prefix:
                mine = [size for name, size in sizes.items() if name.startswith(one.prefix)]
                assert (one.objects, one.size_bytes) == (len(mine), sum(mine))
            assert [one.prefix for one in found.prefix] == ["0/", "1/", "2/", "3/"]
            below = all_heard(cluster, number, "2/")
            assert [one.prefix for one in below.prefix] == ["2/"] and below.objects == found.prefix[2].objects


@pytest.mark.slow
def test_a_node_that_stands_still_is_given_up_long_before_a_slow_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "PAGE_TIMEOUT_S", 10 * CALL_TIMEOUT_S)
    with cluster_of(tmp_path, 3, copies=2, linked=True) as cluster:
        cluster.put({f"{at}": bytes(at) for at in range(30)})
        whole = all_heard(cluster, 0)
        cluster.links[2].stall()
        for _ in range(2):
            # Within CALL_TIMEOUT_S; a busy node may be given up, too, and is asked again.
            found = eventually(lambda: None if (found := summary_by(cluster, 0)).incomplete else found)
            assert (found.objects, found.size_bytes) == (whole.objects, whole.size_bytes) == (30, sum(range(30)))
            assert len(found.silent) == 1
            assert found.silent[0].startswith(cluster.map.node[2].endpoint)


@pytest.mark.slow
def test_more_folders_than_can_be_told_apart_are_refused() -> None:
    tally = NameSummary("", 1)
    tally.add((f"{at}/x", 1) for at in range(MAX_FOLDERS))
    with pytest.raises(InvalidRequest, match="smaller depth"):
        tally.add([("one-more/x", 1)])


def test_folders_whose_names_are_too_long_for_one_answer_are_refused() -> None:
    tally = NameSummary("", 1)
    long = "n" * 1000
    tally.add((f"{long}{at}/x", 1) for at in range(MAX_FOLDER_BYTES // 1010))
    with pytest.raises(InvalidRequest, match="bytes of their names"):
        tally.add((f"{long}more-{at}/x", 1) for at in range(100))
