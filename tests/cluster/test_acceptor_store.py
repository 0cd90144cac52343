"""What a node has agreed to, on drives that are away or cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest
from agreement_kit import endpoints_of, known_map, make_cluster, node_at, nodes_at

from ais_loader.errors import DriveFailed
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.acceptor import AcceptorState, MapRefused
from storage_node.cluster.consensus.acceptor_store import AcceptorStore
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.consensus.errors import NoMajority
from storage_node.cluster.map.mutations import create_bucket
from storage_node.store.files.growing_file import GrowingFile

STORE = "5" * 32


def ask(number: int, node_uuid: bytes = b"") -> pb.PrepareRequest:
    return pb.PrepareRequest(ballot=pb.Ballot(number=number, proposer=b"p" * 16), node_uuid=node_uuid)


@pytest.fixture
def roots(tmp_path: Path) -> list[Path | None]:
    made = [tmp_path / f"drive-{at}" for at in range(3)]
    for root in made:
        root.mkdir()
    return list(made)


def fail_on(monkeypatch: pytest.MonkeyPatch, *broken: Path | None) -> None:
    """Writes to these drives fail from now on, and to no others."""
    write = GrowingFile.write

    def maybe(file: GrowingFile[AcceptorState], path: Path, value: AcceptorState) -> None:
        if path.parent in broken:
            raise OSError(5, "Input/output error")
        write(file, path, value)

    monkeypatch.setattr(GrowingFile, "write", maybe)


def test_a_promise_is_on_every_drive_before_it_is_given(roots: list[Path | None]) -> None:
    assert AcceptorStore(STORE, roots).prepare(ask(7)).promised
    for root in roots:
        again = AcceptorStore(STORE, [root, None, None])
        assert again.state.promise == ask(7).ballot
    assert not AcceptorStore(STORE, roots).prepare(ask(6)).promised


def test_a_map_of_a_later_version_is_kept_with_what_this_one_does_not_know(roots: list[Path | None]) -> None:
    first = pb.ClusterMap(cluster_uuid=b"c" * 16, version=1)
    first.node.add(uuid=bytes.fromhex(STORE), host="h", endpoint="h:1", peer_endpoint="h:2", weight=1.0)
    acceptor_store = AcceptorStore(STORE, roots)
    acceptor_store.learn(first)
    later = pb.ClusterMap.FromString(first.SerializeToString() + b"\xa2\x06\x03new")  # field 100
    later.version = 2
    acceptor_store.learn(later)
    again = AcceptorStore(STORE, roots).state.committed
    assert again is not None and again.SerializeToString(deterministic=True) == later.SerializeToString(
        deterministic=True
    )


def test_a_promise_that_too_few_drives_have_is_not_given(
    roots: list[Path | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    acceptor_store = AcceptorStore(STORE, roots)
    assert acceptor_store.prepare(ask(1)).promised
    with monkeypatch.context() as patch:
        fail_on(patch, *roots[1:])
        with pytest.raises(DriveFailed):
            acceptor_store.prepare(ask(2))
        assert acceptor_store.state.promise == ask(1).ballot
        patch.undo()
        fail_on(patch, roots[1])
        assert acceptor_store.prepare(ask(3)).promised, "two of three are a majority"
    assert AcceptorStore(STORE, [None, *roots[1:]]).state.promise == ask(3).ballot
    assert AcceptorStore(STORE, [roots[0], roots[1], None]).state.promise == ask(3).ballot


def test_a_drive_that_missed_a_promise_does_not_lower_it(
    roots: list[Path | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    acceptor_store = AcceptorStore(STORE, roots)
    acceptor_store.prepare(ask(1))
    with monkeypatch.context() as patch:
        fail_on(patch, roots[0])
        acceptor_store.prepare(ask(5))
    assert not AcceptorStore(STORE, roots).prepare(ask(4)).promised
    for root in roots:
        assert AcceptorStore(STORE, [root, None, None]).state.promise == ask(5).ballot, (
            "brought up to date at the start"
        )


def test_too_few_drives_to_know_what_was_promised_do_not_vote(roots: list[Path | None]) -> None:
    acceptor_store = AcceptorStore(STORE, roots)
    acceptor_store.prepare(ask(5))
    few = AcceptorStore(STORE, [roots[0], None, None])
    assert not few.may_vote
    with pytest.raises(DriveFailed, match="does not vote"):
        few.prepare(ask(9))
    assert AcceptorStore(STORE, [roots[0], roots[1], None]).may_vote


def test_what_is_meant_for_another_node_is_refused(roots: list[Path | None]) -> None:
    acceptor_store = AcceptorStore(STORE, roots)
    with pytest.raises(MapRefused, match="66666666"):
        acceptor_store.prepare(ask(5, node_uuid=b"f" * 16))
    assert acceptor_store.prepare(ask(5, node_uuid=bytes.fromhex(STORE))).promised


def test_a_committed_map_is_learned_with_one_drive_left_but_nothing_is_promised(
    roots: list[Path | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    acceptor_store = AcceptorStore(STORE, roots)
    acceptor_store.prepare(ask(1))
    map_ = pb.ClusterMap(cluster_uuid=b"c" * 16, version=3, ballot=ask(1).ballot)
    fail_on(monkeypatch, *roots[:2])
    acceptor_store.learn(map_)
    assert acceptor_store.state.committed == map_
    with pytest.raises(DriveFailed):
        acceptor_store.prepare(pb.PrepareRequest(ballot=ask(9).ballot, cluster_uuid=map_.cluster_uuid))


def test_a_drive_that_joins_has_what_was_promised_before_it_counts(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    acceptor_store = AcceptorStore(STORE, [one])
    acceptor_store.prepare(ask(5))
    acceptor_store.change_drives(two.mkdir, lambda: [one, two])
    assert not AcceptorStore(STORE, [two, None]).prepare(ask(4)).promised
    assert acceptor_store.prepare(ask(6)).promised
    assert AcceptorStore(STORE, [None, two]).state.promise == ask(6).ballot


def test_no_drive_goes_while_another_cannot_be_told_what_was_promised(
    roots: list[Path | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    acceptor_store = AcceptorStore(STORE, roots)
    acceptor_store.prepare(ask(1))
    fail_on(monkeypatch, roots[1])
    assert acceptor_store.prepare(ask(5)).promised, "two of three are a majority"
    gone: list[bool] = []
    with pytest.raises(DriveFailed):
        acceptor_store.change_drives(lambda: gone.append(True), lambda: roots[1:])
    assert not gone
    monkeypatch.undo()
    acceptor_store.change_drives(lambda: gone.append(True), lambda: roots[1:])
    for left in ([roots[1], None], [None, roots[2]]):
        assert not AcceptorStore(STORE, left).prepare(ask(4)).promised


def test_a_promise_counts_when_most_of_the_drives_that_stay_have_it(
    roots: list[Path | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    acceptor_store = AcceptorStore(STORE, roots)
    assert roots[0] is not None
    acceptor_store.follow(roots, leaving=[roots[0]])
    with monkeypatch.context() as patch:
        fail_on(patch, roots[1])
        with pytest.raises(DriveFailed):
            acceptor_store.prepare(ask(5))
    assert acceptor_store.prepare(ask(6)).promised


def test_a_drive_that_comes_back_says_what_was_promised_and_the_node_votes_again(roots: list[Path | None]) -> None:
    AcceptorStore(STORE, roots).prepare(ask(5))
    few = AcceptorStore(STORE, [roots[0], None, None])
    assert not few.may_vote
    few.follow([roots[0], roots[1], None])
    assert not few.prepare(ask(4)).promised
    assert few.prepare(ask(6)).promised


@pytest.mark.slow
def test_a_node_with_most_of_its_drives_away_serves_its_map_and_changes_none(tmp_path: Path) -> None:
    with nodes_at(tmp_path, 1, drives=3) as nodes:
        map_ = make_cluster(nodes)
    for drive in (1, 2):
        (tmp_path / "node-0" / f"drive-{drive}").rename(tmp_path / f"away-{drive}")
    with node_at(tmp_path / "node-0", drives=3) as node:
        assert known_map(node) == map_
        with pytest.raises(NoMajority, match="does not vote"):
            change_map([map_.node[0].endpoint, *endpoints_of([node])], create_bucket("b"), timeout_s=1.0)
    (tmp_path / "away-1").rename(tmp_path / "node-0" / "drive-1")
    with node_at(tmp_path / "node-0", drives=3) as node:
        assert change_map(endpoints_of([node]), create_bucket("b"), timeout_s=180.0).bucket[0].name == "b"
