"""Cluster part of the soak: storage nodes as processes that are killed, frozen, cut off, filled up, added and removed.

Clients of every kind run over all of it. After every ten events everything is mended; when the copies are equal, or
should be, what each node has on its own drives is read, and the history is judged.
"""

from __future__ import annotations

import heapq
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from ais_loader import Client, ClusterOptions, connect, errors
from ais_loader.testing import NodeProcess, eventually
from ais_loader.testing.node import peer_secret_file
from ais_loader.values.options import LaneChoice
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from benchmarks.soak.checker import Rules
from benchmarks.soak.clients import READS, WRITES, Sizes, SoakClient, item_of, kind_of, run_all
from benchmarks.soak.history import Recorder
from benchmarks.soak.machine import Network, Shim
from benchmarks.soak.outcome import Outcome, judge
from benchmarks.soak.processes import context, recording, start, stop
from benchmarks.soak.register import Violation
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.consensus.errors import ChangeFailed
from storage_node.cluster.map.mutations import add_node, begin_leave, create_cluster
from storage_node.context.channels import Caller, read_secret
from storage_node.ops.ask_nodes import ask_node, newest_map

BUCKET = "soak"
REDUNDANCY = "rs:2+1"
NODES = 3
MOST_NODES = 5
PLACES = 12
EVENTS_A_ROUND = 10
NAMES = 60
PROCESSES = "cd"
"""Names of those that run clients, each all of CLIENTS."""
RETRY_S = 15.0
DEADLINE_S = 120.0
QUIET_S = 240.0
"""How long copies may take to become equal once everything is mended."""
PATIENCE_S = 150
"""After so long a node that waits for others in vain serves what it has, for which nothing is promised: longer than
any fault takes, and the start of a node on a busy machine."""
ARGUMENTS = ("--set", "repair_interval_s=5", "--set", "drive_grace_s=4", "--set", f"reconcile_patience_s={PATIENCE_S}")
EVENTS: Mapping[str, float] = {
    "kill": 4,
    "restart": 2,
    "freeze": 3,
    "cut from node": 3,
    "cut one way": 2,
    "cut from clients": 2,
    "clock jump": 3,
    "drives full": 1.5,
    "kill all": 0.7,
    "add": 1.5,
    "remove": 1.5,
    "drive removed": 0.5,
}


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies and minimum copies of the bucket."""

    copies: int
    min_copies: int

    @classmethod
    def of(cls, seed: int) -> Copies:
        """Odd seeds have a cache's, even ones what is recommended for what cannot be made again."""
        return cls(2, 1) if seed % 2 else cls(3, 2)

    @property
    def excluded(self) -> frozenset[str]:
        """Faults that docs/cluster.md excludes: two nodes that fail in turn are ordered by their clocks alone."""
        return frozenset({"clock jump"}) if self.min_copies == 1 else frozenset()


@dataclass(frozen=True, slots=True)
class Task:
    """Task of a process of clients."""

    url: str
    folder: str
    name: str
    seed: str
    prefix: str
    clients: Sequence[tuple[str, Mapping[str, float], Sequence[str]]] = ()
    """Name, mix and assemblies of each."""
    drives: Mapping[str, str] = field(default_factory=dict)
    """Drives of each node, for processes that read them."""
    pause_s: float = 0.01
    copies: int = 1
    beside: bool = False
    """Its readers may be behind the writer by the slack of the rules."""
    sizes: Sizes = field(default_factory=Sizes)
    lane: LaneChoice = "auto"

    def keys(self) -> list[str]:
        return [f"{self.prefix}/{at:03}" for at in range(NAMES)]


WRITING = {**READS, **WRITES, "snapshot": 0.02}
CLIENTS: Sequence[tuple[str, Mapping[str, float], Sequence[str]]] = (
    ("a", WRITING, ("auto",)),
    ("b", WRITING, ("target",)),
    ("c", {**WRITING, "cas": 12}, ("direct",)),
    ("d", {**READS, "batch": 10}, ("target", "direct")),
    ("e", {**READS, "list": 10}, ("auto",)),
)


def use(task: Task) -> None:
    """Clients in threads over one connection, until told to stop."""
    options = ClusterOptions(retry_s=RETRY_S, lane=task.lane)
    with (
        recording(Path(task.folder), task.name) as (recorder, stopping),
        connect(task.url, options=options) as client,
    ):
        clients = [
            SoakClient(
                f"{task.name}{name}",
                client,
                BUCKET,
                recorder,
                task.keys,
                f"{task.seed} {name}",
                mix,
                task.sizes,
                beside=task.beside,
                assemblies=assemblies,
                pause_s=task.pause_s,
            )
            for name, mix, assemblies in task.clients
        ]
        run_all(clients, stopping, Path(task.folder) / f"{task.name}.stacks", DEADLINE_S)


def read_all(task: Task) -> None:
    """Everything once more, by a client that knows nothing yet."""
    options = ClusterOptions(retry_s=2 * RETRY_S)
    with recording(Path(task.folder), task.name) as (recorder, _), connect(task.url, options=options) as client:
        for assembly in ("direct", "target"):
            one = SoakClient(
                f"{task.name}{assembly}",
                client,
                BUCKET,
                recorder,
                task.keys,
                task.seed,
                READS,
                assemblies=(assembly,),
            )
            one.read_all()


def read_copies(task: Task) -> None:
    """Read the contents of each node's own drives, once all are equal or the wait is over."""
    with recording(Path(task.folder), task.name) as (recorder, _):
        deadline = time.monotonic() + QUIET_S
        while True:
            found = {name: _on_drives(drives, task.keys()) for name, drives in task.drives.items()}
            if _equal(found.values(), task.copies) or time.monotonic() > deadline:
                break
            time.sleep(1.0)
        for name, drives in task.drives.items():
            number = recorder.begin(task.name, "read", keys=task.keys(), copy=name, how="drives")
            recorder.end(number, "ok", items=_on_drives(drives, task.keys()))


def _on_drives(drives: str, keys: Sequence[str]) -> list[list[Any]]:
    with connect(drives, mode="r") as client:
        try:
            bucket = client.bucket(BUCKET)
            versions = {info.name: info.version for info in bucket.objects(keys[0].partition("/")[0] + "/")}
            items = [item_of(item) for item in bucket.get_batch(keys, on_error="placeholder")]
        except errors.BucketNotFound:
            return [["absent", None, None, None, None] for _ in keys]
    return [[*item[:4], versions.get(key)] for item, key in zip(items, keys, strict=True)]


def _equal(found: Any, copies: int) -> bool:
    for one in zip(*found, strict=True):
        there = [(state, value, version) for state, value, _, _, version in one if state != "absent"]
        if there and (len(set(there)) > 1 or len(there) < copies or not there[0][0]):
            return False
    return True


@dataclass(slots=True)
class Member:
    """One node."""

    number: int
    place: int
    process: NodeProcess
    shim: Shim
    endpoint: str
    peer_endpoint: str
    uuid: bytes
    busy: bool = False
    """A fault is under way."""
    leaving: bool = False

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def drives(self) -> str:
        return ",".join(str(drive) for drive in self.process.drives if drive.exists())


class ClusterSoak:
    """Nodes below `root`, and what is done to them."""

    name = "cluster"
    arguments: Sequence[str] = ARGUMENTS
    environment: Mapping[str, str] = {}
    """Further variables of the nodes."""

    def __init__(
        self,
        root: Path,
        seed: int,
        say: Callable[[str], None],
        *,
        namespaces: bool = True,
        only: Mapping[str, float] = EVENTS,
    ) -> None:
        """`only`: what happens, by weight. `namespaces`: part nodes by these where that is possible."""
        self._root = root
        self.copies = self.copies_of(seed)
        self._weights = {name: weight for name, weight in only.items() if name not in self.copies.excluded}
        self._seed = seed
        self._say = say
        self._draw = random.Random(f"cluster {seed}")
        self._operator = Caller(read_secret(peer_secret_file()))
        self._held = ExitStack()
        self._numbers = count(1)
        self._context = context()
        self._faults: Recorder | None = None
        self._ends: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.members: list[Member] = []
        self.outcome = Outcome(self.name, seed)
        self.outcome.figures |= {"copies": self.copies.copies, "min_copies": self.copies.min_copies}
        try:
            self._network = self.network(self._held, namespaces=namespaces)
            self._free = list(range(PLACES))
            for _ in range(NODES):
                self._new_member()
            nodes = [self._map_node(member) for member in self.members]
            change_map(self._endpoints(), create_cluster(nodes), timeout_s=30, caller=self._operator)
            with connect(self.url) as client:
                self.create_bucket(client)
        except BaseException:
            self.close()
            raise

    def copies_of(self, seed: int) -> Copies:
        return Copies.of(seed)

    def create_bucket(self, client: Client) -> None:
        client.create_bucket(BUCKET, copies=self.copies.copies, min_copies=self.copies.min_copies)

    def network(self, held: ExitStack, *, namespaces: bool) -> Network:
        return Network(PLACES, held, namespaces=namespaces)

    def tasks(self, folder: Path, number: int) -> list[Task]:
        """Return the tasks of the client processes for a round."""
        return [
            Task(self.url, str(folder), f"{at}{number}", f"{self._seed} {at}{number}", f"r{number}", CLIENTS)
            for at in PROCESSES
        ]

    def last_tasks(self, folder: Path, number: int) -> list[tuple[Callable[[Task], None], Task]]:
        """Return the processes that read everything at the end of a round, one after another."""
        drives = {member.name: member.drives for member in self.members}
        task = Task(self.url, str(folder), "", str(self._seed), f"r{number}", drives=drives, copies=self.copies.copies)
        return [(read_copies, replace(task, name=f"copies{number}")), (read_all, replace(task, name=f"last{number}"))]

    def rules(self) -> Rules:
        return Rules("regular", deadline_s=DEADLINE_S, copies=self.copies.copies)

    @property
    def url(self) -> str:
        return "grpc://" + ",".join(member.endpoint for member in self.members if not member.leaving)

    def _endpoints(self) -> list[str]:
        return [member.endpoint for member in self.members]

    def _map_node(self, member: Member) -> pb.MapNode:
        return pb.MapNode(
            uuid=member.uuid,
            host=f"host-{member.number}",
            endpoint=member.endpoint,
            peer_endpoint=member.peer_endpoint,
            weight=1.0,
        )

    def _new_member(self) -> Member:
        number, place = next(self._numbers), self._free.pop(0)
        folder = self._root / f"node-{number}"
        folder.mkdir()
        shim = Shim(self._root, folder)
        where = self._network.place(place)
        process = self._held.enter_context(
            NodeProcess(
                [folder / "drive-1", folder / "drive-2"],
                arguments=[*self.arguments, *self._network.advertised(place)],
                environment={**shim.environment, **self.environment},
                host=where.address,
                launcher=where.launcher,
            )
        )
        endpoint, peer_endpoint = self._network.endpoints(place, process)
        answer = eventually(lambda: (found := ask_node(endpoint)).uuid and found)
        member = Member(number, place, process, shim, endpoint, peer_endpoint, bytes.fromhex(answer.uuid))
        self.members.append(member)
        return member

    # -- a run

    def run(self, events: int, duration_s: float) -> Outcome:
        begin, done, number = time.monotonic(), 0, 0
        while done < events and time.monotonic() - begin < duration_s and self.outcome.clean:
            done += self._round(number, min(EVENTS_A_ROUND, events - done))
            number += 1
            self._say(
                f"{done} events, {self.outcome.operations:,} operations, {len(self.outcome.violations)} violations"
            )
        self.outcome.duration_s = time.monotonic() - begin
        return self.outcome

    def _round(self, number: int, events: int) -> int:
        folder = self._root / f"round-{number:03}"
        folder.mkdir()
        self._faults = Recorder(folder / "faults.jsonl")
        clients = [start(self._context, use, task) for task in self.tasks(folder, number)]
        try:
            for at in range(events):
                self._until(time.monotonic() + self._draw.uniform(0.2, 2.0))
                self._event(first=at == 0)
            self._until(time.monotonic() + 1.0)
            self._mend_all()
            self._until(time.monotonic() + 2.0)
        finally:
            stop(*clients)
        try:
            self._quiet()
            for target, task in self.last_tasks(folder, number):
                process = start(self._context, target, task)
                process.join(QUIET_S + DEADLINE_S)
                stop(process)
        finally:
            self._faults.close()
            for member in self.members:
                (folder / f"{member.name}.log").write_text(member.process.log())
            said = (f"{member.name}\n{ask_node(member.endpoint)}\n" for member in self.members if member.process.alive)
            (folder / "status.txt").write_text("\n".join(said))
        self.outcome.take(judge(folder, self.rules()))
        return events

    def _event(self, *, first: bool) -> None:
        names, weights = list(self._weights), list(self._weights.values())
        for _ in range(20):
            name = self._draw.choices(names, weights)[0]
            if name == "drive removed" and not first:
                continue  # only while all copies are known to be there
            if self._begin(name):
                return
            self._until(time.monotonic() + 0.2)

    def _idle(self) -> list[Member]:
        return [member for member in self.members if not member.busy and not member.leaving]

    def _begin(self, name: str) -> bool:
        """Whether it could be done now."""
        idle, draw = self._idle(), self._draw
        busy = any(member.busy for member in self.members)
        if not idle or (name in ("add", "remove", "kill all", "drive removed") and busy):
            return False
        member = draw.choice(idle)
        if name in ("kill", "restart"):
            end = member.process.kill if name == "kill" else member.process.stop
            self._done(name, [member], end)
            self._later(name, [member], draw.choice([0.0, 0.5, 2.0, 5.0]), member.process.start)
        elif name == "freeze":
            self._done(name, [member], member.process.pause)
            self._later(name, [member], draw.uniform(0.3, 6.0), member.process.resume)
        elif name in ("cut from node", "cut one way"):
            other = draw.choice([one for one in self.members if one is not member])
            one_way = name == "cut one way"
            self._done(
                name,
                [member, other],
                lambda: self._network.cut(member.place, other.place, one_way=one_way),
                busy=member,
            )
            self._later(name, [member], draw.uniform(1.0, 8.0), lambda: self._network.mend(member.place, other.place))
        elif name == "cut from clients":
            self._done(name, [member], lambda: self._network.cut(member.place, None))
            self._later(name, [member], draw.uniform(1.0, 8.0), lambda: self._network.mend(member.place, None))
        elif name == "clock jump":
            if not member.shim.works:
                return False
            ahead_s = draw.choice([-7200.0, -60.0, -2.0, -0.4, 0.0, 0.4, 2.0, 60.0, 7200.0])
            self._done(name, [member], lambda: setattr(member.shim, "ahead_s", ahead_s), to_s=ahead_s)
            member.busy = False
        elif name == "drives full":
            if not member.shim.works:
                return False
            self._done(name, [member], lambda: setattr(member.shim, "full", True))
            self._later(name, [member], draw.uniform(1.0, 5.0), lambda: setattr(member.shim, "full", False))
        elif name == "kill all":
            for one in self.members:
                self._done(name, [one], one.process.kill)
                self._later(name, [one], draw.choice([0.0, 1.0, 3.0]), one.process.start)
        elif name == "add":
            return self._add()
        elif name == "remove":
            return self._remove(member)
        elif name == "drive removed":
            return self._remove_drive(member)
        self.outcome.events[name] += 1
        return True

    def _add(self) -> bool:
        if len(self.members) >= MOST_NODES or not self._free:
            return False
        member = self._new_member()

        def join() -> None:
            change_map(self._endpoints(), add_node(self._map_node(member)), timeout_s=20, caller=self._operator)

        try:
            self._done("add", [member], join)
        except (ChangeFailed, ValueError, OSError):
            self._drop(member)
            return False
        member.busy = False
        self.outcome.events["add"] += 1
        return True

    def _remove(self, member: Member) -> bool:
        if sum(not one.leaving for one in self.members) <= NODES:
            return False
        try:
            self._done(
                "remove",
                [member],
                lambda: (
                    change_map(self._endpoints(), begin_leave(member.uuid), timeout_s=20, caller=self._operator)
                    and None
                ),
            )
        except (ChangeFailed, ValueError, OSError):
            member.busy = False
            return False
        member.leaving, member.busy = True, False
        self.outcome.events["remove"] += 1
        return True

    def _remove_drive(self, member: Member) -> bool:
        if sum(drive.exists() for drive in member.process.drives) < 2 or any(one.leaving for one in self.members):
            return False
        drive = self._draw.choice(member.process.drives)
        self._done("drive removed", [member], lambda: shutil.rmtree(drive, ignore_errors=True), drive=drive.name)
        member.process.drives.remove(drive)
        # What had its other copy here alone is copied before anything else happens.
        self._later("drive removed", [member], 15.0, lambda: None)
        for other in self.members:
            other.busy = True
        heapq.heappush(self._ends, (time.monotonic() + 15.0, next(self._order), self._all_idle))
        self.outcome.events["drive removed"] += 1
        return True

    def _all_idle(self) -> None:
        for member in self.members:
            member.busy = False

    def _drop(self, member: Member) -> None:
        self.members.remove(member)
        member.process.kill()
        self._free.append(member.place)

    # -- faults with a beginning and an end

    def _done(
        self, name: str, members: Sequence[Member], do: Callable[[], object], *, busy: Member | None = None, **more: Any
    ) -> None:
        assert self._faults is not None
        for member in [busy] if busy is not None else members:
            member.busy = True
        number = self._faults.begin("faults", "fault", what=name, nodes=[member.name for member in members], **more)
        try:
            do()
        except Exception as error:
            self._faults.end(number, "unknown", text=f"{kind_of(error)}: {error}"[:300])
            raise
        self._faults.end(number, "ok")

    def _later(self, name: str, members: Sequence[Member], after_s: float, do: Callable[[], object]) -> None:
        def end() -> None:
            try:
                self._done(f"end of {name}", members, do)
            except Exception as error:  # noqa: BLE001 - a node that does not come back is what is looked for
                who = ", ".join(member.name for member in members)
                self.outcome.violations.append(
                    Violation("node does not come back", who, f"after {name}: {error}"[:2000])
                )
            for member in members:
                member.busy = False

        heapq.heappush(self._ends, (time.monotonic() + after_s, next(self._order), end))

    def _until(self, moment: float) -> None:
        """Let time pass; what is due ends."""
        while (now := time.monotonic()) < moment:
            if self._ends and self._ends[0][0] <= now:
                heapq.heappop(self._ends)[2]()
            else:
                due = self._ends[0][0] if self._ends else moment
                time.sleep(max(0.0, min(moment, due) - now))

    def _mend_all(self) -> None:
        while self._ends:
            heapq.heappop(self._ends)[2]()
        for member in self.members:
            member.shim.ahead_s = 0.0

    def _quiet(self) -> None:
        """Until the map has come to its end: those who leave are out, and those who join are active."""

        def settled() -> bool:
            map_ = newest_map(ask_node(member.endpoint) for member in self.members)
            if map_ is None:
                return False
            there = {node.uuid for node in map_.node}
            for member in list(self.members):
                if member.leaving and member.uuid not in there:
                    self._drop(member)
            return all(node.state == pb.MapNode.ACTIVE for node in map_.node)

        try:
            eventually(settled, QUIET_S, interval_s=0.5)
        except AssertionError:
            said = "; ".join(f"{m.name}: {ask_node(m.endpoint).problem or 'answers'}" for m in self.members)
            self.outcome.violations.append(Violation("a change of the map does not end", "map", said))

    def close(self) -> None:
        for member in self.members:
            with suppress(OSError, RuntimeError):
                member.process.kill()
        self._held.close()

    def __enter__(self) -> ClusterSoak:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CodedSoak(ClusterSoak):
    """The same with an erasure coded bucket. What nodes have on their drives is compared after the way back to copies,
    which is thereby part of every round."""

    name = "coded"
    arguments = (*ARGUMENTS, "--set", "coding_delay_s=0.5", "--set", "coding_grace_s=60")

    def copies_of(self, seed: int) -> Copies:
        return Copies(2, 1 if seed % 2 else 2)

    def create_bucket(self, client: Client) -> None:
        client.create_bucket(BUCKET, min_copies=self.copies.min_copies, redundancy=REDUNDANCY)

    def tasks(self, folder: Path, number: int) -> list[Task]:
        self._set(REDUNDANCY)
        return super().tasks(folder, number)

    def last_tasks(self, folder: Path, number: int) -> list[tuple[Callable[[Task], None], Task]]:
        read_copies_task, read_all_task = super().last_tasks(folder, number)
        again = replace(read_all_task[1], name=f"coded{number}")
        self._set("copies")
        return [(read_all, again), read_copies_task, read_all_task]

    def _set(self, redundancy: str) -> None:
        with connect(self.url, options=ClusterOptions(retry_s=2 * RETRY_S)) as client:
            client.bucket(BUCKET).set(redundancy=redundancy)
