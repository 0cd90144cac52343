"""Remote part of the soak: a cluster over a remote bucket, behind a proxy that throttles, cuts, delays and refuses.

Nodes are killed, restarted and frozen, and copies are evicted, while clients read and write through the store. The rule
of the bucket, and who writes, depend on the seed:

| seed % 4 | writes | copies are validated | others write to the cloud |
|---|---|---|---|
| 0 | through | never | no |
| 1 | through | after 2 s | yes |
| 2 | back | never | no |
| 3 | back | after 2 s | yes |

Others have names of their own. Reads of these may be behind the cloud by the rule's age, and by one fetch. Listings
show the copies that are stored: nothing is validated for them. At the end of a round, the store and the cloud must have
the same objects, and all that was acknowledged.
"""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ais_loader import Client, ClusterOptions, Remote, connect, errors
from benchmarks.soak.checker import Rules
from benchmarks.soak.clients import READS, Sizes, SoakClient
from benchmarks.soak.cluster import (
    ARGUMENTS,
    BUCKET,
    DEADLINE_S,
    NAMES,
    PLACES,
    RETRY_S,
    ClusterSoak,
    Task,
    read_all,
)
from benchmarks.soak.content import content, value_in, value_of
from benchmarks.soak.history import Recorder
from benchmarks.soak.machine import Network, OneMachine
from benchmarks.soak.outcome import Outcome
from benchmarks.soak.processes import recording
from benchmarks.soak.register import Violation
from tests.remote.backend_kit import ANY_HOST
from tests.remote.fault_proxy import Fault, FaultProxy
from tests.remote.s3_server import CREDENTIALS, S3Client, S3Server

VALIDATE_S = 2.0
SLACK_S = 30.0
"""Age of the rule, and the longest fetch that a reader may join."""
CACHE_BYTES = 1_000_000
"""Budget of each node: less than what is there."""
FLUSH_S = 120.0
SIZES = Sizes(large_share=0.005, most_bytes=100_000)
NODE_EVENTS: Mapping[str, float] = {
    "kill": 4,
    "restart": 2,
    "freeze": 2,
    "drives full": 1,
}
CLOUD_EVENTS: Mapping[str, float] = {
    "cloud throttles": 3,
    "cloud cuts answers": 3,
    "cloud is slow": 2,
    "cloud is down": 2,
    "copies evicted": 4,
}
_READS: Mapping[str, float] = {**READS, "file": 1, "snapshot_read": 0}
_MIXED: Mapping[str, float] = {**_READS, "put": 5, "put_many": 0.5, "cas": 3, "delete": 2, "delete_many": 0.3}
_CLIENTS: Sequence[tuple[str, Mapping[str, float], Sequence[str]]] = (
    ("a", _MIXED, ("auto",)),
    ("b", _MIXED, ("target",)),
    ("c", {**_READS, "batch": 8}, ("target", "direct")),
)
_READERS: Sequence[tuple[str, Mapping[str, float], Sequence[str]]] = (
    ("a", _READS, ("auto",)),
    ("b", {**_READS, "batch": 8}, ("target", "direct")),
)


class RemoteSoak(ClusterSoak):
    """Nodes below `root` over a bucket of an S3 server, and what is done to both."""

    name = "remote"
    arguments = (*ARGUMENTS, *ANY_HOST, "--set", "remote_retry_s=8", "--set", "remote_timeout_s=8")
    environment = CREDENTIALS

    def __init__(self, root: Path, seed: int, say: Callable[[str], None]) -> None:
        self._server = S3Server()
        self._cloud = self._server.bucket()
        self._proxy = FaultProxy(self._server.endpoint)
        self._is_back, self._has_others = seed % 4 >= 2, bool(seed % 2)
        self._others: _Others | None = None
        super().__init__(root, seed, say, namespaces=False, only={**NODE_EVENTS, **CLOUD_EVENTS})
        self.outcome.figures |= {"write-back": self._is_back, "others write": self._has_others}

    def network(self, held: ExitStack, *, namespaces: bool) -> Network:
        return OneMachine(PLACES, held, namespaces=False)

    def create_bucket(self, client: Client) -> None:
        remote = Remote(
            f"s3://{self._cloud}",
            endpoint=self._proxy.url,
            validate=VALIDATE_S if self._has_others else "never",
            cache_bytes=CACHE_BYTES,
            write="back" if self._is_back else "through",
        )
        client.create_bucket(BUCKET, copies=self.copies.copies, min_copies=self.copies.min_copies, remote=remote)

    def tasks(self, folder: Path, number: int) -> list[Task]:
        first, second = (replace(task, clients=_CLIENTS, sizes=SIZES) for task in super().tasks(folder, number))
        if not self._has_others:
            return [first, second]
        others = self._others = _Others(self._server, self._cloud, folder, f"{self._seed} {number}", f"x{number}")
        others.start()
        return [first, replace(second, prefix=f"x{number}", clients=_READERS, beside=True)]

    def rules(self) -> Rules:
        return Rules(
            "regular",
            deadline_s=DEADLINE_S,
            slack_s=SLACK_S,
            listed_beside=False,
            copies=2,
            versions=False,
            also_allowed=frozenset({"remote-unavailable"}),
        )

    def run(self, events: int, duration_s: float) -> Outcome:
        outcome = super().run(events, duration_s)
        requests = self._proxy.requests
        for method in ("GET", "PUT", "HEAD", "DELETE"):
            outcome.figures[f"{method} requests of the cloud"] = sum(one.method == method for one in requests)
        return outcome

    def last_tasks(self, folder: Path, number: int) -> list[tuple[Callable[[Task], None], Task]]:
        """Read everything through the store, then compare the store with the cloud."""
        if self._is_back:
            self._flush()
        tasks = []
        for prefix in (f"r{number}", *([f"x{number}"] if self._has_others else [])):
            task = Task(self.url, str(folder), "", str(self._seed), prefix)
            tasks.append((read_all, replace(task, name=f"last-{prefix}")))
            cloud = replace(task, name=f"cloud-{prefix}", drives={"port": str(self._server.port), "name": self._cloud})
            tasks.append((compare, cloud))
        return tasks

    def _flush(self) -> None:
        try:
            with connect(self.url, options=ClusterOptions(retry_s=RETRY_S)) as client:
                client.bucket(BUCKET).flush(timeout_s=FLUSH_S)
        except errors.LoaderError as error:
            self.outcome.violations.append(Violation("uploads do not end", BUCKET, f"{error.kind}: {error}"[:1000]))

    def _mend_all(self) -> None:
        super()._mend_all()
        self._proxy.clear()
        self._proxy.latency_s = 0.0
        if self._others is not None:
            self._others.stop()
            self._others = None
            self._until(time.monotonic() + VALIDATE_S + 1)  # from now on, no copy is as old as the rule allows

    def _begin(self, name: str) -> bool:
        draw, proxy = self._draw, self._proxy
        if name not in CLOUD_EVENTS:
            return super()._begin(name)
        for_s = draw.uniform(0.5, 6.0)
        if name == "cloud throttles":
            self._done(name, [], lambda: proxy.on("*", "*", Fault(status=503), for_s=for_s))
        elif name == "cloud cuts answers":
            fault = Fault(cut_after=draw.randrange(1, 20_000), is_reset=draw.random() < 0.5)
            self._done(name, [], lambda: proxy.on("GET", "*", fault, times=draw.randrange(1, 20)))
        elif name == "cloud is slow":
            self._done(name, [], lambda: setattr(proxy, "latency_s", draw.uniform(0.1, 1.5)))
            self._later(name, [], for_s, lambda: setattr(proxy, "latency_s", 0.0))
        elif name == "cloud is down":
            fault = Fault(cut_after=0, is_reset=True)
            # Before the request is passed on, or after it: then only the answer is lost.
            if draw.random() < 0.5:
                fault = Fault(status=500)
            self._done(name, [], lambda: proxy.on("*", "*", fault, for_s=for_s))
        else:
            self._done(name, [], self._evict)
        self.outcome.events[name] += 1
        return True

    def _evict(self) -> None:
        """Remove copies, if all nodes answer."""
        with suppress(errors.LoaderError), connect(self.url, options=ClusterOptions(retry_s=1.0)) as client:
            client.bucket(BUCKET).evict(prefix=self._draw.choice(["", "r", "x"]))

    def close(self) -> None:
        super().close()
        if self._others is not None:
            self._others.stop()
        self._proxy.close()
        self._server.close()


class _Others(threading.Thread):
    """Somebody who writes to the cloud beside the store, one object after another."""

    def __init__(self, server: S3Server, bucket: str, folder: Path, seed: str, prefix: str) -> None:
        super().__init__(name="others", daemon=True)
        self._server, self._bucket, self._prefix = server, bucket, prefix
        self._draw = random.Random(f"others {seed}")
        self._recorder = Recorder(folder / "others.jsonl")
        self._stopping = threading.Event()

    def run(self) -> None:
        made = 0
        while not self._stopping.wait(self._draw.uniform(0, 0.1)):
            key = f"{self._prefix}/{self._draw.randrange(NAMES):03}"
            if self._draw.random() < 0.15:
                number = self._recorder.begin("others", "delete", key=key, expected="*")
                with suppress(KeyError):
                    self._server.delete(self._bucket, key)
                self._recorder.end(number, "ok")
            else:
                made += 1
                value = value_of(f"others{self._prefix}", made, SIZES.draw(self._draw))
                number = self._recorder.begin("others", "put", key=key, value=value, expected="*")
                self._server.put(self._bucket, key, content(value), metadata={"value": value})
                self._recorder.end(number, "ok")

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        self._recorder.close()


def compare(task: Task) -> None:
    """Read everything through the store, and from the cloud: as two copies, which must be equal."""
    options = ClusterOptions(retry_s=2 * RETRY_S)
    with recording(Path(task.folder), task.name) as (recorder, _), connect(task.url, options=options) as client:
        SoakClient(f"{task.name}store", client, BUCKET, recorder, task.keys, task.seed, READS).read_all(copy="store")
        number = recorder.begin(task.name, "read", keys=task.keys(), copy="cloud", how="cloud")
        server = S3Client(int(task.drives["port"]))
        recorder.end(number, "ok", items=[_in_cloud(server, task.drives["name"], key) for key in task.keys()])  # noqa: SIM118


def _in_cloud(server: S3Client, bucket: str, key: str) -> list[Any]:
    try:
        data = server.get(bucket, key)
    except KeyError:
        return ["absent", None, None, None, None]
    return ["ok", value_in(data), len(data), zlib.crc32(data), None]
