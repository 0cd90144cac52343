"""Access table: every method of a node, and who may call it.

The client listener serves only what clients may call. The peer listener serves all of that, and what peers and
operators may call. A method that is not in the table is not served anywhere, so a new method is unavailable until it is
added here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import grpc

from storage_node.services.calls import RequestReader, guarded


class Role(enum.Flag):
    """Role of a caller."""

    CLIENT = enum.auto()
    PEER = enum.auto()
    """A node of the same cluster. What clients may do, it may do on their behalf."""
    OPERATOR = enum.auto()
    """A command of the nodes' operator."""


CALLER: ContextVar[Role] = ContextVar("caller", default=Role.CLIENT)
"""Role of the caller of the call that a task serves. At the client listener, all are clients."""

ANYONE = Role.CLIENT | Role.PEER | Role.OPERATOR
INSIDE = Role.PEER | Role.OPERATOR

TABLE: Mapping[str, Role] = {
    "GetBatch/Session": ANYONE,
    "GetBatch/OpenLane": ANYONE,
    "Buckets/CreateBucket": ANYONE,
    "Buckets/GetBucket": ANYONE,
    "Buckets/ListBuckets": ANYONE,
    "Buckets/SetBucket": ANYONE,
    "Buckets/DeleteBucket": ANYONE,
    "Objects/Put": ANYONE,
    "Objects/PutMany": ANYONE,
    "Objects/Get": ANYONE,
    "Objects/Head": ANYONE,
    "Objects/Delete": ANYONE,
    "Objects/List": ANYONE,
    "Objects/ListMembers": ANYONE,
    "Compose/Compose": ANYONE,
    "Compose/TarEnd": ANYONE,
    "Contents/DeleteMany": ANYONE,
    "Contents/HeadMany": ANYONE,
    "Contents/Summarize": ANYONE,
    "Snapshots/CreateSnapshot": ANYONE,
    "Snapshots/ListSnapshots": ANYONE,
    "Snapshots/DeleteSnapshot": ANYONE,
    "Promote/Look": ANYONE,
    "Promote/Run": ANYONE,
    "Etl/InitTransform": ANYONE,
    "Etl/ListTransforms": ANYONE,
    "Etl/GetTransform": ANYONE,
    "Etl/SetTransform": ANYONE,
    "Etl/DeleteTransform": ANYONE,
    "Etl/StartJob": ANYONE,
    "Etl/WatchJob": ANYONE,
    "Etl/ListJobs": ANYONE,
    "Etl/ListJobFailures": ANYONE,
    "Etl/StopJob": ANYONE,
    "Etl/DeleteJob": ANYONE,
    "Etl/CopyObject": ANYONE,
    "Node/Describe": ANYONE,
    "Cluster/GetMap": ANYONE,
    "Cluster/Learn": INSIDE,
    "Cluster/Prepare": INSIDE,
    "Cluster/Accept": INSIDE,
    "Cluster/Witness": Role.PEER,
    "EtlPeer/State": Role.PEER,
    "EtlPeer/Part": Role.PEER,
    "Promote/Have": Role.PEER,
    "ContentsReplica/BuryMany": Role.PEER,
    "ContentsReplica/ListNames": Role.PEER,
    "Replica/Write": Role.PEER,
    "Replica/Newest": Role.PEER,
    "Replica/Bury": Role.PEER,
    "Replica/Versions": Role.PEER,
    "Replica/Forget": Role.PEER,
    "Repair/Missed": Role.PEER,
    "Repair/Returned": Role.PEER,
    "Repair/Push": Role.PEER,
    "Repair/TooFew": Role.PEER,
    "Repair/Relay": Role.PEER,
    "Repair/RenewLease": Role.PEER,
    "Repair/Progress": INSIDE,
    "SnapshotCopies/Hold": Role.PEER,
    "SnapshotCopies/Armed": Role.PEER,
    "SnapshotCopies/Release": Role.PEER,
    "SnapshotCopies/Seen": Role.PEER,
    "SnapshotCopies/Settle": Role.PEER,
    "SnapshotCopies/Keep": Role.PEER,
    "SnapshotCopies/Making": Role.PEER,
    "Drives/ListDrives": INSIDE,
    "Drives/AddDrive": Role.OPERATOR,
    "Drives/RetireDrive": Role.OPERATOR,
    "Drives/ReinstateDrive": Role.OPERATOR,
    "Drives/ForgetDrive": Role.OPERATOR,
    "Drives/DisableDrive": Role.OPERATOR,
    "Drives/EnableDrive": Role.OPERATOR,
}
STRANGERS = frozenset({"Cluster/GetMap", "Cluster/Witness"})
"""Methods that a node may call on nodes whose map does not contain it. It learns from them that it was removed."""
PACKAGE = "ais_loader.v1"
NOBODY = Role(0)


def who_may(path: str) -> Role:
    """Return who may call a method, given its path on the wire, /package.Service/Method."""
    return TABLE.get(path.removeprefix(f"/{PACKAGE}."), NOBODY)


class Methods:
    """Substitute for a server in the generated `add_..._to_server` functions: collects the methods that they add."""

    def __init__(self, reader: RequestReader) -> None:
        self._reader = reader
        self._by_path: dict[str, grpc.RpcMethodHandler] = {}

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler], *, sizes: bool = True
    ) -> None:
        """Add the methods of a service. `sizes`: see `guarded`."""
        self._by_path |= {
            f"/{service}/{name}": guarded(handler, sizes=sizes, reader=self._reader)
            for name, handler in handlers.items()
        }

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """Ignore the same methods in another form, which does not list them."""

    def of_lanes(self, names: Sequence[str], roles: Role) -> dict[str, grpc.RpcMethodHandler]:
        """Return those of these methods that one of these roles may call, by name."""
        paths = {name: f"/{PACKAGE}.{name}" for name in names}
        return {name: self._by_path[path] for name, path in paths.items() if who_may(path) & roles}

    def served_to(
        self, roles: Role, note: Callable[[grpc.HandlerCallDetails], None] | None = None
    ) -> grpc.GenericRpcHandler:
        """Return a handler, for a server, of the methods that one of these roles may call. `note` is called first in
        each call's task."""
        return _Served({path: handler for path, handler in self._by_path.items() if who_may(path) & roles}, note)


class _Served(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(
        self,
        methods: Mapping[str, grpc.RpcMethodHandler],
        note: Callable[[grpc.HandlerCallDetails], None] | None,
    ) -> None:
        self._methods = methods
        self._note = note

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if self._note is not None:
            self._note(handler_call_details)
        return self._methods.get(handler_call_details.method)
