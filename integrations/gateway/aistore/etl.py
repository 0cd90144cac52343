"""ETL: AIStore's calls on transforms. Server classes of its SDK run as transforms of the store, without containers.

The classes themselves are loaded where transforms run, never in the gateway.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ais_loader import errors
from ais_loader.objects.bucket import Bucket
from ais_loader.transforms.etl import TransformInfo
from ais_loader.values.pipeline import Etl, Pipeline, Stage
from ais_loader.values.urls import is_remote

from ..request import Response, name_of
from .copies import Copying, places, target_named, uname
from .groups import selection
from .jobs import ETL_BUCKET, ETL_OBJECTS, new_store_job, store_job
from .request import AISError, AisRequest, json_response, text_response, unsupported

MAX_INIT_BYTES = 64 << 20
_CLASS, _PACKAGES, _SYSTEM_PACKAGES = "ETL_CLASS_PAYLOAD", "PACKAGES", "OS_PACKAGES"
_BY_PATH = "ETL_DIRECT_FQN"
_RUNTIME = re.compile(r"(?:.*/)?runtime_python:([0-9]+\.[0-9]+)[^/]*\Z")
_DURATION = re.compile(r"(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+(?:\.[0-9]+)?)s)?\Z")
_TARGET = "store"


class ServerTransform:
    """Transform made of a server class of AIStore's SDK. It is pickled here, and loaded where transforms run."""

    def __init__(self, payload: bytes, environment: Mapping[str, str], *, by_path: bool) -> None:
        """
        Args:
            payload: The pickle of the class.
            environment: What the class finds in its environment.
            by_path: Objects are passed as paths of files.
        """
        self._payload, self._environment, self._by_path = payload, dict(environment), by_path
        self._server: Any = None

    def __call__(self, data: Any, origin: str = "", **args: Any) -> bytes:
        """Transform an object, with arguments as AIStore sends them: a text, or JSON."""
        if self._server is None:
            import os
            import pickle

            os.environ.update({"AIS_TARGET_URL": "http://127.0.0.1", **self._environment})
            self._server = pickle.loads(self._payload)()
        text = args.get("etl_args") or (json.dumps(args, separators=(",", ":")) if args else "")
        return bytes(self._server.transform(str(data) if self._by_path else bytes(data), origin, text))


def init(request: AisRequest) -> Response:
    """Answer a request for a new transform, given as a server class of AIStore's SDK. Raises Refusal."""
    message = request.json if isinstance(request.json, dict) else {}
    name = message.get("name")
    if not isinstance(name, str) or not name:
        raise AISError(400, "name: need the name of the etl")
    runtime = message.get("runtime")
    runtime = runtime if isinstance(runtime, dict) else {}
    environment = _environment(runtime.get("env"))
    payload = environment.pop(_CLASS, "")
    image = _RUNTIME.match(str(runtime.get("image", "")))
    if not payload or image is None or runtime.get("command"):
        raise unsupported(f"etl {name[:80]!r}: an image of a container")
    if not is_remote(request.client.url):
        # Any client of an embedded store may run code as the gateway's user. Those of HTTP may not.
        raise unsupported(f"etl {name[:80]!r}: code in a store without nodes")
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if image[1] != here:
        raise unsupported(f"etl {name[:80]!r}: a class of Python {image[1]} (the store has {here})")
    if environment.pop(_SYSTEM_PACKAGES, ""):
        raise unsupported(f"etl {name[:80]!r}: packages of the operating system")
    packages = [one.strip() for one in environment.pop(_PACKAGES, "").split(",") if one.strip()]
    by_path = environment.get(_BY_PATH, "").lower() == "true"
    try:
        pickled = base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise AISError(400, f"{_CLASS}: need base64") from None
    try:
        request.client.etl.init(
            name,
            ServerTransform(pickled, environment, by_path=by_path),
            requirements=["aistore", *packages],
            path=by_path,
            timeout_s=_seconds(message.get("obj_timeout")),
        )
    except errors.TransformExists:
        raise AISError(409, f"etl job {name} already exists", "ErrETLAlreadyExists") from None
    except errors.TransformRefused as error:
        raise unsupported(f"etl {name[:80]!r}: {error}") from None
    return text_response(f"etl-{name}")


def _environment(rows: object) -> dict[str, str]:
    found = {}
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, dict) or not isinstance(row.get("name"), str):
            raise AISError(400, "env: need a list of names and values")
        found[row["name"]] = str(row.get("value", ""))
    return found


def _seconds(text: object) -> float:
    """Return a duration such as `1m30s` in seconds; 0 if there is none. Raises AISError."""
    match = _DURATION.match(text) if isinstance(text, str) else None
    if text and match is None:
        raise AISError(400, f"obj_timeout {str(text)[:40]!r}: need a duration such as 45s")
    hours, minutes, seconds = match.groups(default="0") if match is not None else ("0", "0", "0")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def _named(request: AisRequest, call: Callable[[str], Any]) -> Any:
    if not request.rest:
        raise AISError(400, "need the name of an etl")
    name = request.rest[0]
    try:
        return call(name)
    except errors.TransformNotFound:
        raise AISError(404, f"etl job {name} does not exist", "ErrETLNotFound") from None


def list_all(request: AisRequest) -> Response:
    """Answer a request for all transforms."""
    return json_response([_row(info) for info in request.client.etl.list()])


def _row(info: TransformInfo) -> dict[str, Any]:
    return {
        "id": info.name,
        "xaction_id": f"etl-{info.name}",
        "stage": "Aborted" if info.stopped else "Running",
        "obj_count": sum(node.objects for node in info.nodes),
        "in_bytes": sum(node.input_bytes for node in info.nodes),
        "out_bytes": sum(node.output_bytes for node in info.nodes),
    }


def about_one(request: AisRequest) -> Response:
    """Answer requests for a transform, `/v1/etl/NAME`, and for its logs, `/v1/etl/NAME/logs`. Raises AISError."""
    if request.rest[1:2] == ("logs",):
        logs = _named(request, request.client.etl.log)
        return json_response([{"target_id": _TARGET, "logs": base64.b64encode(logs.encode()).decode()}])
    if len(request.rest) > 1:
        raise unsupported(f"etl {'/'.join(request.rest[1:])[:80]}")
    info: TransformInfo = _named(request, request.client.etl.get)
    answer: dict[str, Any] = {
        "init_msg": {"name": info.name, "communication": "hpush://", "runtime": {"image": info.source}}
    }
    if job := request.query.get("uuid"):
        try:
            failures = store_job(request, job).failures()
        except errors.JobNotFound:
            raise AISError(404, f"job {job[:100]} of etl {info.name} does not exist") from None
        answer["obj_errors"] = [{"obj_name": one.name, "msg": str(one.error), "ecode": 500} for one in failures]
    return json_response(answer)


def change(request: AisRequest) -> Response:
    """Answer `/v1/etl/NAME/start` and `stop`. Raises AISError."""
    calls = {"start": request.client.etl.start, "stop": request.client.etl.stop}
    if len(request.rest) != 2 or request.rest[1] not in calls:
        raise AISError(400, "need /v1/etl/NAME/start or stop")
    _named(request, calls[request.rest[1]])
    return Response()


def delete(request: AisRequest) -> Response:
    """Answer a request to delete a transform. Raises AISError."""
    _named(request, request.client.etl.delete)
    return Response()


# -- objects


def transformed(request: AisRequest) -> Response:
    """Answer `GET ?etl_name=`. Raises Refusal."""
    bucket = request.open_bucket()
    data = _running(lambda: bucket.get(request.name, etl=stages(request)), request)
    return Response(headers={"content-type": "application/octet-stream"}, body=data)


def copy_transformed(request: AisRequest) -> Response:
    """Answer `PUT ?object_to=&etl_name=`. Raises Refusal."""
    provider, name, key = uname(request.query.get("object_to", ""))
    request.named_bucket(name, provider, must_exist=True)
    bucket, to = request.open_bucket(), name_of(key or request.key)
    _running(lambda: bucket.copy(request.name, to, to_bucket=name, etl=stages(request)), request)
    return Response()


def stages(request: AisRequest) -> Etl:
    """Return the transforms that a query names. Raises AISError."""
    names = [request.query["etl_name"], *filter(None, request.query.get("etl_pipeline", "").split(","))]
    first = Stage(names[0], _args(request.query.get("etl_args", "")))
    return Pipeline((first, *map(Stage, names[1:]))) if len(names) > 1 else first


def _args(text: str) -> dict[str, Any] | None:
    if not text:
        return None
    try:
        args = json.loads(text)
    except (ValueError, RecursionError):
        args = None
    return args if isinstance(args, dict) and "etl_args" not in args else {"etl_args": text}


def _running(call: Callable[[], Any], request: AisRequest) -> Any:
    try:
        return call()
    except errors.TransformNotFound:
        raise AISError(404, f"etl job {request.query['etl_name']} does not exist", "ErrETLNotFound") from None


# -- jobs


def transform_bucket(request: AisRequest) -> Response:
    """Answer `etl-bck`. Raises Refusal."""
    provider, name, _ = uname(request.query.get("bck_to", ""))
    return _job(request, ETL_BUCKET, name, provider, None)


def transform_objects(request: AisRequest) -> Response:
    """Answer `etl-listrange`. Raises Refusal."""
    chosen = selection(request)
    names = None if chosen.names is None else list(chosen.names())
    return _job(request, ETL_OBJECTS, *target_named(request), names, chosen.prefix)


def _job(
    request: AisRequest, kind: str, name: str, provider: str, names: list[str] | None, prefix: str = ""
) -> Response:
    """Start a job of the store. A dry run transforms all objects, and stores nothing."""
    value, copying = request.value, Copying.of(request)
    if copying.synchronizes:
        raise unsupported("synchronize with a transform")
    source = request.named_bucket(request.bucket, request.provider, must_exist=True)
    etl = value.get("id")
    pipeline = value.get("pipeline") or []
    if not isinstance(etl, str) or not isinstance(pipeline, list):
        raise AISError(400, "id and pipeline: need names of etl jobs")
    workers = value.get("num-workers") or 0
    target: Bucket = places(request, name, provider, create=not copying.is_dry)
    try:
        job = source.transform(
            target.name,
            etl=Pipeline(tuple(Stage(one) for one in (etl, *pipeline))),
            prefix=prefix or copying.prefix,
            names=names,
            rename=copying.extensions,
            to_prefix=copying.prepend,
            inspect=copying.is_dry,
            continue_on_error=copying.goes_on,
            concurrency=workers if isinstance(workers, int) and workers > 0 else 0,
            name=new_store_job(request, kind),
            wait=False,
        )
    except errors.TransformNotFound:
        raise AISError(404, f"etl job {etl} does not exist", "ErrETLNotFound") from None
    return text_response(job.name)
