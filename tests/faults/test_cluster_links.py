"""Ways between client and nodes, and between node and node, that are cut, lose one direction, or come and go.

On machines of network namespaces, where this kernel allows them: any two of them are parted while both see the third,
and what is cut is silent, as behind a dead switch. Everywhere else, and here as well, through proxies: then nobody sees
the node that is cut off.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from ais_loader import Client, ClusterOptions, connect, errors
from ais_loader.testing import throwaway_folder
from ais_loader.values.entry import Status
from ais_loader.wire.cluster_map import ClusterView
from tests.cluster_processes import ClusterProcesses
from tests.faults.fault_kit import (
    BUCKETS,
    MIXED,
    MODES,
    OBJECTS,
    Kind,
    Leftovers,
    MiB,
    check,
    designated,
    fill,
    nothing_held,
    read,
    serve_all,
)
from tests.faulty_link import FaultyLink
from tests.machines_kit import Machines

pytestmark = pytest.mark.slow  # silence is awaited for ten seconds, by nodes

NODES = 3
RETRY_S = 30.0
SILENCE_S = 12.0
"""Longer than a machine stands still."""
SHORT_SILENCE_S = 1.0
LONG_SILENCE_S = 40.0
"""For a client of a node that itself waits for a silent one."""
GROWN_BYTES = 64 * MiB


class Switch:
    """Nodes on machines of their own; None is this process. Anybody can be parted from anybody."""

    parts_any_two = True

    def __init__(self, folder: Path, held: ExitStack) -> None:
        self.machines = held.enter_context(Machines(NODES))
        self.cluster = held.enter_context(
            ClusterProcesses(folder, NODES, buckets=BUCKETS, metrics=True, places=self.machines.places)
        )
        self.url = self.cluster.url
        self._lost: list[tuple[int | None, int | None]] = []

    def lose(self, sender: int | None, receiver: int | None) -> None:
        if (sender, receiver) not in self._lost:
            self.machines.lose(sender, receiver)
            self._lost.append((sender, receiver))

    def descriptors_between_nodes(self) -> int:
        """In this process."""
        return 0

    def cut(self, one: int | None, other: int) -> None:
        self.lose(one, other)
        self.lose(other, one)

    def mend(self) -> None:
        while self._lost:
            self.machines.carry(*self._lost.pop())


class Proxies:
    """Nodes that everybody reaches through proxies: one that is cut off is so for all."""

    parts_any_two = False

    def __init__(self, folder: Path, held: ExitStack) -> None:
        self.cluster = held.enter_context(ClusterProcesses(folder, NODES, buckets=BUCKETS, metrics=True))
        self._links = [held.enter_context(FaultyLink(node.url)) for node in self.cluster.nodes]
        self._peer_links = [held.enter_context(FaultyLink(node.peer_endpoint)) for node in self.cluster.nodes]
        for node, link, peer_link in zip(self.cluster.map.node, self._links, self._peer_links, strict=True):
            node.endpoint = link.url.removeprefix("grpc://")
            node.peer_endpoint = peer_link.url.removeprefix("grpc://")
        self.cluster.map.version += 1
        self.cluster.teach()
        self.url = "grpc://" + ",".join(link.url.removeprefix("grpc://") for link in self._links)

    def descriptors_between_nodes(self) -> int:
        """A proxied connection has two ends here."""
        return 2 * sum(link.connections for link in self._peer_links)

    def cut(self, one: int | None, other: int) -> None:
        self._links[other].stall()
        self._peer_links[other].stall()

    def mend(self) -> None:
        for link in (*self._links, *self._peer_links):
            link.flow()


Net = Switch | Proxies


@pytest.fixture(scope="module", params=[*([Switch] if Machines.possible() else []), Proxies])
def built(request: pytest.FixtureRequest) -> Iterator[Net]:
    with throwaway_folder() as folder, ExitStack() as held:
        net: Net = request.param(folder, held)
        fill(net.url)
        yield net


@pytest.fixture
def net(built: Net) -> Iterator[Net]:
    """Each test leaves the nodes running; what it cut is mended here, and all that was held is given back."""
    serve_all(built.cluster)
    yield built
    built.mend()
    nothing_held(built.cluster)


@pytest.fixture
def client(net: Net) -> Iterator[Client]:
    with connect(net.url, options=ClusterOptions(retry_s=RETRY_S, verify_payload=True)) as client:
        # Whoever is cut off is so in the middle of a session.
        for mode in MODES:
            read(client.bucket("two"), MIXED, Kind(*mode))
        yield client


def another(than: int) -> int:
    return (than + 1) % NODES


def owned(net: Net, node: int) -> set[str]:
    view = ClusterView(net.cluster.map)
    return {name for name in OBJECTS if view.owners(view.buckets["one"], name)[0] == node}


# -- between client and node


BEGINNING, MIDDLE = 0, len(MIXED) // 2


@pytest.mark.parametrize(
    ("assembly", "ordered", "at"),
    [
        *((*mode, at) for mode, at in zip(MODES, (BEGINNING, MIDDLE, MIDDLE, BEGINNING), strict=True)),
        *(
            pytest.param(*mode, at, marks=pytest.mark.exhaustive)
            for mode, at in zip(MODES, (MIDDLE, BEGINNING, BEGINNING, MIDDLE), strict=True)
        ),
    ],
)
@pytest.mark.sampled(4)
def test_a_client_cut_off_from_a_node_has_everything_from_the_others(
    net: Net, client: Client, assembly: str, ordered: bool, at: int
) -> None:
    def cut() -> None:
        net.cut(None, designated(net.cluster) if assembly == "target" else 1)

    # A proxy cuts off the node for the others as well: they have to find that out first.
    silence_s = SILENCE_S if net.parts_any_two or assembly == "direct" else LONG_SILENCE_S
    read(client.bucket("two"), MIXED, Kind(assembly, ordered), at=at, harm=cut, timeout_s=silence_s)


@pytest.mark.parametrize("ordered", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_the_only_copies_of_a_node_that_is_cut_off_from_the_client_time_out_in_their_place(
    net: Net, client: Client, ordered: bool
) -> None:
    [victim] = (node for node in range(NODES) if "l/1" in owned(net, node))  # more than it may send ahead
    batch = client.bucket("one").get_batch(
        MIXED, assembly="direct", ordered=ordered, on_error="placeholder", timeout_s=SILENCE_S
    )
    items = [next(batch)]
    net.cut(None, victim)
    items += list(batch)
    assert sorted(item.index for item in items) == list(range(len(MIXED)))
    assert not ordered or [item.index for item in items] == list(range(len(MIXED)))
    failed = {MIXED[item.index] for item in items if not item.ok}
    assert failed and failed <= owned(net, victim)
    assert {item.status for item in items if not item.ok} == {Status.TIMEOUT}
    assert all(item.tobytes() == OBJECTS[MIXED[item.index]] for item in items if item.ok)
    net.mend()
    read(client.bucket("one"), MIXED, Kind("direct", ordered), timeout_s=LONG_SILENCE_S)


# -- between node and node


@pytest.mark.parametrize(
    ("bucket", "ordered"),
    [
        ("one", True),
        ("two", False),
        *(pytest.param(*other, marks=pytest.mark.exhaustive) for other in (("one", False), ("two", True))),
    ],
)
@pytest.mark.sampled(2)
def test_a_node_that_gathers_is_parted_from_one_that_sends(
    net: Net, client: Client, bucket: str, ordered: bool
) -> None:
    def cut() -> None:
        target = designated(net.cluster)
        net.cut(target, another(target))

    if bucket == "one" and not net.parts_any_two:
        # Nobody reaches that node now; in the end everybody does.
        def cut_for_a_while() -> None:
            cut()
            net.mend()

        harm: Callable[[], None] = cut_for_a_while
    else:
        harm = cut
    kind = Kind("target", ordered)
    read(client.bucket(bucket), MIXED, kind, at=len(MIXED) // 3, harm=harm, timeout_s=LONG_SILENCE_S)


# -- one way only


if Machines.possible():

    @pytest.mark.parametrize("to_target", [True, False], ids=["to the one that gathers", "from it"])
    @pytest.mark.parametrize("peer", ["client", "node"])
    @pytest.mark.parametrize("built", [Switch], indirect=True)
    def test_one_direction_is_lost(net: Switch, client: Client, peer: str, to_target: bool) -> None:
        def lose() -> None:
            target = designated(net.cluster)
            other = None if peer == "client" else another(target)
            net.lose(other, target) if to_target else net.lose(target, other)

        silence_s = SILENCE_S if peer == "client" else LONG_SILENCE_S
        kind = Kind("target", ordered=True)
        read(client.bucket("two"), MIXED, kind, at=len(MIXED) // 3, harm=lose, timeout_s=silence_s)

    @pytest.mark.parametrize("built", [Switch], indirect=True)
    def test_the_cable_of_a_node_is_pulled_and_plugged_in_again(net: Switch, client: Client) -> None:
        for victim, mode in zip((0, 1, 2, 0), MODES, strict=True):
            silence_s = SILENCE_S if mode[0] == "direct" else LONG_SILENCE_S
            read(
                client.bucket("two"),
                MIXED,
                Kind(*mode),
                at=len(MIXED) // 4,
                timeout_s=silence_s,
                harm=partial(net.machines.unplug, victim),
            )
            net.machines.plug(victim)
            serve_all(net.cluster)
            check(list(client.bucket("one").get_batch(MIXED, timeout_s=LONG_SILENCE_S)), MIXED)


# -- again and again


@pytest.mark.sampled(1)
def test_many_cuts_leave_nothing_behind(net: Net) -> None:
    """Nobody dies here: what each of them has in memory can be compared."""
    draw = random.Random(11)
    rounds, warm, whole = 24, 8, 0
    base: list[int] = []
    with Leftovers(descriptors_of_others=net.descriptors_between_nodes) as left:
        with connect(net.url, options=ClusterOptions(retry_s=RETRY_S, verify_payload=True)) as client:
            for number in range(rounds):
                if number == warm:
                    left.warm()
                    base = [node.rss_bytes() for node in net.cluster.nodes]
                names = draw.choices(MIXED, k=draw.randrange(60, 160))
                one, other = draw.choice([(None, 0), (None, 1), (None, 2), (0, 1), (1, 2), (2, 0)])
                kind = Kind("direct" if number % 8 else "target", draw.random() < 0.5)
                silence_s = SHORT_SILENCE_S if kind.assembly == "direct" else LONG_SILENCE_S
                at = draw.randrange(len(names))
                try:
                    harm = partial(net.cut, one, other)
                    read(client.bucket("two"), names, kind, at=at, timeout_s=silence_s, harm=harm)
                    whole += 1
                except errors.SilenceTimeout:  # a machine that stands still for so long is silent as a whole
                    assert kind.assembly == "direct"
                    net.mend()
                    read(client.bucket("two"), names, kind, timeout_s=LONG_SILENCE_S)
                net.mend()
        assert whole
        nothing_held(net.cluster)
    for node, before in zip(net.cluster.nodes, base, strict=True):
        assert node.rss_bytes() - before < GROWN_BYTES
