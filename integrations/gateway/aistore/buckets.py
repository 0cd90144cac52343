"""Calls on buckets: create, destroy, list, properties, summary."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from typing import Any

from ais_loader.errors import BucketExists
from ais_loader.objects.bucket import Bucket
from ais_loader.transport.base import BucketInfo
from ais_loader.wire.redundancy import Redundancy

from ..request import Response, check_prefix
from .request import AISError, AisRequest, json_response, provider_of, text_of, text_response, unsupported

BUCKET_PROPS, BUCKET_SUMMARY, JOB_ID = "ais-bucket-props", "ais-bucket-summ", "ais-xaction-id"
_RUNNING = 202


ALL_ACCESS = str(2**64 - 1)


def props_of(info: BucketInfo) -> dict[str, Any]:
    """Return a bucket's properties in AIStore's terms."""
    redundancy = Redundancy.parse(info.redundancy)
    copies = 1 if redundancy is not None else info.copies
    data, parity = (0, 0) if redundancy is None else (redundancy.data, redundancy.parity)
    nothing = {"name": "", "provider": "", "namespace": {"uuid": "", "name": ""}}
    return {
        "provider": provider_of(info),
        "backend_bck": nothing,
        "checksum": {"type": "crc32c", "validate_cold_get": False, "validate_warm_get": True},
        "versioning": {"enabled": True, "validate_warm_get": False, "synchronize": False},
        "mirror": {"enabled": copies > 1, "copies": copies, "burst_buffer": 0},
        "ec": {"enabled": data > 0, "data_slices": data, "parity_slices": parity, "objsize_limit": 0},
        "lru": {"enabled": info.remote is not None},
        "access": ALL_ACCESS,
        "features": "0",
        "bid": str(int(info.uuid.replace("-", "")[:15] or "0", 16)),
        "created": "0",
        "write_policy": {"data": "", "md": ""},
    }


def change_props(bucket: Bucket, wanted: Mapping[str, Any]) -> None:
    """Change a bucket's properties. Raises AISError, and changes nothing, if one has no meaning here."""
    current = props_of(bucket.info())
    copies = _copies(wanted, current)
    if copies != current["mirror"]["copies"]:
        bucket.set(copies=copies)


def require_defaults(wanted: Mapping[str, Any]) -> int:
    """Return the number of copies that a new bucket is to have. Raises AISError for properties without a meaning."""
    return _copies(wanted, props_of(BucketInfo("", "0", 1)))


def _copies(wanted: Mapping[str, Any], current: Mapping[str, Any]) -> int:
    """Return the number of copies that properties ask for. Raises AISError for any other change."""
    mirror = wanted.get("mirror") or {}
    _require_same({**wanted, "mirror": {}}, current, "")
    if not isinstance(mirror, dict) or mirror.keys() - {"enabled", "copies", "burst_buffer"}:
        raise unsupported("this property of mirror")
    copies = 1 if mirror.get("enabled") is False else mirror.get("copies", current["mirror"]["copies"])
    if type(copies) is not int or (copies == 1 and mirror.get("enabled")):
        raise AISError(400, "mirror: need the number of copies, 2 or more if it is enabled")
    return copies


def _require_same(wanted: Mapping[str, Any], current: Mapping[str, Any], place: str) -> None:
    for key, value in wanted.items():
        if value in (None, "", {}):
            continue
        found = current.get(key)
        if isinstance(value, dict) and isinstance(found, dict):
            _require_same(value, found, f"{place}{key}.")
        elif value != found:
            raise unsupported(f"the property {place}{key}={str(value)[:80]!r} of a bucket")


def bucket_value(name: str, provider: str) -> dict[str, Any]:
    """Return a bucket as values of calls name it."""
    return {"name": name, "provider": provider, "namespace": {"uuid": "", "name": ""}}


def list_buckets(request: AisRequest) -> Response:
    """Answer a list of buckets: those of a provider, or of all if none is named, and only `name` if that is given."""
    wanted = request.provider if request.query.get("provider") else ""
    name = request.json.get("name") if isinstance(request.json, dict) else None
    found = [(info.name, provider_of(info)) for info in request.client.buckets() if name in (None, "", info.name)]
    return json_response([bucket_value(*one) for one in found if wanted in ("", one[1])])


def create(request: AisRequest) -> Response:
    """Create a bucket. Raises AISError."""
    if request.provider != "ais":
        raise unsupported(f"creating {request.bucket_url}: remote buckets are created with ais-loader")
    copies = require_defaults(request.value)
    try:
        request.client.create_bucket(request.bucket, copies=copies)
    except BucketExists:
        raise AISError(409, f'bucket "{request.bucket_url}" already exists', "ErrBucketAlreadyExists") from None
    return Response()


def destroy(request: AisRequest) -> Response:
    """Delete a bucket and its objects. Raises AISError for a remote bucket, whose objects are not this store's."""
    info = request.open_bucket().info()
    if info.remote is not None:
        raise AISError(400, f"{request.bucket_url} is a remote bucket: it is not destroyed, but evicted")
    request.client.delete_bucket(request.bucket, force=True)
    return Response()


def head(request: AisRequest) -> Response:
    """Answer with a bucket's properties, and with its summary if that is asked for."""
    bucket = request.open_bucket()
    headers = {BUCKET_PROPS: json.dumps(props_of(bucket.info()))}
    if "bsumm_remote" not in request.query or request.query.get("fltpresence") in ("1", "3"):
        return Response(headers=headers)
    # The first answer is a job's id, which carries the prefix, as no gateway keeps jobs.
    job = request.query.get("uuid", "")
    if not job:
        prefix = base64.urlsafe_b64encode(request.key.encode()).decode().rstrip("=")
        return Response(_RUNNING, {**headers, JOB_ID: f"summary-{prefix}"})
    encoded = job.removeprefix("summary-")
    try:
        prefix = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True).decode()
    except ValueError:
        raise AISError(404, f"job {job[:80]!r} does not exist") from None
    headers[BUCKET_SUMMARY] = json.dumps(_summary(bucket, request.provider, check_prefix(prefix)))
    return Response(headers=headers)


def set_props(request: AisRequest) -> Response:
    """Change a bucket's properties. Raises AISError."""
    change_props(request.open_bucket(), request.value)
    return Response()


def summary(request: AisRequest) -> Response:
    """Answer with a bucket's summary. The first answer is only the id of a job, as clients expect."""
    bucket = request.open_bucket()
    if not request.value.get("uuid"):
        bucket.info()
        return _job()
    return json_response([_summary(bucket, request.provider, _prefix(request))])


def summaries(request: AisRequest) -> Response:
    """Answer with the summaries of all buckets of a provider, or of all if none is named. Raises AISError."""
    if not request.value.get("uuid"):
        return _job()
    wanted = request.provider if request.query.get("provider") else ""
    found = [(info.name, provider_of(info)) for info in request.client.buckets()]
    prefix = _prefix(request)
    return json_response([_summary(request.client.bucket(a), b, prefix) for a, b in found if wanted in ("", b)])


def _job() -> Response:
    return text_response(f"summary-{uuid.uuid4().hex[:12]}", _RUNNING)


def _prefix(request: AisRequest) -> str:
    return check_prefix(text_of(request.value, "prefix"))


def _summary(bucket: Bucket, provider: str, prefix: str) -> dict[str, Any]:
    found = bucket.summary(prefix, depth=0)
    mean = found.size_bytes // found.objects if found.objects else 0
    return {
        **bucket_value(bucket.name, provider),
        "ObjCount": {"obj_count_present": str(found.objects), "obj_count_remote": "0"},
        "ObjSize": {"obj_min_size": 0, "obj_avg_size": mean, "obj_max_size": 0},
        "TotalSize": {
            "size_on_disk": str(found.size_bytes),
            "size_all_present_objs": str(found.size_bytes),
            "size_all_remote_objs": "0",
            "total_disks_size": "0",
        },
        "used_pct": 0,
        "is_present": True,
    }
