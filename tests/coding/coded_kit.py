"""In-process cluster with a coded bucket, whose objects are put in groups by hand: tests know where each of them is."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ais_loader.errors import LoaderError
from ais_loader.testing import eventually
from ais_loader.wire.redundancy import companion_name
from storage_node.cluster.coding.codec import codec_of
from storage_node.cluster.coding.group import Manifest, Slot, lay_out
from storage_node.store.buckets import ReplicaStale
from storage_node.store.format import CatalogEntry, Version, coded_path
from storage_node.store.names import CODED_PREFIX
from storage_node.store.store import Store
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.store.store_kit import read

DATA, PARITY = 4, 2
FRAGMENT_BYTES = 1 << 20


class SettableClock:
    """The clock of a module, which tests move forward."""

    def __init__(self, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed_s = 0.0
        monkeypatch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return time.monotonic() + self.passed_s

    def time_ns(self) -> int:
        return time.time_ns()


class CodedCluster(LocalCluster):
    """Six nodes with the bucket "b", of which each object has three owners."""

    def __init__(self, root: Path, nodes: int = DATA + PARITY, **more: Any) -> None:
        # A busy machine must end no lease, without which manifests are not read; the nodes code nothing by themselves.
        settings = {"read_lease_s": 60.0, "coding_delay_s": 3600.0, **more}
        super().__init__(root, nodes, copies=PARITY + 1, **settings)
        parent = self.map.bucket[0]
        parent.coding.data, parent.coding.parity = DATA, PARITY
        self.companion = companion_name(parent.uuid)
        self.map.bucket.add(name=self.companion, uuid=uuid.uuid4().bytes, copies=1, min_copies=1, coded_of=parent.uuid)
        self.learn()
        self.await_compared()

    def store(self, number: int) -> Store:
        return self.batches(number).node.store

    def put_coded(self, objects: Mapping[str, bytes], *, most_bytes: int = FRAGMENT_BYTES) -> list[Manifest]:
        """Put objects and code them, in as many groups as it takes."""
        self.put(objects)
        return self.code(list(objects), most_bytes=most_bytes)

    def code(self, names: Sequence[str], *, most_bytes: int = FRAGMENT_BYTES) -> list[Manifest]:
        """Code objects that all of their owners have."""
        made: list[Manifest] = []
        while names:
            entries = [self.entry(self.owners(name)[0], name) for name in names]
            offsets, fragment_bytes = lay_out([entry.size_bytes for entry in entries], DATA, most_bytes)
            content = bytearray(DATA * fragment_bytes)
            slots: list[Slot] = []
            for name, entry, offset in zip(names, entries, offsets, strict=False):
                content[offset : offset + entry.size_bytes] = self.bytes_of(name)
                slots.append(Slot(name, entry.version, offset, entry.size_bytes, entry.checksum))
            made.append(self._write(slots, content, fragment_bytes))
            names = names[len(offsets) :]
        return made

    def bytes_of(self, name: str) -> bytes:
        return self.bytes_in(BUCKET, name, self.owners(name)[0])

    def bytes_in(self, bucket: str, name: str, number: int) -> bytes:
        found: list[bytes] = []

        def is_read() -> bool:
            with contextlib.suppress(ReplicaStale):  # the node has had no read lease for a moment
                found.append(read(self.store(number), name, bucket))
            return bool(found)

        eventually(is_read)
        return found[0]

    def entry(self, number: int, name: str) -> CatalogEntry:
        [found] = self.store(number).replicas.newest(BUCKET, [name])
        assert found is not None
        return found

    def code_again(self, name: str, manifest: Manifest) -> None:
        """Write the coded entries to all owners, as repair does after some have stored the object again."""
        [slot] = [slot for slot in manifest.slots if slot.name == name]
        self._swap(manifest.group, slot)

    def _swap(self, group: bytes, slot: Slot) -> None:
        for number in self.owners(slot.name):
            coded = self.entry(number, slot.name)._replace(path=coded_path(group), offset=slot.offset)
            [left] = self.store(number).write_coded(BUCKET, [(slot.name, coded)])
            assert not isinstance(left, LoaderError) and left.is_coded, left

    def _write(self, slots: Sequence[Slot], content: bytearray, fragment_bytes: int) -> Manifest:
        group = uuid.uuid4().bytes
        view = memoryview(content)
        data = [view[at : at + fragment_bytes] for at in range(0, len(content), fragment_bytes)]
        parity = [bytearray(fragment_bytes) for _ in range(PARITY)]
        codec_of(DATA, PARITY).encode(data, parity)
        names: list[str] = []
        for number, fragment in enumerate([*data, *parity]):
            names.append(self.write_fragment(group, number, bytes(fragment), number % len(self.nodes)))
        uuid_ = self.map.bucket[0].uuid
        manifest = Manifest(group, DATA, PARITY, fragment_bytes, uuid_, tuple(names), tuple(slots))
        self.write_manifest(manifest)
        for slot in slots:
            self._swap(group, slot)
        return manifest

    def write_fragment(self, group: bytes, number: int, content: bytes, node: int, *, salt: int = 0) -> str:
        """Write a fragment to a node, under a name of which it is the owner, drawn from this salt on."""
        companion = self.view.buckets[self.companion]
        drawn = (f"{group.hex()}/{number}/{one}" for one in range(salt, salt + 1000))
        name = next(one for one in drawn if self.view.owners(companion, one) == [node])
        store = self.store(node)
        store.stage(self.companion, name, [content], {}).commit()
        return name

    def write_manifest(self, manifest: Manifest) -> None:
        name = CODED_PREFIX + manifest.group.hex()
        clock = max(self.store(number).replicas.clock for number in range(len(self.nodes)))
        for number in self.owners(name):
            upload = self.store(number).stage(BUCKET, name, [manifest.encode()], {})
            upload.assign(Version(1, clock + 1))
            upload.commit()

    def holder(self, fragment: str) -> int:
        [number] = self.view.owners(self.view.buckets[self.companion], fragment)
        return number

    def stop(self, number: int) -> None:
        self.nodes[number].stop()
