"""Clients of a soak: each draws one operation after another by its seed, and writes down what it asked and was told."""

from __future__ import annotations

import faulthandler
import os
import random
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ais_loader import Bucket, Client, Entry, errors
from ais_loader.bench.calls import Done
from ais_loader.bench.tally import BenchTally
from ais_loader.bench.worker import measure
from ais_loader.values.entry import Item, Status
from benchmarks.soak.checker import UNTOLD
from benchmarks.soak.content import LEAST_BYTES, content, value_in, value_of
from benchmarks.soak.history import Outcome, Recorder

WRITES: Mapping[str, float] = {"put": 5, "put_many": 1, "cas": 4, "delete": 2, "delete_many": 0.3, "snapshot": 0.05}
READS: Mapping[str, float] = {
    "get": 4,
    "range": 2,
    "pinned": 1,
    "batch": 3,
    "verify": 1,
    "list": 1,
    "snapshot_read": 0.5,
}
MANY, FEW = 12, 5
"""Objects of one put_many, and of one delete_many."""
SNAPSHOTS = 3
"""Older ones are deleted."""
_NOBODY = "?-0:0"
"""Stands for bytes that do not say whose they are."""
_DONE_NOT = (errors.NotFound, errors.InvalidRequest, errors.VersionConflict, errors.DriveFull)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large objects are: a few thousand bytes most of the time."""

    large_share: float = 0.01
    large_bytes: int = 5 << 20
    """Above what is read in one piece."""
    most_bytes: int = 300_000

    def draw(self, random_: random.Random) -> int:
        kind = random_.random()
        if kind < self.large_share:
            return random_.randint(self.large_bytes - (1 << 19), self.large_bytes + (1 << 19))
        if kind < 0.75:
            return random_.randint(LEAST_BYTES, 8192)
        return random_.randint(LEAST_BYTES, self.most_bytes if kind > 0.95 else min(self.most_bytes, 130_000))


@dataclass(slots=True)
class SoakClient:
    """One client with its own draw of operations. Its methods raise nothing that the store raises."""

    name: str
    client: Client
    bucket_name: str
    recorder: Recorder
    keys: Callable[[], Sequence[str]]
    """The names of the moment, which have one prefix, up to the first slash."""
    seed: str
    mix: Mapping[str, float]
    sizes: Sizes = Sizes()
    beside: bool = False
    """It reads beside a writer of another process, and may be behind it."""
    assemblies: Sequence[str] = ("auto",)
    timeout_s: float = 30.0
    pause_s: float = 0.0
    """Between operations."""
    done: int = 0
    _draw: random.Random = field(init=False)
    _made: int = 0

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    @property
    def bucket(self) -> Bucket:
        return self.client.bucket(self.bucket_name)

    def drawn(self) -> Iterator[str]:
        """Kinds of operations without end."""
        names, weights = list(self.mix), list(self.mix.values())
        while True:
            yield self._draw.choices(names, weights)[0]

    def run(self, wanted: Iterator[str]) -> Iterator[Done]:
        for kind in wanted:
            begin_ns = time.perf_counter_ns()
            getattr(self, f"_{kind}")()
            self.done += 1
            yield Done(time.perf_counter_ns() - begin_ns, 1, 0)
            if self.pause_s:
                time.sleep(self._draw.uniform(0, 2 * self.pause_s))

    # -- writes

    def _value(self) -> str:
        self._made += 1
        return value_of(self.name, self._made, self.sizes.draw(self._draw))

    def _key(self) -> str:
        return self._draw.choice(self.keys())

    def _put(self) -> None:
        self._put_as(self._key(), {}, "*")

    def _put_as(self, key: str, condition: Mapping[str, Any], expected: str | None) -> None:
        value = self._value()
        number = self.recorder.begin(self.name, "put", key=key, value=value, expected=expected)

        def call() -> dict[str, Any]:
            info = self.bucket.put(key, content(value), metadata={"value": value}, **condition)
            return {"version": info.version}

        self._write(number, call)

    def _cas(self) -> None:
        """Read an object and replace it conditionally, like a counter."""
        key = self._key()
        found = self._head(key)
        if found is None:
            return
        value, version = found
        if value is None:
            self._put_as(key, {"if_absent": True}, None)
        else:
            self._put_as(key, {"if_version": version}, value)

    def _put_many(self) -> None:
        keys = self._draw.sample(self.keys(), min(MANY, len(self.keys())))
        values = [self._value() for _ in keys]
        objects = [[key, value] for key, value in zip(keys, values, strict=True)]
        number = self.recorder.begin(self.name, "put_many", objects=objects)
        items: list[tuple[Outcome, str]] = []
        try:
            made = ((key, content(value), {"value": value}) for key, value in objects)
            for one in self.bucket.iter_put_many(made, on_error="yield"):
                items.append(_judged(one) if isinstance(one, Exception) else ("ok", one.version))
        except Exception as error:  # noqa: BLE001 - what it was is written down and judged
            items += [("unknown", kind_of(error))] * (len(objects) - len(items))
        self.recorder.end(number, "ok", items=items)

    def _delete(self) -> None:
        key, condition, expected = self._key(), {}, "*"
        if self._draw.random() < 0.3:
            found = self._head(key)
            if found is None or found[0] is None:
                return
            expected, condition = found[0], {"if_version": found[1]}
        number = self.recorder.begin(self.name, "delete", key=key, expected=expected)

        def call() -> dict[str, Any]:
            self.bucket.delete(key, **condition)
            return {}

        self._write(number, call)

    def _delete_many(self) -> None:
        keys = self._draw.sample(self.keys(), min(FEW, len(self.keys())))
        number = self.recorder.begin(self.name, "delete_many", keys=keys)
        items: list[tuple[Outcome, str]] = []
        try:
            for one in self.bucket.iter_delete_many(keys, on_error="yield"):
                items.append(_judged(one) if isinstance(one, Exception) else ("ok", ""))
        except Exception as error:  # noqa: BLE001 - what it was is written down and judged
            items += [("unknown", kind_of(error))] * (len(keys) - len(items))
        self.recorder.end(number, "ok", items=items)

    def _snapshot(self) -> None:
        name = f"{self.name}-{self._made}-{self.done}".replace(".", "-")
        number = self.recorder.begin(self.name, "snapshot", name=name)

        def call() -> dict[str, Any]:
            self.bucket.snapshot(name)
            return {}

        self._write(number, call)
        try:
            for old in self.bucket.snapshots()[:-SNAPSHOTS]:
                number = self.recorder.begin(self.name, "delete_snapshot", name=old.name)
                self._write(number, lambda old=old: self.bucket.delete_snapshot(old.name) or {})  # type: ignore[misc]
        except errors.LoaderError:
            return

    def _write(self, number: int, call: Callable[[], dict[str, Any]]) -> None:
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - what it was is written down and judged
            outcome, kind = _judged(error)
            self.recorder.end(number, outcome, error=kind, text=str(error)[:300])
        else:
            self.recorder.end(number, "ok", **result)

    # -- reads

    def _read(
        self, keys: Sequence[str], call: Callable[[], list[list[Any]]], **arguments: Any
    ) -> list[list[Any]] | None:
        if self.beside:
            arguments["beside"] = True
        number = self.recorder.begin(self.name, "read", keys=list(keys), **arguments)
        try:
            items = call()
        except errors.ObjectNotFound:
            items = [["absent", None, None, None, None]]
        except Exception as error:  # noqa: BLE001 - what it was is written down and judged
            self.recorder.end(number, "failed", error=kind_of(error), text=str(error)[:300])
            return None
        self.recorder.end(number, "ok", items=items)
        return items

    def _head(self, key: str) -> tuple[str | None, str] | None:
        """Value and version; None where that was not told."""

        def call() -> list[list[Any]]:
            info = self.bucket.head(key)
            return [["ok", info.metadata.get("value", _NOBODY), info.size_bytes, None, info.version]]

        items = self._read([key], call, how="head")
        return None if items is None else (items[0][1], items[0][4])

    def _get(self) -> None:
        key = self._key()
        self._read([key], lambda: [_found(self.bucket.get(key, timeout_s=self.timeout_s))], how="get")

    def _range(self) -> None:
        self._one_range(verify=self._draw.random() < 0.5)

    def _verified_range(self) -> None:
        self._one_range(verify=True)

    def _one_range(self, *, verify: bool) -> None:
        key, start = self._key(), self._draw.randrange(0, LEAST_BYTES - 512)
        length = self._draw.randint(300, 512)

        def call() -> list[list[Any]]:
            return [_found(self.bucket.get(key, start=start, length=length, verify=verify, timeout_s=self.timeout_s))]

        self._read([key], call, how="range", start=start, length=length, verify=verify)

    def _pinned(self) -> None:
        """Any range of the object that is there, in the version that it has."""
        key = self._key()
        found = self._head(key)
        if found is None or found[0] is None:
            return
        value, version = found
        size_bytes = int(value.rpartition(":")[2])
        start = self._draw.randrange(0, max(1, size_bytes - 300))
        length = self._draw.randint(min(300, size_bytes - start), size_bytes - start)
        entry = Entry(self.bucket_name, key, start=start, length=length, version=version)
        self._batch_of([key], [entry], how="pinned", start=start, length=length, verify_ranges=True)

    def _file(self) -> None:
        """A whole object as a file, in steps."""
        step = self._draw.choice([5_000, 300_000, 2_000_000])

        def read(key: str) -> bytes:
            with self.bucket.open(key, timeout_s=self.timeout_s) as file:
                return b"".join(iter(lambda: file.read(step), b""))

        self._read_opened(read, how=f"file in steps of {step}")

    def _stream(self) -> None:
        def read(key: str) -> bytes:
            with self.bucket.reader(key, timeout_s=self.timeout_s) as reader:
                return b"".join(reader.chunks())

        self._read_opened(read, how="stream")

    def _read_opened(self, read: Callable[[str], bytes], *, how: str) -> None:
        """Read an opened file, which has one version.

        If that is replaced before it has been read, nothing is known of the key.
        """
        key = self._key()

        def call() -> list[list[Any]]:
            try:
                return [_found(read(key))]
            except errors.ObjectNotFound as error:
                return [["", error.kind, None, None, str(error)[:200]]]

        self._read([key], call, how=how)

    def _batch(self) -> None:
        keys = self._draw.choices(self.keys(), k=self._draw.randint(1, 40))  # some of them twice
        self._batch_of(keys, [Entry(self.bucket_name, key) for key in keys], how="batch")

    def _verify(self) -> None:
        keys = self._draw.choices(self.keys(), k=self._draw.randint(1, 20))
        start, length = self._draw.randrange(0, LEAST_BYTES - 512), self._draw.randint(300, 512)
        entries = [Entry(self.bucket_name, key, start=start, length=length) for key in keys]
        self._batch_of(keys, entries, how="verify", start=start, length=length, verify_ranges=True)

    def _batch_of(
        self, keys: Sequence[str], entries: Sequence[Entry], *, how: str, verify_ranges: bool = False, **arguments: Any
    ) -> None:
        assembly = self._draw.choice(self.assemblies)
        pinned = how == "pinned"

        def call() -> list[list[Any]]:
            batch = self.client.get_batch(
                entries,
                on_error="placeholder",
                assembly=assembly,
                verify_ranges=verify_ranges,
                timeout_s=self.timeout_s,
            )
            return [item_of(item, pinned=pinned) for item in batch]

        self._read(keys, call, how=f"{how} {assembly}", **arguments)

    def _list(self, **arguments: Any) -> None:
        prefix = self.keys()[0].partition("/")[0] + "/"
        self._list_as(self.bucket, prefix, **arguments)

    def _list_as(self, bucket: Bucket, prefix: str, **arguments: Any) -> None:
        if self.beside:
            arguments["beside"] = True
        page_size = self._draw.choice([2, 7, 50, 1000])
        number = self.recorder.begin(self.name, "list", prefix=prefix, page_size=page_size, **arguments)
        try:
            found = [
                [info.name, info.metadata.get("value", _NOBODY if info.is_stored else UNTOLD), info.version]
                for info in bucket.objects(prefix, page_size=page_size)
            ]
        except Exception as error:  # noqa: BLE001 - what it was is written down and judged
            self.recorder.end(number, "failed", error=kind_of(error), text=str(error)[:300])
        else:
            self.recorder.end(number, "ok", items=found)

    def _snapshot_read(self) -> None:
        try:
            made = self.bucket.snapshots()
        except errors.LoaderError:
            return
        if not made:
            return
        name, keys = self._draw.choice(made).name, list(self.keys())
        if self._draw.random() < 0.3:
            frozen = self.client.bucket(self.bucket_name, snapshot=name)
            self._list_as(frozen, keys[0].partition("/")[0] + "/", snapshot=name)
        else:
            pinned = f"{self.bucket_name}@{name}"
            self._batch_of(keys, [Entry(pinned, key) for key in keys], how="snapshot", snapshot=name)

    def read_all(self, **arguments: Any) -> None:
        """Every name once, one after another in batches, and listed; when nothing is wrong with any node."""
        keys = list(self.keys())
        for at in range(0, len(keys), 50):
            some = keys[at : at + 50]
            self._batch_of(some, [Entry(self.bucket_name, key) for key in some], how="all", quiet=True, **arguments)
        self._list(quiet=True)


def _found(data: bytes) -> list[Any]:
    return ["ok", value_in(data) or _NOBODY, len(data), zlib.crc32(data), None]


def item_of(item: Item, *, pinned: bool = False) -> list[Any]:
    if item.status == Status.OK:
        return _found(item.tobytes())
    if item.status == Status.NOT_FOUND and not pinned and not isinstance(item.error, errors.BucketNotFound):
        return ["absent", None, None, None, None]
    return ["", kind_of(item.error) if item.error is not None else item.status.name, None, None, str(item.error)[:200]]


def kind_of(error: BaseException) -> str:
    if isinstance(error, errors.LoaderError):
        return error.kind
    return f"{type(error).__module__}.{type(error).__name__}"


def _judged(error: BaseException) -> tuple[Outcome, str]:
    """Return the outcome of a write that ended with this error, and the kind of the error."""
    return ("failed" if isinstance(error, _DONE_NOT) else "unknown"), kind_of(error)


def run_all(clients: Sequence[SoakClient], stop: threading.Event, stacks: Path, deadline_s: float) -> None:
    """Run clients in threads until `stop`. A call that takes more than `deadline_s` ends this process, with the stacks
    of all threads in a file: its operation has no end in the history.

    Raises RuntimeError for what a client should have written down.
    """
    tallies = [BenchTally() for _ in clients]
    threads = [
        threading.Thread(target=measure, args=(client.run, client.drawn(), stop, tally), daemon=True)
        for client, tally in zip(clients, tallies, strict=True)
    ]
    for thread in threads:
        thread.start()
    recorders = {id(client.recorder): client.recorder for client in clients}.values()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.05)
        now = time.monotonic_ns()
        for recorder in recorders:
            if any(now - begin_ns > deadline_s * 1e9 for _, begin_ns in list(recorder.open.values())):
                with open(stacks, "w") as file:
                    faulthandler.dump_traceback(file)
                os._exit(3)
    if errors := sum((tally.errors for tally in tallies), Counter()):
        raise RuntimeError(f"a client raised {dict(errors)}")
