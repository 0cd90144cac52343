"""Stable storage of the acceptor: `cluster.json` on every drive, a growing file, synced before an answer is sent.

A change takes effect once more than half of the drives have it. The highest state on all but a minority of the drives
therefore covers everything that was ever answered. A node that reads fewer drives at its start serves the map that it
knows and does not vote. While a drive is being removed, more than half of the remaining ones must have the change as
well; before a drive is added or removed, all have it. See FORMAT.md.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from ais_loader.errors import DriveFailed, LoaderError, StoreFormatError
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.map_delta import applied, delta_of
from storage_node.cluster.consensus import acceptor
from storage_node.cluster.consensus.acceptor import AcceptorState
from storage_node.store.checksum import decode_checked, encode_checked
from storage_node.store.drive.identity import CLUSTER_FILE_NAME
from storage_node.store.files.growing_file import GrowingFile, whole_lines
from storage_node.store.files.object_files import drive_error
from storage_node.store.store import Store

FORMAT_VERSION = 2
Response = TypeVar("Response", pb.PrepareResponse, pb.AcceptResponse)
T = TypeVar("T")


class AcceptorStore:
    """The acceptor of one node. Thread-safe; when a method returns, its effect survives a power failure."""

    def __init__(self, store_uuid: str, roots: list[Path | None]) -> None:
        """`roots`: the store's drives, None for a missing one.

        Raises StoreFormatError if the record is damaged on every drive that could be read.
        """
        self._store_uuid = store_uuid
        self._lock = threading.Lock()
        self._files: dict[Path, GrowingFile[AcceptorState]] = {}
        self._use(roots)
        found: dict[Path, AcceptorState | None] = {}
        faults: list[str] = []
        for root in self._roots:
            try:
                found[root] = _read(root, store_uuid)
            except (StoreFormatError, OSError) as error:
                faults.append(str(error))
        states = [state for state in found.values() if state is not None]
        if faults and not states:
            raise StoreFormatError(
                f"what this node has agreed to in its cluster is lost: {'; '.join(faults)}. While all other nodes "
                "are up, take this one out of the cluster; then empty its drives, and add it again as a new node"
            )
        self.state = acceptor.merged(states)
        """Replaced, never modified."""
        self._read_from = set(found)
        self.may_vote = self._knows_all()
        if states:
            self._spread([root for root in self._roots if found.get(root) != self.state])

    @classmethod
    def of_store(cls, store: Store) -> AcceptorStore:
        return cls(store.store_uuid, roots_of(store))

    def _use(self, roots: Sequence[Path | None], leaving: Collection[Path] = ()) -> None:
        self._roots = [root for root in roots if root is not None]
        self._all = len(roots)
        self._staying = [root for root in self._roots if root not in leaving]
        self._all_staying = len(roots) - len(self._roots) + len(self._staying)

    def _knows_all(self) -> bool:
        """Return whether so many drives were read that the others form no majority. If none has a record, a missing
        drive may be the only one that did."""
        known = len(self._read_from.intersection(self._roots)) >= self._all - self._all // 2
        return known and (self.state != AcceptorState() or len(self._roots) == self._all)

    def follow(self, roots: Sequence[Path | None], leaving: Collection[Path] = ()) -> None:
        """Use these drives from now on, of which `leaving` will be removed; a drive that comes back is read first.

        Returns once every writable drive has the state.
        """
        with self._lock:
            self._use(roots, leaving)
            for root in set(self._roots) - self._read_from:
                with contextlib.suppress(StoreFormatError, OSError):
                    found = _read(root, self._store_uuid)
                    self.state = acceptor.merged([self.state, found]) if found is not None else self.state
                    self._read_from.add(root)
            self.may_vote = self.may_vote or self._knows_all()
            self._spread(self._roots)

    def change_drives(self, change: Callable[[], T], after: Callable[[], Sequence[Path | None]]) -> T:
        """Run a change of the store's drives; `after` returns the new ones. The node casts no vote meanwhile.

        Raises DriveFailed, with nothing changed, if the node could forget its state. Raises what `change` raises.
        """
        with self._lock:
            if not self.may_vote and self.state != AcceptorState():
                raise DriveFailed(
                    "so many drives are missing that this node does not know what it has agreed to; bring them back, "
                    "or take the node out of the cluster and add it again with empty drives"
                )
            if self.state != AcceptorState() and (failed := self._spread(self._roots)):
                raise failed
            result = change()
            self._use(after())
            self._read_from.update(self._roots)
            self._spread(self._roots)
            return result

    def _spread(self, roots: Sequence[Path]) -> LoaderError | None:
        """Write the state to these drives, as far as possible; return the last error."""
        problem: LoaderError | None = None
        for root in roots if self.state != AcceptorState() else ():
            try:
                self._write(root, self.state)
            except LoaderError as error:  # a full drive must open to be emptied; answers need a majority
                problem = error
        return problem

    def prepare(self, request: pb.PrepareRequest) -> pb.PrepareResponse:
        """Answer a prepare request durably. Raises MapRefused, LoaderError."""
        return self._answer(lambda state: acceptor.prepare(state, request), request.node_uuid)

    def accept(self, request: pb.AcceptRequest) -> pb.AcceptResponse:
        """Answer an accept request durably. Raises MapRefused, LoaderError."""
        return self._answer(lambda state: acceptor.accept(state, request), request.node_uuid)

    def learn(self, map_: pb.ClusterMap) -> None:
        """Record a committed map. One drive suffices, since a forgotten committed map is fetched again.

        Raises MapRefused, LoaderError.
        """
        with self._lock:
            self._keep(acceptor.learn(self.state, map_), everywhere=False)

    def _answer(self, vote: Callable[[AcceptorState], tuple[AcceptorState, Response]], meant_for: bytes) -> Response:
        if meant_for and meant_for.hex() != self._store_uuid:
            raise acceptor.MapRefused(f"this is node {self._store_uuid}, not {meant_for.hex()}")
        if not self.may_vote:
            raise DriveFailed("too many drives are missing to know what this node has agreed to; it does not vote")
        with self._lock:
            state, response = vote(self.state)
            self._keep(state)
            return response

    def _keep(self, state: AcceptorState, *, everywhere: bool = True) -> None:
        if state is self.state:
            return
        written: set[Path] = set()
        problem: LoaderError | None = None
        for root in self._roots:
            try:
                self._write(root, state)
                written.add(root)
            except LoaderError as error:
                problem = error
        enough = 2 * len(written) > self._all and 2 * len(written & set(self._staying)) > self._all_staying
        if not (enough if everywhere else written):
            raise problem or DriveFailed(
                f"only {len(written)} of {self._all} drives can be written; a majority is needed"
            )
        self.state = state

    def _write(self, root: Path, state: AcceptorState) -> None:
        file = self._files.setdefault(root, GrowingFile(functools.partial(encode, self._store_uuid)))
        try:
            file.write(root / CLUSTER_FILE_NAME, state)
        except OSError as error:
            raise drive_error(error, root, "writing what the node has agreed to in its cluster") from error


def roots_of(store: Store) -> list[Path | None]:
    """Return the root of each drive; None for a missing one."""
    return [drive.root if drive is not None else None for drive in store.drives]


def encode(store_uuid: str, state: AcceptorState, before: AcceptorState | None = None) -> bytes:
    """Encode a state as a line of the file; with the state `before`, only what has changed since."""
    base = before.committed if before is not None else None
    found: dict[str, Any] = {"store_uuid": store_uuid}
    for name in ("promise", "accepted", "committed"):
        part = getattr(state, name)
        if before is not None and part is getattr(before, name):
            continue
        delta = delta_of(base, part) if base is not None and isinstance(part, pb.ClusterMap) else None
        # A map of a later version may have what a delta of this one does not carry.
        is_delta = base is not None and delta is not None and applied(delta, base) is not None
        message = delta if is_delta else part
        text = None if message is None else base64.b64encode(message.SerializeToString(deterministic=True)).decode()
        found[name] = {"delta": text} if is_delta else text
    return encode_checked("cluster", FORMAT_VERSION, found) + b"\n"


def decode(data: bytes, source: Path, store_uuid: str) -> AcceptorState:
    """Decode a record. Raises StoreFormatError on anything that `encode` did not write for this store."""
    try:
        found: dict[str, Any] = {}
        for line in whole_lines(data):
            fields = decode_checked("cluster", FORMAT_VERSION, line, source)
            if (writer := fields.pop("store_uuid")) != store_uuid:
                raise StoreFormatError(f"{source}: written by the node with store {writer}")
            base = found.get("committed")
            found |= {name: _decoded(name, value, base) for name, value in fields.items()}
        return AcceptorState(found["promise"], found["accepted"], found["committed"])
    except (ValueError, KeyError, TypeError, AttributeError, DecodeError) as error:
        raise StoreFormatError(f"{source}: not what a node keeps of its cluster: {error}") from error


def _decoded(name: str, value: Any, base: Any) -> pb.ClusterMap | pb.Ballot | None:
    if value is None:
        return None
    data = base64.b64decode(value["delta"] if isinstance(value, dict) else value, validate=True)
    if not isinstance(value, dict):
        return pb.Ballot.FromString(data) if name == "promise" else pb.ClusterMap.FromString(data)
    if (map_ := applied(pb.MapDelta.FromString(data), base)) is None:
        raise ValueError("a change of another map")
    return map_


def _read(root: Path, store_uuid: str) -> AcceptorState | None:
    path = root / CLUSTER_FILE_NAME
    try:
        return decode(path.read_bytes(), path, store_uuid)
    except FileNotFoundError:
        return None
