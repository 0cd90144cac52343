"""Soak of one node under attack: hostile connections do what they can while ordinary clients do checked work.

An attack is bounded in connections and bytes, and many of them run at the same time. The clients' history is judged as
in every soak. Beyond that, no client may wait long for an answer, the node keeps within its memory and descriptors, and
after the attacks everything is as before.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import grpc

from ais_loader import ClusterOptions, connect
from ais_loader.testing import NodeProcess
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.generated import ais_batch_pb2_grpc
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.lane import CALL, DATA, GREETING, HEADER, MAGIC, MESSAGE, VERSION
from benchmarks.soak.checker import Rules
from benchmarks.soak.half_messages import HalfMessages, pump_all
from benchmarks.soak.history import read_history
from benchmarks.soak.outcome import Outcome, judge
from benchmarks.soak.overload import BUCKET, Task, judge_progress, use
from benchmarks.soak.processes import context, start, stop
from benchmarks.soak.register import Violation

Phase = Literal["before", "attack", "after"]
PROCESSES, CLIENTS = 2, 3
ATTACKERS = 4
"""Attacks that run at the same time."""
DESCRIPTORS = 1024
CRITICAL_BYTES = 600 << 20
MOST_BYTES = CRITICAL_BYTES + (300 << 20)
"""Bound on the node's resident memory: above its critical mark by what arrives before calls that stand still end."""
STARVED_S = 20.0
"""Longest time that a client may wait for an answer, on a busy machine."""
CALM_S = 40.0
"""After the last attack, everything has to be as before within this time."""
SPARE_DESCRIPTORS = 40
"""More than before, afterwards: files of the catalog come and go."""
LARGEST_BYTES = 32 << 20
RULES = Rules("atomic", deadline_s=120.0)
SETTINGS = (
    f"critical_memory_bytes={CRITICAL_BYTES}",
    "message_timeout_s=3",
    "still_s=2",
    "stall_timeout_s=10",
    "max_lanes_per_peer=400",
)
_METHODS = ("Objects/Head", "Objects/Put", "Objects/PutMany", "Objects/List", "GetBatch/Session")
_CALL_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory and descriptors of the node at one moment."""

    at_s: float
    phase: Phase
    resident_bytes: int
    descriptors: int


def judge_node(samples: Sequence[Sample]) -> list[Violation]:
    """Whether the node has kept within its bounds, and is as before in the end."""
    found = []
    resident_bytes = max((one.resident_bytes for one in samples), default=0)
    if resident_bytes > MOST_BYTES:
        found.append(Violation("memory", "node", f"{resident_bytes:,} bytes resident, {MOST_BYTES:,} at most"))
    descriptors = max((one.descriptors for one in samples), default=0)
    if descriptors >= DESCRIPTORS:
        found.append(Violation("descriptors", "node", f"all {DESCRIPTORS:,} descriptors were in use"))
    before = max((one.descriptors for one in samples if one.phase == "before"), default=0)
    after = [one for one in samples if one.phase == "after"]
    if not after:
        found.append(Violation("not calm", "node", "it was not looked at after the attacks"))
    elif after[-1].descriptors > before + SPARE_DESCRIPTORS:
        text = f"{after[-1].descriptors:,} descriptors after the attacks, {before:,} before"
        found.append(Violation("not calm", "node", text))
    elif after[-1].resident_bytes > CRITICAL_BYTES:
        found.append(Violation("not calm", "node", f"{after[-1].resident_bytes:,} bytes resident after the attacks"))
    return found


# -- the attacks


class Attacks:
    """Attacks of one hostile client; belongs to one thread. Each of them ends within seconds."""

    def __init__(self, port: int, metrics_port: int, seed: str, stopping: Callable[[], bool]) -> None:
        self._port, self._metrics_port = port, metrics_port
        self._draw = random.Random(seed)
        self._stopping = stopping
        self.kinds: dict[str, Callable[[], None]] = {
            "half calls": self.half_calls,
            "bytes that trickle": self.trickle,
            "announced bytes": self.announce,
            "connections without a token": self.strangers,
            "half messages by gRPC": self.half_messages,
            "random bytes": self.garbage,
            "idle connections to the metrics": self.metrics,
        }

    def half_calls(self) -> None:
        """Lanes that stop somewhere in the first messages of a call."""
        call = self._put("half") + HEADER.pack(100, DATA) + bytes(50)
        with self._lanes(100) as lanes:
            for lane in lanes:
                _send(lane, call[: self._draw.randrange(len(call))])
            self._wait(3.0)

    def trickle(self) -> None:
        """PUTs that send a few bytes at a time."""
        with self._lanes(60) as lanes:
            for lane in lanes:
                _send(lane, self._put("trickled"))
            for _ in range(60):
                for lane in lanes:
                    _send(lane, HEADER.pack(2, DATA) + b"x")
                self._wait(0.02)
                for lane in lanes:
                    _send(lane, b"x")
                self._wait(0.02)

    def announce(self) -> None:
        """Messages that are announced and hardly begun."""
        announcements = [
            _named("Objects/Put") + HEADER.pack(LARGEST_BYTES, MESSAGE),
            _named("Objects/PutMany") + HEADER.pack(LARGEST_BYTES, MESSAGE),
            self._put("announced") + HEADER.pack(LARGEST_BYTES, DATA),
            HEADER.pack(LARGEST_BYTES, MESSAGE),
        ]
        with self._lanes(60) as lanes:
            for lane in lanes:
                _send(lane, self._draw.choice(announcements) + bytes(self._draw.choice((0, 1000, 100_000))))
            self._wait(3.0)

    def strangers(self) -> None:
        """Connections that show no token, or half of one."""
        tcp_port = self._offers(1)[0].tcp_port
        with ExitStack() as held:
            for _ in range(300):
                with suppress(OSError):
                    sock = held.enter_context(socket.create_connection(("127.0.0.1", tcp_port), timeout=1.0))
                    _send(sock, self._draw.choice((b"", b"AISL", os.urandom(GREETING.size))))
            self._wait(1.0)

    def half_messages(self) -> None:
        """Calls by gRPC whose messages are never completed."""
        size_bytes = self._draw.choice((1 << 20, 31 << 20))
        with ExitStack() as held:
            connections = [held.enter_context(HalfMessages("127.0.0.1", self._port)) for _ in range(3)]
            for connection in connections:
                connection.call(f"/ais_loader.v1.{self._draw.choice(_METHODS)}", size_bytes + 1, size_bytes)
            ends_s = time.monotonic() + 4.0
            while time.monotonic() < ends_s and not self._stopping():
                pump_all(connections)
                time.sleep(0.01)

    def garbage(self) -> None:
        """Bytes that mean nothing, to lanes and to gRPC."""
        with self._lanes(20) as lanes, ExitStack() as held:
            for lane in lanes:
                _send(lane, self._draw.randbytes(self._draw.choice((7, 8, 100, 100_000))))
            for _ in range(20):
                with suppress(OSError):
                    sock = held.enter_context(socket.create_connection(("127.0.0.1", self._port), timeout=1.0))
                    _send(sock, self._draw.randbytes(1000))
            self._wait(1.0)

    def metrics(self) -> None:
        """Connections to the metrics that ask for nothing."""
        with ExitStack() as held:
            for _ in range(50):
                with suppress(OSError):
                    sock = held.enter_context(socket.create_connection(("127.0.0.1", self._metrics_port), timeout=1.0))
                    _send(sock, self._draw.choice((b"", b"GET /metr")))
            self._wait(2.0)

    def run(self, counts: Counter[str]) -> None:
        """One attack after another, until stopped."""
        while not self._stopping():
            kind = self._draw.choice(list(self.kinds))
            with suppress(OSError, grpc.RpcError):  # a node that refuses it does so rightly
                self.kinds[kind]()
            counts[kind] += 1

    def _wait(self, wait_s: float) -> None:
        ends_s = time.monotonic() + wait_s
        while time.monotonic() < ends_s and not self._stopping():
            time.sleep(min(0.1, wait_s))

    def _put(self, name: str) -> bytes:
        header = pb.PutRequest(header=pb.PutHeader(bucket=BUCKET, name=f"hostile/{name}")).SerializeToString()
        return _named("Objects/Put") + HEADER.pack(len(header), MESSAGE) + header

    def _offers(self, count: int) -> list[batch_pb.OpenLaneResponse]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"127.0.0.1:{self._port}", options=options) as channel:
            open_lane = ais_batch_pb2_grpc.GetBatchStub(channel).OpenLane
            request = batch_pb.OpenLaneRequest(port=self._port)
            return [open_lane(request, timeout=_CALL_TIMEOUT_S) for _ in range(count)]

    @contextmanager
    def _lanes(self, count: int) -> Iterator[list[socket.socket]]:
        """Lanes that have shown their token."""
        with ExitStack() as held:
            lanes = []
            for offer in self._offers(count):
                with suppress(OSError):
                    if self._draw.random() < 0.5:
                        lane = socket.create_connection(("127.0.0.1", offer.tcp_port), timeout=1.0)
                    else:
                        lane = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                        lane.settimeout(1.0)
                    held.enter_context(lane)
                    if lane.family == socket.AF_UNIX:
                        lane.connect(f"\0{offer.unix_name}")
                    lane.sendall(GREETING.pack(MAGIC, VERSION, offer.token))
                    lane.settimeout(0.2)
                    lanes.append(lane)
            yield lanes


def _named(method: str) -> bytes:
    return HEADER.pack(len(method), CALL) + method.encode()


def _send(sock: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # the node has closed it, or takes no more
        sock.sendall(data)


def attack(port: int, metrics_port: int, seed: str, counts_path: str) -> None:
    """The process of the hostile clients, until SIGTERM. Leaves how many attacks of each kind there were."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    counts: Counter[str] = Counter()
    attacks = [Attacks(port, metrics_port, f"{seed} {at}", stopping.is_set) for at in range(ATTACKERS)]
    threads = [threading.Thread(target=one.run, args=(counts,), daemon=True) for one in attacks]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # a signal is handled between two of these
            thread.join(0.2)
    Path(counts_path).write_text(json.dumps(counts))


# -- the soak


def hostile(root: Path, seed: int, duration_s: float, say: Callable[[str], None]) -> Outcome:
    """Attack a node for three fifths of the time, after a fifth without."""
    outcome, folder, forking = Outcome("hostile", seed), root / "round-000", context()
    folder.mkdir()
    arguments = [word for setting in SETTINGS for word in ("--set", setting)]
    launcher = ["prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}"]
    counts_path = folder / "attacks.json"
    samples: list[Sample] = []
    with NodeProcess([root / "store"], arguments=arguments, launcher=launcher, metrics=True) as node:
        with connect(node.url) as client:
            client.create_bucket(BUCKET)
        begin_s = time.monotonic()
        tasks = [Task(node.url, str(folder), f"p{at}", f"{seed} {at}", CLIENTS, begin_s) for at in range(PROCESSES)]
        clients = [start(forking, use, task) for task in tasks]
        hostiles: list[Any] = []

        def watch(phase: Phase, until: Callable[[float], bool]) -> None:
            phase_s = time.monotonic()
            while not until(time.monotonic() - phase_s) and all(one.is_alive() for one in clients):
                descriptors = len(os.listdir(f"/proc/{node.pid}/fd"))
                samples.append(Sample(time.monotonic() - begin_s, phase, node.rss_bytes(), descriptors))
                time.sleep(0.25)

        try:
            watch("before", lambda at_s: at_s > duration_s / 5)
            metrics_port = urlsplit(node.metrics_url).port
            hostiles = [start(forking, attack, node.port, metrics_port, str(seed), str(counts_path))]
            watch("attack", lambda at_s: at_s > duration_s * 3 / 5)
            stop(*hostiles)
            watch("after", lambda at_s: at_s > duration_s / 5 and (at_s > CALM_S or not judge_node(samples)))
            outcome.violations += _lane_of_new_client(node)
        finally:
            stop(*hostiles, *clients)
        closed = {name: value for name, value in node.numbers().items() if "lanes_closed" in name and value}
        (folder / "node.log").write_text(node.log())
        outcome.duration_s = time.monotonic() - begin_s
    outcome.events = Counter(json.loads(counts_path.read_text()))
    outcome.figures |= closed
    outcome.figures["most MiB resident"] = max(one.resident_bytes for one in samples) / 2**20
    outcome.figures["most descriptors"] = max(one.descriptors for one in samples)
    outcome.figures["descriptors afterwards"] = samples[-1].descriptors
    outcome.take(judge(folder, RULES))
    outcome.violations += judge_node(samples)
    judge_progress(read_history(sorted(folder.glob("*.jsonl"))), outcome, STARVED_S)
    say(f"{outcome.operations:,} operations, {outcome.events.total()} attacks, {len(outcome.violations)} violations")
    return outcome


def _lane_of_new_client(node: NodeProcess) -> list[Violation]:
    """A client that comes after the attacks uses a lane."""
    with connect(node.url, options=ClusterOptions(lane="auto", retry_s=30.0)) as client:
        bucket = client.bucket(BUCKET)
        bucket.put("afterwards", b"calm")
        data, lane = bucket.get("afterwards"), client.describe()["lane"]
    if (data, lane) == (b"calm", "unix"):
        return []
    return [Violation("not calm", "afterwards", f"a new client reads {data!r} by {lane}")]
