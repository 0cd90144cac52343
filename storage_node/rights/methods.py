"""Rights that each method of clients needs. Every method that clients may call is in this table (tests compare it with
the table of access): one that is missing is refused to every token.

A method with a bucket in its request is checked with that bucket. The answers of methods about all buckets have only
what the client sees. Batches, and PUTs of many objects, are checked by entry, see `batches`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from google.protobuf.message import Message

from ais_loader.errors import JobNotFound, TransformExists
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_etl_pb2 as etl_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_remote_pb2 as remote_pb
from storage_node.rights.granted import Granted
from storage_node.rights.scopes import ETL, SEES, Right
from storage_node.store.names import transform_not_found

MessageT = TypeVar("MessageT", bound=Message)
Check: TypeAlias = Callable[[Granted, Any], None]
"""Checks one message of a call. Raises AccessDenied, BucketNotFound, JobNotFound."""
JobBuckets: TypeAlias = Callable[[str], tuple[str, str] | None]
"""Returns the source and target of a job by its name; None if there is none."""


@dataclass(frozen=True, slots=True)
class MethodNeed:
    """Need of a method, and which part of its answer is shown."""

    check: Check
    shown: Callable[[Granted, Any], Any] | None = None
    """Returns the part of a response that the client may see; may change the response."""


def _nothing(_: Granted, __: Any) -> None:
    pass


def _on(rights: int, field: str = "bucket") -> MethodNeed:
    """One of these rights on the bucket in a field of the request."""

    def check(granted: Granted, request: Any) -> None:
        granted.require(rights, getattr(request, field))

    return MethodNeed(check)


def _settings(granted: Granted, request: Any) -> None:
    granted.require(Right.ADMIN, request.name)
    if request.HasField("remote"):  # another name for what a node may read elsewhere
        granted.require(Right.REMOTE, request.name)
        if request.remote.profile:
            granted.require_of("profile", Right.PROFILE, request.remote.profile)


def _put(granted: Granted, request: Any) -> None:
    # Over a lane, the bytes of an object come as another type.
    if isinstance(request, pb.PutRequest) and request.HasField("header"):
        granted.require(Right.WRITE, request.header.bucket)


def _compose(granted: Granted, request: Any) -> None:
    granted.require(Right.WRITE, request.object.bucket)
    for bucket in {part.range.bucket for part in request.part if part.HasField("range")}:
        granted.require(Right.READ, bucket or request.object.bucket)


def _expect(granted: Granted, request: remote_pb.ExpectRequest) -> None:
    for bucket in request.bucket:
        granted.require(Right.READ, bucket)


def _pending(granted: Granted, request: remote_pb.PendingUploadsRequest) -> None:
    if request.bucket:
        granted.require(SEES, request.bucket)


def _look(granted: Granted, _: Any) -> None:
    granted.require_anywhere(Right.PROMOTE)


def _any_etl(granted: Granted, _: Any) -> None:
    granted.require_anywhere(ETL)


def _get_transform(granted: Granted, request: etl_pb.GetTransformRequest) -> None:
    granted.require_anywhere(ETL)
    if not granted.sees_transform(request.name):
        raise transform_not_found(request.name, ())


def _transforms_shown(granted: Granted, response: etl_pb.ListTransformsResponse) -> etl_pb.ListTransformsResponse:
    seen = [one for one in response.transform if granted.sees_transform(one.transform.name)]
    return _told(granted, etl_pb.ListTransformsResponse(transform=seen))


def _init_transform(granted: Granted, request: etl_pb.InitTransformRequest) -> None:
    transform = request.transform
    granted.require_of("transform", Right.ETL_CREATE, transform.name)
    if transform.python.requirement:
        granted.require_of("transform", Right.ETL_INSTALL, transform.name)


def _change_transform(granted: Granted, request: Any) -> None:
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


def _start_job(buckets: JobBuckets, granted: Granted, request: etl_pb.StartJobRequest) -> None:
    job = request.job
    require_job(granted, job)
    # A new job replaces an ended one of the same name. All tenants share the names: others learn only that a name is
    # taken, and not whether that job is running or has ended.
    found = buckets(job.name)
    if found is not None and not all(granted.scopes.may(Right.ETL_JOB, bucket) for bucket in found):
        raise TransformExists(f"the name {job.name!r} of a job is taken: choose another one")


def _copy(granted: Granted, request: etl_pb.CopyObjectRequest) -> None:
    granted.require(Right.READ, request.bucket)
    if request.stage:
        granted.require(Right.ETL_USE, request.bucket)
    granted.require(Right.WRITE, request.to_bucket)


def _job(buckets: JobBuckets, changes: bool, granted: Granted, request: Any) -> None:
    found = buckets(request.name)
    if found is None or not all(map(granted.sees, found)):
        raise JobNotFound(f"there is no job {request.name!r}")
    if changes:
        for bucket in found:
            granted.require(Right.ETL_JOB, bucket)


def _buckets_shown(granted: Granted, response: pb.ListBucketsResponse) -> pb.ListBucketsResponse:
    return pb.ListBucketsResponse(bucket=[one for one in response.bucket if granted.sees(one.name)])


def _jobs_shown(granted: Granted, response: etl_pb.ListJobsResponse) -> etl_pb.ListJobsResponse:
    jobs = [one for one in response.job if granted.sees(one.job.bucket) and granted.sees(one.job.to_bucket)]
    return _told(granted, etl_pb.ListJobsResponse(job=jobs))


def _usage_shown(granted: Granted, response: remote_pb.RemoteUsageResponse) -> remote_pb.RemoteUsageResponse:
    rows = [one for one in response.row if granted.sees(one.bucket)]
    return remote_pb.RemoteUsageResponse(row=rows, expected_keys=response.expected_keys)


def _pending_shown(granted: Granted, response: remote_pb.PendingUploadsResponse) -> remote_pb.PendingUploadsResponse:
    seen = [one for one in response.bucket if granted.sees(one.bucket)]
    return _told(granted, remote_pb.PendingUploadsResponse(bucket=seen))


def _description_shown(_: Granted, response: pb.DescribeResponse) -> pb.DescribeResponse:
    """Without the node's process, the paths of its drives and settings, and where its peers listen."""
    response.pid = 0
    for drive in response.drive:
        drive.path = ""
        drive.state = drive.state if drive.state == "ok" else "problem"
    for name, value in list(response.limits.items()):
        if "/" in value or name.startswith("peer_"):
            del response.limits[name]
    return response


def _told(granted: Granted, message: MessageT) -> MessageT:
    """Return a message of transforms or jobs whose texts of errors and logs name no places."""
    for field, value in message.ListFields():
        if isinstance(value, Message):
            _told(granted, value)
        elif isinstance(value, str):
            if field.name in _TEXTS:
                setattr(message, field.name, granted.told(value))
        elif field.name == "error":
            value[:] = [granted.told(one) for one in value]
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for one in value:
                _told(granted, one)
    return message


def _results_told(granted: Granted, response: Any) -> Any:
    """Like `_told`, for results of many objects, most of which have no error."""
    for one in response.result:
        if one.HasField("error"):
            _told(granted, one)
    return response


def _failures_told(granted: Granted, response: Any) -> Any:
    """Like `_told`, for failures among many objects."""
    for one in response.failure:
        _told(granted, one)
    return response


def _map_shown(granted: Granted, response: cluster_pb.GetMapResponse) -> cluster_pb.GetMapResponse:
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


_READS = _on(Right.READ)
_LISTS = _on(Right.LIST)
_WRITES = _on(Right.WRITE)
_DELETES = _on(Right.DELETE)
_SEES = _on(SEES)
_BY_ENTRY = MethodNeed(_nothing)
_TEXTS = frozenset({"message", "problem", "log"})
"""Fields with texts of errors."""


def needs_of_methods(job_buckets: JobBuckets) -> Mapping[str, MethodNeed]:
    """Return what each method of clients needs, by "Service/Method"."""
    watches, changes = (MethodNeed(partial(_job, job_buckets, one), _told) for one in (False, True))
    return {
        "GetBatch/Session": _BY_ENTRY,
        "GetBatch/OpenLane": _BY_ENTRY,
        "Buckets/CreateBucket": MethodNeed(_settings),
        "Buckets/GetBucket": _on(SEES, "name"),
        "Buckets/ListBuckets": MethodNeed(_nothing, _buckets_shown),
        "Buckets/SetBucket": MethodNeed(_settings),
        "Buckets/DeleteBucket": _on(Right.ADMIN, "name"),
        "Objects/Put": MethodNeed(_put),
        "Objects/PutMany": MethodNeed(_nothing, _results_told),
        "Objects/Get": _READS,
        "Objects/Head": _SEES,
        "Objects/Delete": _DELETES,
        "Objects/List": _LISTS,
        "Objects/ListMembers": _LISTS,
        "Compose/Compose": MethodNeed(_compose),
        "Compose/TarEnd": _READS,
        "Contents/DeleteMany": MethodNeed(_DELETES.check, _failures_told),
        "Contents/HeadMany": MethodNeed(_SEES.check, _failures_told),
        "Contents/Summarize": _LISTS,
        "RemoteBuckets/ListRemote": _LISTS,
        "RemoteBuckets/Warm": MethodNeed(_READS.check, _results_told),
        "RemoteBuckets/Evict": _on(Right.ADMIN),
        "RemoteBuckets/Expect": MethodNeed(_expect),
        "RemoteBuckets/RemoteUsage": MethodNeed(_nothing, _usage_shown),
        "RemoteBuckets/PendingUploads": MethodNeed(_pending, _pending_shown),
        "RemoteBuckets/RefreshInventory": _on(Right.ADMIN),
        "Snapshots/CreateSnapshot": _WRITES,
        "Snapshots/ListSnapshots": _SEES,
        "Snapshots/DeleteSnapshot": _DELETES,
        "Promote/Look": MethodNeed(_look),
        "Promote/Run": _on(Right.PROMOTE),
        "Etl/InitTransform": MethodNeed(_init_transform, _told),
        "Etl/ListTransforms": MethodNeed(_any_etl, _transforms_shown),
        "Etl/GetTransform": MethodNeed(_get_transform, _told),
        "Etl/SetTransform": MethodNeed(_change_transform, _told),
        "Etl/DeleteTransform": MethodNeed(_change_transform),
        "Etl/StartJob": MethodNeed(partial(_start_job, job_buckets), _told),
        "Etl/WatchJob": watches,
        "Etl/ListJobs": MethodNeed(_nothing, _jobs_shown),
        "Etl/ListJobFailures": watches,
        "Etl/StopJob": changes,
        "Etl/DeleteJob": changes,
        "Etl/CopyObject": MethodNeed(_copy),
        "Node/Describe": MethodNeed(_nothing, _description_shown),
        "Cluster/GetMap": MethodNeed(_nothing, _map_shown),
    }
