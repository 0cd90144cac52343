"""Real nodes that are killed, frozen or cut off while another one gathers a batch from them.

The gathering node lives in this process, so that its patience can be short; the others are processes of their own, and
it reaches each of them through a link.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from ais_loader.errors import LoaderError
from ais_loader.testing import NodeProcess, SeededObjects, eventually, throwaway_folder
from ais_loader.testing.node import peer_secret_file
from ais_loader.wire.answer_check import digest
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.frame import decode_response
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from storage_node.store.format import Version
from storage_node.store.replica_state import clock_s
from storage_node.store.store import Store
from storage_node.store.store_record import BucketRecord
from tests.cluster_processes import ClusterProcesses
from tests.faulty_link import FaultyLink
from tests.node.cluster_kit import BUCKET, Answer, to_one_node
from tests.node.node_kit import RawSession, batch_of

pytestmark = pytest.mark.slow  # real processes, killed and awaited

MiB = 1 << 20
BUCKET_UUID = uuid.uuid4().bytes
LARGE = SeededObjects({f"l/{at}": (12 * MiB + at, 1000 + at) for at in range(4)})
SMALL = SeededObjects({f"s/{at:04d}": (30_000 + at, at) for at in range(600)})
OBJECTS = LARGE | SMALL
NAMES = [*list(SMALL)[:50], *LARGE, *list(SMALL)[50:]]
PEERS = 2
TIMEOUT_S = 15.0


class Gathering:
    """Processes 0 and 1 have every object, in the same versions; `target` owns none and gathers."""

    def __init__(self, folder: Path, held: ExitStack) -> None:
        for number in range(PEERS):
            fill(folder / f"node-{number}" / "drive-0")
        # Processes of a busy machine renew their leases late.
        leases = ["--set", "read_lease_s=15"]
        self.cluster = held.enter_context(ClusterProcesses(folder, PEERS, arguments=leases))
        self.nodes: list[NodeProcess] = self.cluster.nodes
        self.links = [held.enter_context(FaultyLink(node.peer_endpoint)) for node in self.nodes]
        config = ServerConfig(port=0, peer_timeout_s=TIMEOUT_S, peer_secret_file=str(peer_secret_file()))
        self.target = held.enter_context(NodeServer([folder / "target"], config))
        known = self.cluster.map
        for node, link in zip(known.node, self.links, strict=True):
            node.peer_endpoint = link.url.removeprefix("grpc://")
        known.node.add(
            uuid=self.target.membership.node_uuid,
            host="target",
            endpoint=self.target.endpoint,
            peer_endpoint=self.target.peer_endpoint,
            weight=1e-9,
            number=9,
        )
        known.bucket.add(name=BUCKET, uuid=BUCKET_UUID, copies=1, min_copies=1)

    def with_copies(self, copies: int) -> None:
        known = self.cluster.map
        known.version += 1
        known.bucket[0].copies = copies
        self.cluster.teach()
        self.target.membership.learn(known)
        self.view = ClusterView(known)
        if copies > 1:
            granted = self.target.repair.leases._granted
            for node in known.node[:PEERS]:
                eventually(lambda node=node: granted.left_s(node.uuid, clock_s()) > 0)  # so it goes by leases now,
            for process in self.nodes:
                with closing(to_one_node(process.url, retry_s=240.0)) as one:
                    one.head(BUCKET, NAMES[0])  # and says so as soon as it holds one

    def owners(self, name: str) -> list[int]:
        return self.view.owners(self.view.buckets[BUCKET], name)

    def left(self) -> int:
        service = self.target.batches
        assert service is not None
        return service.resources.reserved_bytes + service.resources.batches.held


def fill(drive: Path) -> None:
    with Store.open([drive], mode="a") as store:
        store.follow_buckets({BUCKET: BucketRecord(BUCKET_UUID.hex())})
        uploads = [store.stage(BUCKET, name, [data], {}) for name, data in OBJECTS.items()]
        for at, upload in enumerate(uploads):
            upload.assign(Version(1, 1 + at))  # the same on both nodes
        done = store.commit_many(uploads)
        assert not any(isinstance(result, LoaderError) for result in done)


@pytest.fixture
def gathering() -> Iterator[Gathering]:
    with throwaway_folder() as folder, ExitStack() as held:
        gathering = Gathering(folder, held)
        yield gathering
        for node in gathering.nodes:
            if node.alive:
                node.resume()
        eventually(lambda: gathering.left() == 0)


def kill(gathering: Gathering, number: int) -> None:
    gathering.nodes[number].kill()


def freeze(gathering: Gathering, number: int) -> None:
    gathering.nodes[number].pause()


def cut_off(gathering: Gathering, number: int) -> None:
    gathering.links[number].refuse()


def silence(gathering: Gathering, number: int) -> None:
    gathering.links[number].stall()


FAULTS = [kill, freeze, cut_off, silence]
WHEN = {"in the middle": (False, True), "from the start": (True, True), "in the middle, in any order": (False, False)}
"""Whether it happens before anything is asked, and whether the answer is ordered."""


def delay(gathering: Gathering, number: int) -> None:
    gathering.links[number].latency_s = 0.2


def narrow(gathering: Gathering, number: int) -> None:
    gathering.links[number].bytes_per_s = 8e6


def cut_later(gathering: Gathering, number: int) -> None:
    gathering.links[number].cut_after(3 * MiB + 17)


def cut_and_narrow(gathering: Gathering, number: int) -> None:
    cut_later(gathering, number)
    narrow(gathering, number)


PASSING = [delay, narrow, cut_later, cut_and_narrow]
"""A node of which there is no copy: it takes longer, or has to be asked again."""


def product(harms: Sequence[Callable[[Gathering, int], None]], turn: int) -> pytest.MarkDecorator:
    """Every harm at every moment. A turn of the slow set has each harm at one of them, and each moment."""
    return pytest.mark.parametrize(
        ("harm", "early", "ordered"),
        [
            pytest.param(
                harm,
                *WHEN[when],
                id=f"{harm.__name__}-{when}",
                marks=() if (number + at) % len(WHEN) == turn else pytest.mark.exhaustive,
            )
            for number, harm in enumerate(harms)
            for at, when in enumerate(WHEN)
        ],
    )


def ask_with_a_fault(gathering: Gathering, harm: object, number: int, *, early: bool, ordered: bool = True) -> Answer:
    """The whole answer to a batch during which something happens to a node: before it is asked, or in the middle.

    Its END has counted and folded up what came, and nothing else.
    """
    assert callable(harm)
    with RawSession(gathering.target.url) as session:
        if early:
            harm(gathering, number)
        session.send(1, batch_of(NAMES, ordered=ordered, credit=1))
        first = decode_response(next(session.call))
        assert first.frame is not None, first
        answer = Answer.of([first.frame])
        if not early:
            harm(gathering, number)
        session.send(1, pb.Credit(payload_bytes=1 << 40))
        frames, end = session.answer(1) if first.end is None else ([], first.end)
        for frame in frames:
            answer.take(frame)
        assert (end.outcome, end.entries) == (pb.End.COMPLETE, len(NAMES))
        assert end.failed_entries == sum(map(bool, answer.status.values()))
        assert sorted(answer.order) == list(range(len(NAMES)))
        assert not ordered or answer.order == list(range(len(NAMES)))
        status = np.array([answer.status[at] for at in range(len(NAMES))], np.uint8)
        good = [0 if status[at] else crc32c(OBJECTS[name]) for at, name in enumerate(NAMES)]
        assert end.digest == digest(status, np.array(good, np.uint32))
        assert end.payload_bytes == sum(len(OBJECTS[name]) for at, name in enumerate(NAMES) if not status[at])
        return answer


@product([*FAULTS, *PASSING], 0)
@pytest.mark.sampled(4)
def test_with_two_copies_nothing_is_lost(gathering: Gathering, harm: object, early: bool, ordered: bool) -> None:
    gathering.with_copies(2)
    answer = ask_with_a_fault(gathering, harm, 0, early=early, ordered=ordered)
    assert not any(answer.status.values())
    for at, name in enumerate(NAMES):
        assert answer.data[at] == OBJECTS[name], name


@product(PASSING, 1)
@pytest.mark.sampled(2)
def test_with_one_copy_a_way_that_is_slow_or_breaks_once_loses_nothing(
    gathering: Gathering, harm: object, early: bool, ordered: bool
) -> None:
    gathering.with_copies(1)
    answer = ask_with_a_fault(gathering, harm, 1, early=early, ordered=ordered)
    assert not any(answer.status.values())
    for at, name in enumerate(NAMES):
        assert answer.data[at] == OBJECTS[name], name


@product(FAULTS, 1)
@pytest.mark.sampled(2)
def test_with_one_copy_its_entries_are_unavailable_in_their_place(
    gathering: Gathering, harm: object, early: bool, ordered: bool
) -> None:
    gathering.with_copies(1)
    answer = ask_with_a_fault(gathering, harm, 1, early=early, ordered=ordered)
    failed = {at for at in answer.order if answer.status[at]}
    of_lost_node = {at for at, name in enumerate(NAMES) if gathering.owners(name) == [1]}
    # In the middle it may have sent some of them, or none yet, where the other one was quicker.
    assert failed == of_lost_node if early else failed and failed <= of_lost_node
    assert {answer.status[at] for at in failed} == {pb.UNAVAILABLE}
    assert all(answer.faults[at].message for at in failed)
    for at in set(answer.order) - failed:
        assert answer.data[at] == OBJECTS[NAMES[at]]


def test_when_all_copies_are_gone_the_batch_still_ends(gathering: Gathering) -> None:
    gathering.with_copies(2)
    kill(gathering, 0)
    answer = ask_with_a_fault(gathering, kill, 1, early=True)
    assert set(answer.status.values()) == {pb.UNAVAILABLE}
