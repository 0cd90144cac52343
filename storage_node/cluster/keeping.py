"""A node's vote and its map, lasting: `cluster.json` on every drive, written and synced before an answer goes out.

A change counts when more than half of the drives have it. So the highest state on as many drives as leave no majority
without one is all that was ever answered; a node that finds fewer at its start serves the map that it knows, and does
not vote. See FORMAT.md.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError

from protos import ais_cluster_pb2 as pb
from storage_node.cluster import acceptor
from storage_node.cluster.acceptor import AcceptorState
from storage_node.store import record as records
from storage_node.store.errors import DriveFailed, FormatError, StoreError
from storage_node.store.identity import CLUSTER_FILE_NAME
from storage_node.store.raw_files import drive_error
from storage_node.store.sealed import seal, unseal
from storage_node.store.store import Store

FORMAT_VERSION = 1
Response = TypeVar("Response", pb.PrepareResponse, pb.AcceptResponse)


class Keeper:
    """The acceptor of one node. Thread-safe; every method returns when its effect would survive a power cut."""

    def __init__(self, store_uuid: str, roots: list[Path | None]) -> None:
        """`roots`: the store's drives, None for one that is missing.

        Raises FormatError when what was kept is damaged on every drive that could be read.
        """
        self._store_uuid = store_uuid
        self._roots = [root for root in roots if root is not None]
        self._drives = len(roots)
        self._lock = threading.Lock()
        found: dict[Path, AcceptorState | None] = {}
        faults: list[str] = []
        for root in self._roots:
            try:
                found[root] = _read(root, store_uuid)
            except (FormatError, OSError) as error:
                faults.append(str(error))
        states = [state for state in found.values() if state is not None]
        if faults and not states:
            raise FormatError(
                f"what this node has agreed to in its cluster is lost: {'; '.join(faults)}. While all other nodes "
                "are up, take this one out of the cluster; then remove the file, start it, and add it again"
            )
        self.state = acceptor.merged(states)
        """Replaced, never changed."""
        self.may_vote = len(found) >= self._drives - self._drives // 2
        if states and any(found.get(root) != self.state for root in self._roots):
            for root in self._roots:
                if found.get(root) != self.state:
                    try:
                        self._write(root, self.state)
                    except StoreError:
                        continue  # a full drive must open to be emptied; a majority is needed for every answer anyway

    @classmethod
    def of_store(cls, store: Store) -> Keeper:
        return cls(store.store_uuid, [drive.root if drive is not None else None for drive in store.drives])

    def prepare(self, request: pb.PrepareRequest) -> pb.PrepareResponse:
        """Raises Refused, StoreError."""
        return self._answer(lambda state: acceptor.prepare(state, request), request.node_uuid)

    def accept(self, request: pb.AcceptRequest) -> pb.AcceptResponse:
        """Raises Refused, StoreError."""
        return self._answer(lambda state: acceptor.accept(state, request), request.node_uuid)

    def learn(self, map_: pb.ClusterMap) -> None:
        """Raises Refused, StoreError."""
        with self._lock:
            self._keep(acceptor.learn(self.state, map_))

    def _answer(self, vote: Callable[[AcceptorState], tuple[AcceptorState, Response]], meant_for: bytes) -> Response:
        if meant_for and meant_for.hex() != self._store_uuid:
            raise acceptor.Refused(f"this is node {self._store_uuid}, not {meant_for.hex()}")
        if not self.may_vote:
            raise DriveFailed("too many drives are missing to know what this node has agreed to; it does not vote")
        with self._lock:
            state, response = vote(self.state)
            self._keep(state)
            return response

    def _keep(self, state: AcceptorState) -> None:
        if state is self.state:
            return
        written = 0
        problem: StoreError | None = None
        for root in self._roots:
            try:
                self._write(root, state)
                written += 1
            except StoreError as error:
                problem = error
        if written * 2 <= self._drives:
            raise problem or DriveFailed(
                f"only {written} of {self._drives} drives can be written; a majority is needed"
            )
        self.state = state

    def _write(self, root: Path, state: AcceptorState) -> None:
        try:
            records.write_atomically(root / CLUSTER_FILE_NAME, encode(self._store_uuid, state))
        except OSError as error:
            raise drive_error(error, root, "writing what the node has agreed to in its cluster") from error


def encode(store_uuid: str, state: AcceptorState) -> bytes:
    def text(message: pb.ClusterMap | pb.Ballot | None) -> str | None:
        return None if message is None else base64.b64encode(message.SerializeToString(deterministic=True)).decode()

    fields = {
        "store_uuid": store_uuid,
        "promise": text(state.promise),
        "accepted": text(state.accepted),
        "committed": text(state.committed),
    }
    return seal("cluster", FORMAT_VERSION, fields)


def decode(data: bytes, source: Path, store_uuid: str) -> AcceptorState:
    """Raises FormatError on anything that `encode` did not write for this store."""
    try:
        fields = unseal("cluster", FORMAT_VERSION, data, source)
        if fields["store_uuid"] != store_uuid:
            raise FormatError(f"{source}: written by the node with store {fields['store_uuid']}")
        promise, accepted, committed = (
            None if fields[name] is None else base64.b64decode(fields[name], validate=True)
            for name in ("promise", "accepted", "committed")
        )
        return AcceptorState(
            None if promise is None else pb.Ballot.FromString(promise),
            None if accepted is None else pb.ClusterMap.FromString(accepted),
            None if committed is None else pb.ClusterMap.FromString(committed),
        )
    except (ValueError, KeyError, TypeError, AttributeError, DecodeError) as error:
        raise FormatError(f"{source}: not what a node keeps of its cluster: {error}") from error


def _read(root: Path, store_uuid: str) -> AcceptorState | None:
    path = root / CLUSTER_FILE_NAME
    try:
        return decode(path.read_bytes(), path, store_uuid)
    except FileNotFoundError:
        return None
