"""Writes to a cluster of real processes of which some die: what was acknowledged is there, and no copy is a mix."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from ais_loader import connect
from ais_loader.testing import eventually, throwaway_folder
from ais_loader.transport.cluster.transport import RemoteTransport
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.store.format import Version
from storage_node.store.store import Store
from tests.changing_folder import files_below
from tests.cluster_processes import ClusterProcesses
from tests.faults.crash_kit import content, state_of
from tests.node.cluster_kit import BUCKET
from tests.node.write_kit import CALL_TIMEOUT_S, Writer, held, put_messages
from tests.patience import PATIENT_CLIENT

pytestmark = pytest.mark.slow  # real processes, killed and awaited

PATIENT = ["--set", "reach_timeout_s=20"]
"""A node waits for another one that stands still, as on a busy machine, and writes without those that are dead."""
Copies = dict[str, tuple[Version, bytes | None]]


@pytest.fixture
def folder() -> Iterator[Path]:
    with throwaway_folder() as made:
        yield Path(made)


def version_of(text: str) -> Version:
    return Version(*map(int, text.split(".")))


def on_drive(cluster: ClusterProcesses, number: int) -> Copies:
    """What a node has, read beside it or after its death; every byte is verified."""
    with Store.open(cluster.nodes[number].drives, mode="r") as store:
        return {name: (version_of(version), data) for name, (version, data) in held(store).items()}


def everywhere(cluster: ClusterProcesses) -> list[Copies]:
    return [on_drive(cluster, number) for number in range(len(cluster.nodes))]


def owners(cluster: ClusterProcesses, name: str) -> list[int]:
    view = ClusterView(cluster.map)
    return view.owners(view.buckets[BUCKET], name)


def staging(cluster: ClusterProcesses, number: int) -> int:
    drives = cluster.nodes[number].drives
    return sum(found.st_size for _, found in files_below(*(drive / "staging" for drive in drives)))


def assert_copies_of_one_version_are_equal(copies: list[Copies]) -> None:
    known: dict[tuple[str, Version], bytes | None] = {}
    for node in copies:
        for name, (version, data) in node.items():
            assert known.setdefault((name, version), data) == data, f"{name!r}: two objects with version {version}"


# -- a node that cannot be reached


def test_a_bucket_is_deleted_though_the_node_that_a_client_asks_first_is_down(folder: Path) -> None:
    with ClusterProcesses(folder, 3, buckets={BUCKET: 2, "gone": 2}, arguments=PATIENT) as cluster:
        first = cluster.nodes[1].url
        while True:
            with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
                client.bucket(BUCKET).info()  # the map has come
                transport = client._transport
                assert isinstance(transport, RemoteTransport)
                members = transport.members
                if members.calls(members.anybody()[0]).url == first:
                    members.calls(members.anybody()[0]).abandon()
                    cluster.nodes[1].kill()
                    assert client.delete_bucket("gone", force=True) == 0
                    assert [info.name for info in client.buckets()] == [BUCKET]
                    return


# -- an owner dies


def test_a_put_goes_on_when_one_of_its_owners_is_killed(folder: Path) -> None:
    with ClusterProcesses(folder, 3, buckets={BUCKET: 2}, arguments=PATIENT) as cluster:
        name = next(name for at in range(1000) if set(owners(cluster, name := f"n{at}")) == {1, 2})
        data = content(name, 1, 8 << 20)

        def messages() -> Iterator[pb.PutRequest]:
            for at, message in enumerate(put_messages(name, data)):
                if at == 4:
                    eventually(lambda: staging(cluster, 1) > 0)
                    cluster.nodes[1].kill()
                yield message

        with Writer(cluster.nodes[0].url) as writer:
            info = writer.stub.Put(messages(), timeout=CALL_TIMEOUT_S)
        assert on_drive(cluster, 2) == {name: (version_of(info.version), data)}
        assert on_drive(cluster, 1) == {}
        eventually(lambda: on_drive(cluster, 0) == on_drive(cluster, 2))  # it stands in
        cluster.nodes[1].start()
        assert staging(cluster, 1) == 0


def test_objects_of_a_put_many_that_were_acknowledged_survive_an_owner_that_is_killed(folder: Path) -> None:
    with ClusterProcesses(folder, 4, buckets={BUCKET: 2}, arguments=PATIENT) as cluster:
        names = [f"n{at}" for at in range(600)]
        groups = [names[at : at + 20] for at in range(0, len(names), 20)]

        def messages() -> Iterator[pb.PutManyRequest]:
            for at, group in enumerate(groups):
                if at == 8:
                    threading.Thread(target=cluster.nodes[3].kill).start()
                yield pb.PutManyRequest(
                    object=[pb.SmallObject(bucket=BUCKET, name=name, data=content(name, 1, 3000)) for name in group]
                )

        with Writer(cluster.nodes[0].url) as writer:
            answers = list(writer.stub.PutMany(messages(), timeout=CALL_TIMEOUT_S))
        results = [result for answer in answers for result in answer.result]
        assert [result.info.name for result in results] == names, [r.error for r in results if r.HasField("error")]
        left = [on_drive(cluster, number) for number in range(3)]
        for result in results:
            name, version = result.info.name, version_of(result.info.version)
            found = [node[name] for node in left if name in node]
            assert found and set(found) == {(version, content(name, 1, 3000))}
        assert_copies_of_one_version_are_equal([*left, on_drive(cluster, 3)])


# -- the coordinator dies


def test_a_coordinator_killed_at_any_moment_leaves_old_or_new_and_the_next_write_equalises(folder: Path) -> None:
    draw = random.Random(20)
    names = [f"n{at}" for at in range(5)]
    begun, acknowledged = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    with ClusterProcesses(folder, 3, buckets={BUCKET: 2}, arguments=PATIENT) as cluster:
        for turn in range(6):
            dying = turn % 3
            timer = threading.Timer(draw.uniform(0.05, 0.5), cluster.nodes[dying].kill)
            with contextlib.suppress(grpc.RpcError), Writer(cluster.nodes[dying].url) as writer:
                for written in itertools.count():
                    if written == 1:  # the first write may take longer on a busy machine
                        timer.start()
                    wanted = draw.sample(names, draw.randint(1, 4)) if written else names
                    for name in wanted:
                        begun[name] += 1
                    datas = {name: content(name, begun[name], draw.choice([100, 5000, 400_000])) for name in wanted}
                    if len(wanted) == 1:
                        writer.put(wanted[0], datas[wanted[0]], chunk=50_000)
                        acknowledged.update({wanted[0]: begun[wanted[0]]})
                        continue
                    for info in put_some(writer, datas, many=True):
                        acknowledged[info.name] = begun[info.name]
            if timer.ident is None:  # the first one has failed
                timer.start()
            timer.join(180)
            copies = everywhere(cluster)
            assert_copies_of_one_version_are_equal(copies)
            for name in names:
                states = [state_of(name, node[name][1] or b"") for node in copies if name in node]
                assert all(state <= begun[name] for state in states)
                if acknowledged[name]:
                    # A node that was passed over when it had just come back may hold an older one.
                    assert sum(state >= acknowledged[name] for state in states) >= 2, (name, states)
                    _, data = max(node[name] for node in copies if name in node)
                    assert state_of(name, data or b"") >= acknowledged[name]
            cluster.nodes[dying].start()
            eventually(lambda: reaches_all(cluster, names, begun, acknowledged, through=(dying + 1) % 3))  # noqa: B023
        assert min(acknowledged.values()) > 6


def reaches_all(
    cluster: ClusterProcesses, names: list[str], begun: dict[str, int], acknowledged: dict[str, int], through: int
) -> bool:
    """Write every name once more; whether its owners have that, and its version is above all that is anywhere."""
    with Writer(cluster.nodes[through].url) as writer:
        for name in names:
            begun[name] += 1
            try:
                info = writer.put(name, content(name, begun[name], 300))
            except grpc.RpcError as error:  # the other owner may be silent for a moment
                assert error.code() == grpc.StatusCode.UNAVAILABLE
                return False
            acknowledged[name] = begun[name]
            copies = everywhere(cluster)
            written = version_of(info.version), content(name, begun[name], 300)
            if any(copies[owner].get(name) != written for owner in owners(cluster, name)):
                return False  # an owner that has come back was passed over
            assert written == max(node[name] for node in copies if name in node)
    return True


# -- death at a given point of the commit


POINTS = ["put.staged", "put.intended", "put.published", "put.committed", "delete.committed"]


@pytest.mark.parametrize(
    ("point", "dying"),
    [
        pytest.param(
            point, dying, id=f"{point}-{who}", marks=pytest.mark.exhaustive if (at + dying) % 2 else pytest.mark.slow
        )
        for at, point in enumerate(POINTS)
        for dying, who in enumerate(["coordinator", "owner"])
    ],
)
@pytest.mark.sampled(3)
def test_a_node_that_dies_within_its_commit_has_the_old_or_the_new_object(folder: Path, point: str, dying: int) -> None:
    with ClusterProcesses(folder, 2, buckets={BUCKET: 2}, arguments=PATIENT) as cluster:
        old, new = content("a", 1, 300_000), None if point == "delete.committed" else content("a", 2, 600_000)
        with Writer(cluster.nodes[0].url) as writer:
            before = version_of(writer.put("a", old).version)
        eventually(lambda: everywhere(cluster) == [{"a": (before, old)}] * 2, interval_s=0.2)
        node = cluster.nodes[dying]
        node._environment["AIS_LOADER_FAILPOINT"] = point
        node.restart()
        cluster.teach()
        with Writer(cluster.nodes[0].url) as writer:

            def dies() -> bool:
                """The other owner writes without it if it is silent for a moment, which a busy machine makes it."""
                with contextlib.nullcontext() if dying == 1 else pytest.raises(grpc.RpcError):
                    writer.put("a", new) if new is not None else writer.delete("a")
                return not node.alive

            def dies_or_has_deleted() -> bool:
                try:
                    return dies()
                except grpc.RpcError as error:
                    assert new is None and error.code() == grpc.StatusCode.NOT_FOUND, error
                    return not node.alive

            eventually(dies_or_has_deleted, interval_s=0.2)
        dead, other = on_drive(cluster, dying)["a"], on_drive(cluster, 1 - dying)["a"]
        assert dead[1] == (new if point.endswith("committed") else old)
        if dying == 1:
            assert other[1] == new and other[0] > before
        assert other in [(before, old), (other[0], new)]
        assert_copies_of_one_version_are_equal([{"a": dead}, {"a": other}])
        del node._environment["AIS_LOADER_FAILPOINT"]
        node.kill()
        node.start()
        cluster.teach()
        with Writer(cluster.nodes[1].url) as writer:

            def equal() -> bool:
                info = writer.put("a", content("a", 3, 100))
                return everywhere(cluster) == [{"a": (version_of(info.version), content("a", 3, 100))}] * 2

            eventually(equal, interval_s=0.2)


def test_a_put_whose_coordinator_dies_between_the_commits_costs_no_error_and_counts_once(folder: Path) -> None:
    with (
        ClusterProcesses(folder, 2, buckets={BUCKET: 2}, arguments=PATIENT) as cluster,
        connect(cluster.url, options=PATIENT_CLIENT) as client,
    ):
        name = next(name for at in range(100) if owners(cluster, name := f"n{at}") == [0, 1])
        bucket, node = client.bucket(BUCKET), cluster.nodes[0]
        bucket.put(name, b"W0")
        node._environment["AIS_LOADER_FAILPOINT"] = "put.committed"
        node.restart()
        cluster.teach()
        info = bucket.put(name, b"W1")  # the first try is done by one node, which says so to nobody
        eventually(lambda: not node.alive)
        first, second = on_drive(cluster, 0)[name], on_drive(cluster, 1)[name]
        assert first[1] == second[1] == b"W1" and first[0] < second[0] == version_of(info.version)
        last = bucket.put(name, b"W2")
        del node._environment["AIS_LOADER_FAILPOINT"]
        node.kill()
        node.start()
        cluster.teach()
        wanted = {name: (version_of(last.version), b"W2")}
        eventually(lambda: everywhere(cluster) == [wanted] * 2, interval_s=0.2)
        assert bucket.get(name) == b"W2"


# -- writers of one name


def put_some(writer: Writer, datas: Mapping[str, bytes], *, many: bool) -> list[pb.ObjectInfo]:
    """Return what is acknowledged; the rest failed because too few owners answered."""
    if many:
        results = writer.put_many(datas)
        failed = [result.error.kind for result in results if result.HasField("error")]
        assert set(failed) <= {"node-unavailable", "outcome-unknown"}, failed
        return [result.info for result in results if result.HasField("info")]
    [(name, data)] = datas.items()
    try:
        return [writer.put(name, data)]
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE, error
        return []


def test_two_clients_that_overwrite_the_same_names_through_different_nodes_leave_copies_equal(folder: Path) -> None:
    names = [f"n{at}" for at in range(8)]
    with ClusterProcesses(folder, 4, buckets={BUCKET: 3}, arguments=PATIENT) as cluster:

        def write(number: int) -> list[tuple[str, Version, bytes | None]]:
            draw = random.Random(number)
            done: list[tuple[str, Version, bytes | None]] = []
            with Writer(cluster.nodes[number].url) as writer:
                for turn in range(40):
                    wanted = draw.sample(names, 3)
                    datas = {name: content(name, turn * 2 + number, 500) for name in wanted}
                    if turn % 4 == 0:
                        with contextlib.suppress(grpc.RpcError):
                            writer.delete(wanted[0])
                        continue
                    left = datas if turn % 2 else {wanted[0]: datas[wanted[0]]}
                    while left:  # an owner may be silent for a moment
                        infos = put_some(writer, left, many=turn % 2 == 1)
                        done += [(info.name, version_of(info.version), left[info.name]) for info in infos]
                        left = {name: data for name, data in left.items() if name not in {one.name for one in infos}}
            return done

        with ThreadPoolExecutor(2) as pool:
            written = [one for done in pool.map(write, (0, 1)) for one in done]
        assert len({(name, version) for name, version, _ in written}) == len(written)

        def equal() -> list[Copies] | None:
            """The copies, once all owners have the same, and nobody else has any."""
            copies = everywhere(cluster)
            for name in names:
                holders = {number for number, node in enumerate(copies) if name in node}
                if holders != set(owners(cluster, name)) or len({copies[number][name] for number in holders}) > 1:
                    return None
            return copies

        copies = eventually(equal, interval_s=0.2)
        assert copies is not None
        for name in names:
            version, data = copies[owners(cluster, name)[0]][name]
            newest = max(one for one in written if one[0] == name)
            assert version >= newest[1]
            assert data is None or (version, data) == newest[1:]


# -- too few are left


def test_fewer_live_nodes_than_min_copies_refuse_clearly_and_change_nothing(folder: Path) -> None:
    with ClusterProcesses(folder, 3, buckets={BUCKET: 3}, arguments=PATIENT) as cluster:
        cluster.map.bucket[0].min_copies = 2
        cluster.map.version += 1
        cluster.teach()
        with Writer(cluster.nodes[0].url) as writer:
            before = writer.put("a", b"before")
            kept = {"a": (version_of(before.version), b"before")}
            eventually(lambda: everywhere(cluster) == [kept] * 3, interval_s=0.2)
            for number in (1, 2):
                cluster.nodes[number].kill()
            for write in (lambda: writer.put("a", b"after"), lambda: writer.delete("a")):
                with pytest.raises(grpc.RpcError) as caught:
                    write()
                assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
                assert "1 copies can be written now, 2 at least are needed" in caught.value.details()
            (result,) = writer.put_many({"a": b"after"})
            assert result.error.kind == "node-unavailable"
            assert everywhere(cluster) == [kept] * 3
            cluster.nodes[2].start()

            def stored() -> pb.ObjectInfo | None:
                try:
                    return writer.put("a", b"after")
                except grpc.RpcError as error:
                    assert error.code() == grpc.StatusCode.UNAVAILABLE
                    return None

            after = eventually(stored, interval_s=0.2)
        assert after is not None
        now = {"a": (version_of(after.version), b"after")}
        assert everywhere(cluster) == [now, kept, now]
