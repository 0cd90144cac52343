"""Call table: one row for each method of a node, with all that the path of a call (`call_path`) has to know about it.

A method that has no row is not served anywhere, so a new one is unavailable until it is added here. The client listener
serves what clients may call. The peer listener serves all of that, and what peers and operators may call.

`about` is the one place where a message is taken apart: a client needs its rights on the buckets that it returns, and a
line of the audit log names them with their objects. Calls on several buckets with different rights have a check of
their own (`rights.needs`). Batches and PUTs of many objects are checked by entry (`rights.batches`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.security.rights import needs as rights
from storage_node.security.rights.granted import Granted
from storage_node.security.rights.scopes import SEES, Right

PACKAGE = "ais_loader.v1"


class Role(enum.Flag):
    """Role of a caller."""

    CLIENT = enum.auto()
    PEER = enum.auto()
    """A node of the same cluster. What clients may do, it may do on their behalf."""
    OPERATOR = enum.auto()
    """A command of the nodes' operator."""


CALLER: ContextVar[Role] = ContextVar("caller", default=Role.CLIENT)
"""Role of the caller of the call that a task serves. At the client listener, all are clients."""
ANYONE, INSIDE = Role.CLIENT | Role.PEER | Role.OPERATOR, Role.PEER | Role.OPERATOR
CLIENT, PEER, OPERATOR = Role

# Rights that a call needs.
NO_RIGHTS = 0
"""Any token is enough: the answer has only what its client may see, or each entry is checked."""
Check: TypeAlias = Callable[[Granted, Any, rights.JobBuckets], object]
"""Checks one message of a call. Raises AccessDenied, BucketNotFound, JobNotFound."""

# Lines of the audit log.
CHANGE = "change"
COMMAND = "command"
"""Like CHANGE, but none for nodes, which pass a command on."""
READ = "read"
"""With `audit_level="reads"` only, and none for nodes."""
OPENS = "opens"
"""None; the call opens a session or lane, of which later lines are."""

# Slots of those that `max_streams` bounds.
TIMED = "timed"
"""The client has a deadline for each step that it is waited for."""
PATIENT = "patient"
"""The client may pause as long as it likes while no other call needs the slot: nothing is held for it between two
messages."""


class About(NamedTuple):
    """A bucket that a message is about, and the objects in it that the message names."""

    bucket: str
    names: Iterable[str] = ()
    member: str = ""


Abouts: TypeAlias = Callable[[Any], Iterable[About]]
"""Returns what a message is about."""


def nothing(_: Any) -> Iterable[About]:
    return ()


def bucket(field: str = "bucket") -> Abouts:
    named = attrgetter(field)
    return lambda request: (About(named(request)),)


def any_bucket(request: Any) -> Iterable[About]:
    return (About(request.bucket),) if request.bucket else ()


def buckets(request: Any) -> Iterable[About]:
    return map(About, request.bucket)


def job_buckets(request: Any) -> Iterable[About]:
    return (About(request.job.bucket), About(request.job.to_bucket))


def one_object(request: Any) -> Iterable[About]:
    return (About(request.bucket, (request.name,)),)


def objects(request: Any) -> Iterable[About]:
    return (About(request.bucket, request.name),)


def member(request: Any) -> Iterable[About]:
    return (About(request.bucket, (request.name,), request.member),)


def header_object(request: Any) -> Iterable[About]:
    # Over a lane, the bytes of an object come as another type.
    return one_object(request.header) if isinstance(request, pb.PutRequest) and request.HasField("header") else ()


def small_objects(request: Any) -> Iterable[About]:
    return [About(small.bucket, (small.name,)) for small in request.object]


def composed_object(request: Any) -> Iterable[About]:
    return one_object(request.object)


def copied_object(request: Any) -> Iterable[About]:
    return (About(request.to_bucket, (request.to_name,)),)


@dataclass(frozen=True, slots=True)
class Call:
    """A method of a node."""

    name: str
    """Service/Method."""
    by: Role
    """Who may call it."""
    needs: int | Check | None = None
    """One of these rights on each bucket that it is about; None refuses all tokens."""
    about: Abouts = nothing
    target: Callable[[Any], object] | None = None
    """Returns the name of what is no bucket, such as a drive, for the line of the audit log."""
    shows: rights.Show | None = None
    log: str = ""
    slots: str = ""
    counts: str = ""
    """The operation as which it is counted, with its errors and bytes."""
    rated: bool = True
    """Whether it counts toward its tenant's rate. Batches count one by one."""
    lanes: Role | None = None
    """The role to which lanes serve it as well."""
    strangers: bool = False
    """Whether a node may call nodes whose map does not contain it. It learns from them that it was removed."""
    finds_peers: bool = False
    """Whether nodes and operators need no token for it at the client listener, where they learn of the one for them."""

    def __post_init__(self) -> None:
        if self.needs and not callable(self.needs) and self.about is nothing:
            raise ValueError(f"{self.name} needs rights on the buckets that it is about: give about=")


_name, _drive, _path, _token = map(attrgetter, ("name", "drive", "path", "token.id"))
_transform, _job = attrgetter("transform.name"), attrgetter("job.name")


def _map(request: Any) -> str:
    return f"map {request.map.version}"


_ROWS = (
    Call("GetBatch/Session", ANYONE, NO_RIGHTS, log=OPENS, rated=False),
    Call("GetBatch/OpenLane", ANYONE, NO_RIGHTS, log=OPENS, rated=False),
    Call("Buckets/CreateBucket", ANYONE, rights.settings, bucket("name"), log=CHANGE),
    Call("Buckets/GetBucket", ANYONE, SEES, bucket("name")),
    Call("Buckets/ListBuckets", ANYONE, NO_RIGHTS, shows=rights.buckets),
    Call("Buckets/SetBucket", ANYONE, rights.settings, bucket("name"), log=CHANGE),
    Call("Buckets/DeleteBucket", ANYONE, Right.ADMIN, bucket("name"), log=CHANGE),
    Call("Objects/Put", ANYONE, Right.WRITE, header_object, log=CHANGE, slots=TIMED, counts="put", lanes=CLIENT),
    Call(
        "Objects/PutMany",
        ANYONE,
        NO_RIGHTS,
        small_objects,
        shows=rights.results,
        log=CHANGE,
        slots=PATIENT,
        counts="put",
        lanes=CLIENT,
    ),
    Call("Objects/Get", ANYONE, Right.READ, member, log=READ, slots=TIMED, counts="get"),
    Call("Objects/Head", ANYONE, SEES, one_object, counts="head"),
    Call("Objects/Delete", ANYONE, Right.DELETE, one_object, log=CHANGE, counts="delete"),
    Call("Objects/List", ANYONE, Right.LIST, bucket(), slots=TIMED, counts="list"),
    Call("Objects/ListMembers", ANYONE, Right.LIST, one_object, slots=TIMED, counts="list"),
    Call("Compose/Compose", ANYONE, rights.compose, composed_object, log=CHANGE, slots=PATIENT, counts="put"),
    Call("Contents/DeleteMany", ANYONE, Right.DELETE, objects, shows=rights.failures, log=CHANGE, slots=TIMED),
    Call("Contents/Deny", ANYONE, Right.ADMIN, objects, shows=rights.failures, log=CHANGE, slots=TIMED),
    Call("Contents/ListDenied", ANYONE, Right.ADMIN, bucket()),
    Call("Contents/HeadMany", ANYONE, SEES, objects, shows=rights.failures),
    Call("Contents/Summarize", ANYONE, Right.LIST, bucket(), slots=PATIENT),
    Call("RemoteBuckets/ListRemote", ANYONE, Right.LIST, bucket(), slots=TIMED, counts="list"),
    Call("RemoteBuckets/Warm", ANYONE, Right.READ, objects, shows=rights.results, slots=PATIENT),
    Call("RemoteBuckets/Evict", ANYONE, Right.ADMIN, objects, log=CHANGE, slots=TIMED),
    Call("RemoteBuckets/Expect", ANYONE, Right.READ, buckets, slots=TIMED),
    Call("RemoteBuckets/RemoteUsage", ANYONE, NO_RIGHTS, shows=rights.usage, slots=TIMED),
    Call("RemoteBuckets/PendingUploads", ANYONE, SEES, any_bucket, shows=rights.pending_uploads, slots=TIMED),
    Call("RemoteBuckets/RefreshInventory", ANYONE, Right.ADMIN, bucket(), log=CHANGE, slots=PATIENT),
    Call("Snapshots/CreateSnapshot", ANYONE, Right.WRITE, bucket(), target=_name, log=CHANGE),
    Call("Snapshots/ListSnapshots", ANYONE, SEES, bucket()),
    Call("Snapshots/DeleteSnapshot", ANYONE, Right.DELETE, bucket(), target=_name, log=CHANGE),
    Call("Promote/Look", ANYONE, rights.look),
    Call("Promote/Run", ANYONE, Right.PROMOTE, bucket(), log=CHANGE),
    Call("Etl/InitTransform", ANYONE, rights.init_transform, target=_transform, shows=rights.told, log=CHANGE),
    Call("Etl/ListTransforms", ANYONE, rights.list_transforms, shows=rights.transforms),
    Call("Etl/GetTransform", ANYONE, rights.get_transform, shows=rights.told),
    Call("Etl/SetTransform", ANYONE, rights.change_transform, target=_name, shows=rights.told, log=CHANGE),
    Call("Etl/DeleteTransform", ANYONE, rights.change_transform, target=_name, log=CHANGE),
    Call("Etl/StartJob", ANYONE, rights.start_job, job_buckets, target=_job, shows=rights.told, log=CHANGE),
    Call("Etl/WatchJob", ANYONE, rights.see_job, shows=rights.told, slots=PATIENT),
    Call("Etl/ListJobs", ANYONE, NO_RIGHTS, shows=rights.jobs),
    Call("Etl/ListJobFailures", ANYONE, rights.see_job, shows=rights.told),
    Call("Etl/StopJob", ANYONE, rights.change_job, target=_name, shows=rights.told, log=CHANGE),
    Call("Etl/DeleteJob", ANYONE, rights.change_job, target=_name, shows=rights.told, log=CHANGE),
    Call("Etl/CopyObject", ANYONE, rights.copy, copied_object, log=CHANGE, slots=TIMED),
    Call("Node/Describe", ANYONE, NO_RIGHTS, shows=rights.description, rated=False, finds_peers=True),
    Call("Cluster/GetMap", ANYONE, NO_RIGHTS, shows=rights.cluster_map, rated=False, strangers=True, finds_peers=True),
    Call("Cluster/Learn", INSIDE),
    Call("Cluster/Prepare", INSIDE),
    Call("Cluster/Accept", INSIDE, target=_map, log=COMMAND),
    Call("Cluster/Witness", PEER, strangers=True),
    Call("RemotePeer/Fetch", PEER),
    Call("RemotePeer/SettleFetches", PEER),
    Call("RemotePeer/UploadStates", PEER),
    Call("RemotePeer/PendingDeletions", PEER),
    Call("EtlPeer/State", PEER),
    Call("EtlPeer/Part", PEER),
    Call("Promote/Have", PEER),
    Call("ContentsReplica/BuryMany", PEER),
    Call("ContentsReplica/ListNames", PEER),
    Call("Replica/Write", PEER, lanes=PEER),
    Call("Replica/Newest", PEER),
    Call("Replica/Bury", PEER),
    Call("Replica/Versions", PEER),
    Call("Replica/Recode", PEER),
    Call("Repair/Missed", PEER),
    Call("Repair/Returned", PEER),
    Call("Repair/Push", PEER),
    Call("Repair/TooFew", PEER),
    Call("Repair/Compare", PEER),
    Call("Repair/Relay", PEER),
    Call("Repair/RenewLease", PEER),
    Call("Repair/Recall", PEER),
    Call("Repair/Progress", INSIDE),
    Call("SnapshotCopies/Hold", PEER),
    Call("SnapshotCopies/Armed", PEER),
    Call("SnapshotCopies/Release", PEER),
    Call("SnapshotCopies/Seen", PEER),
    Call("SnapshotCopies/Settle", PEER),
    Call("SnapshotCopies/Keep", PEER),
    Call("SnapshotCopies/Making", PEER),
    Call("Tokens/RevokeToken", OPERATOR, target=_token, log=CHANGE),
    Call("Tokens/ListRevokedTokens", OPERATOR),
    Call("Drives/ListDrives", INSIDE),
    Call("Drives/AddDrive", OPERATOR, target=_path, log=CHANGE),
    Call("Drives/RetireDrive", OPERATOR, target=_drive, log=CHANGE),
    Call("Drives/ReinstateDrive", OPERATOR, target=_drive, log=CHANGE),
    Call("Drives/ForgetDrive", OPERATOR, target=_drive, log=CHANGE),
    Call("Drives/DisableDrive", OPERATOR, target=_drive, log=CHANGE),
    Call("Drives/EnableDrive", OPERATOR, target=_drive, log=CHANGE),
)
TABLE: Mapping[str, Call] = {call.name: call for call in _ROWS}
_NOT_SERVED = Call("", Role(0))


def call_of(path: str) -> Call:
    """Return the row of a method, given its path on the wire, /package.Service/Method."""
    return TABLE.get(path.removeprefix(f"/{PACKAGE}."), _NOT_SERVED)
