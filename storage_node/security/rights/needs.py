"""Needs of calls that one right on one bucket does not express, and the parts of answers that their clients may see.

The call table names these functions. The answers of calls about all buckets have only what the client sees.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from google.protobuf.message import Message

from ais_loader.errors import JobNotFound, TransformExists
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_etl_pb2 as etl_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.security.rights.granted import Granted
from storage_node.security.rights.scopes import ETL, Right
from storage_node.store.names import transform_not_found

MessageT = TypeVar("MessageT", bound=Message)
JobBuckets: TypeAlias = Callable[[str], tuple[str, str] | None]
"""Returns the source and target of a job by its name; None if there is none."""
Show: TypeAlias = Callable[[Granted, Any], Any]
"""Returns the part of a response that the client may see; may change the response."""
_TEXTS = frozenset({"message", "problem", "log"})
"""Fields with texts of errors."""


# -- needs: each checks one message of a call, and raises AccessDenied, BucketNotFound or JobNotFound


def settings(granted: Granted, request: Any, _: JobBuckets) -> None:
    granted.require(Right.ADMIN, request.name)
    if request.HasField("remote"):  # another name for what a node may read elsewhere
        granted.require(Right.REMOTE, request.name)
        if request.remote.profile:
            granted.require_of("profile", Right.PROFILE, request.remote.profile)


def compose(granted: Granted, request: Any, _: JobBuckets) -> None:
    granted.require(Right.WRITE, request.object.bucket)
    for bucket in {part.range.bucket for part in request.part if part.HasField("range")}:
        granted.require(Right.READ, bucket or request.object.bucket)


def look(granted: Granted, _: Any, __: JobBuckets) -> None:
    granted.require_anywhere(Right.PROMOTE)


def list_transforms(granted: Granted, _: Any, __: JobBuckets) -> None:
    granted.require_anywhere(ETL)


def get_transform(granted: Granted, request: etl_pb.GetTransformRequest, _: JobBuckets) -> None:
    granted.require_anywhere(ETL)
    if not granted.sees_transform(request.name):
        raise transform_not_found(request.name, ())


def init_transform(granted: Granted, request: etl_pb.InitTransformRequest, _: JobBuckets) -> None:
    transform = request.transform
    granted.require_of("transform", Right.ETL_CREATE, transform.name)
    if transform.python.requirement:
        granted.require_of("transform", Right.ETL_INSTALL, transform.name)


def change_transform(granted: Granted, request: Any, _: JobBuckets) -> None:
    granted.require_of("transform", Right.ETL_CREATE, request.name)


def require_job(granted: Granted, job: etl_pb.TransformJob) -> None:
    """Check the rights that a job needs on its buckets. Raises AccessDenied, BucketNotFound."""
    for right, bucket in (
        (Right.READ, job.bucket),
        (Right.ETL_JOB, job.bucket),
        (Right.WRITE, job.to_bucket),
        (Right.ETL_JOB, job.to_bucket),
    ):
        granted.require(right, bucket)
    if job.synchronize:
        granted.require(Right.DELETE, job.to_bucket)


def start_job(granted: Granted, request: etl_pb.StartJobRequest, buckets: JobBuckets) -> None:
    job = request.job
    require_job(granted, job)
    # A new job replaces an ended one of the same name. All tenants share the names: others learn only that a name is
    # taken, and not whether that job is running or has ended.
    found = buckets(job.name)
    if found is not None and not all(granted.scopes.may(Right.ETL_JOB, bucket) for bucket in found):
        raise TransformExists(f"the name {job.name!r} of a job is taken: choose another one")


def see_job(granted: Granted, request: Any, buckets: JobBuckets) -> tuple[str, str]:
    found = buckets(request.name)
    if found is None or not all(map(granted.sees, found)):
        raise JobNotFound(f"there is no job {request.name!r}")
    return found


def change_job(granted: Granted, request: Any, buckets: JobBuckets) -> None:
    for bucket in see_job(granted, request, buckets):
        granted.require(Right.ETL_JOB, bucket)


def copy(granted: Granted, request: etl_pb.CopyObjectRequest, _: JobBuckets) -> None:
    granted.require(Right.READ, request.bucket)
    if request.stage:
        granted.require(Right.ETL_USE, request.bucket)
    granted.require(Right.WRITE, request.to_bucket)


# -- answers: each returns the part of a response that the client may see, and may change the response


def _only(rows: str, sees: Callable[[Granted, str], bool], *names: str) -> Show:
    """Return a function that keeps the rows of an answer of which the client sees all these names."""
    named = [attrgetter(name) for name in names]

    def shown(granted: Granted, response: Any) -> Any:
        answer = type(response)()
        answer.CopyFrom(response)
        answer.ClearField(rows)
        seen = (one for one in getattr(response, rows) if all(sees(granted, name(one)) for name in named))
        getattr(answer, rows).extend(seen)
        return told(granted, answer)

    return shown


def _errors_told(rows: str) -> Show:
    """Return a function like `told`, for rows of which most have no error."""

    def shown(granted: Granted, response: Any) -> Any:
        for one in getattr(response, rows):
            if one.HasField("error"):
                told(granted, one)
        return response

    return shown


buckets = _only("bucket", Granted.sees, "name")
transforms = _only("transform", Granted.sees_transform, "transform.name")
jobs = _only("job", Granted.sees, "job.bucket", "job.to_bucket")
usage = _only("row", Granted.sees, "bucket")
pending_uploads = _only("bucket", Granted.sees, "bucket")
results = _errors_told("result")
failures = _errors_told("failure")


def description(_: Granted, response: pb.DescribeResponse) -> pb.DescribeResponse:
    """Without the node's process, the paths of its drives and settings, and where its peers listen."""
    response.pid = 0
    for drive in response.drive:
        drive.path = ""
        drive.state = drive.state if drive.state == "ok" else "problem"
    for name, value in list(response.limits.items()):
        if "/" in value or name.startswith("peer_"):
            del response.limits[name]
    return response


def cluster_map(granted: Granted, response: cluster_pb.GetMapResponse) -> cluster_pb.GetMapResponse:
    """Without buckets that the client does not see, and what only nodes need."""
    response.peer_endpoint = ""
    if not response.HasField("map"):
        return response
    shown = cluster_pb.ClusterMap()
    shown.CopyFrom(response.map)
    for name in ("bucket", "revoked_token", "change", "removed", "transform", "job"):
        shown.ClearField(name)
    shown.bucket.extend(one for one in response.map.bucket if granted.sees(one.name))
    for node in shown.node:
        node.peer_endpoint = ""
    response.map.CopyFrom(shown)
    return response


def told(granted: Granted, message: MessageT) -> MessageT:
    """Return a message of transforms or jobs whose texts of errors and logs name no places."""
    for field, value in message.ListFields():
        if isinstance(value, Message):
            told(granted, value)
        elif isinstance(value, str):
            if field.name in _TEXTS:
                setattr(message, field.name, granted.told(value))
        elif field.name == "error":
            value[:] = [granted.told(one) for one in value]
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for one in value:
                told(granted, one)
    return message
