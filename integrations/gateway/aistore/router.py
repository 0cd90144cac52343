"""Router: which call of AIStore's API a request is. A call is a line of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ..bodies import MAX_BYTES
from ..request import Response, decoded
from . import (
    append,
    archives,
    batch,
    buckets,
    cluster,
    copies,
    etl,
    groups,
    jobs,
    listing,
    multipart,
    objects,
    promote,
)
from .request import AISError, AisRequest, unsupported

_MESSAGE_BYTES = 8 << 20
Answer = Callable[[AisRequest], Response]


@dataclass(frozen=True, slots=True)
class AisCall:
    """A call of the API. The first in the table that fits a request answers it."""

    method: str
    """"*" for any."""
    place: str
    """The path below /v1/: `B` is a bucket, `O` all that follows as the name of an object, `*` all that follows."""
    answer: Answer
    action: str = ""
    """The action in the body that selects the call; "" for none."""
    having: str = ""
    """The parameter that selects it: `NAME`, or `NAME=VALUE`."""
    body: Literal["", "json", "bytes"] = ""
    """Kind of its body. A call with an action takes JSON."""
    most_bytes: int = 0
    """Largest body; 0 for the limit of its kind."""
    is_batch: bool = False
    """Whether the answer has many objects."""
    at_once: Callable[[AisRequest], Response | None] = lambda _: None
    """Answers on the event loop, where nothing has to be waited for."""

    @property
    def takes_json(self) -> bool:
        return self.body == "json" or bool(self.action)

    @property
    def name(self) -> str:
        """A name for metrics and logs."""
        return " ".join(part for part in (self.method, self.place, self.action, self.having) if part)

    @property
    def limit_bytes(self) -> int:
        if self.most_bytes:
            return self.most_bytes
        return MAX_BYTES if self.body == "bytes" else _MESSAGE_BYTES if self.takes_json else 0


def _refused(what: str) -> Answer:
    def refuse(_: AisRequest) -> Response:
        raise unsupported(what)

    return refuse


CALLS: tuple[AisCall, ...] = (
    # -- cluster
    AisCall("GET", "health", cluster.health),
    AisCall("HEAD", "health", cluster.health),
    AisCall("GET", "daemon", cluster.smap, having="what=smap"),
    AisCall("GET", "daemon", cluster.bucket_metadata, having="what=bmd"),
    AisCall("GET", "cluster", cluster.smap, having="what=smap"),
    AisCall("GET", "cluster", cluster.cluster_config, having="what=cluster_config"),
    AisCall("GET", "cluster", cluster.none, having="what=backends"),
    AisCall("GET", "cluster", cluster.remote_clusters, having="what=remote"),
    AisCall("GET", "reverse/daemon", cluster.node_status, having="what=node_status"),
    AisCall("GET", "reverse/daemon", cluster.node_log, having="what=log"),
    AisCall("GET", "reverse/daemon", cluster.metric_names, having="what=metrics"),
    AisCall("GET", "reverse/daemon", cluster.mountpaths, having="what=mountpaths"),
    AisCall("GET", "reverse/daemon", cluster.disks, having="what=disk"),
    # -- batches
    AisCall("GET", "ml/moss", batch.get_batch, body="json", most_bytes=batch.MAX_BODY_BYTES, is_batch=True),
    AisCall("GET", "ml/moss/B", batch.get_batch, body="json", most_bytes=batch.MAX_BODY_BYTES, is_batch=True),
    # -- many objects
    AisCall("DELETE", "buckets/B", groups.delete_objects, action="delete-listrange"),
    AisCall("DELETE", "buckets/B", groups.evict_objects, action="evict-listrange"),
    AisCall("DELETE", "buckets/B", groups.evict_bucket, action="evict-remote-bck"),
    AisCall("POST", "buckets/B", groups.copy_objects, action="copy-listrange"),
    AisCall("POST", "buckets/B", groups.prefetch_objects, action="prefetch-listrange"),
    AisCall("POST", "buckets/B", copies.copy_bucket, action="copy-bck"),
    AisCall("POST", "buckets/B", copies.move_bucket, action="move-bck"),
    AisCall("POST", "buckets/B", etl.transform_bucket, action="etl-bck"),
    AisCall("POST", "buckets/B", etl.transform_objects, action="etl-listrange"),
    AisCall("PUT", "buckets/B", archives.archive_objects, action="archive"),
    AisCall("POST", "objects/B", promote.promote, action="promote"),
    # -- one object
    AisCall("GET", "objects/B/O", etl.transformed, having="etl_name"),
    AisCall("PUT", "objects/B/O", etl.copy_transformed, having="etl_name"),
    AisCall("PUT", "objects/B/O", copies.copy_object, having="object_to"),
    AisCall("POST", "objects/B/O", copies.rename_object, action="rename-obj"),
    AisCall("POST", "objects/B/O", promote.promote, action="promote"),
    # -- jobs
    AisCall("GET", "cluster", jobs.status, having="what=status", body="json"),
    AisCall("GET", "cluster", jobs.snapshots, having="what=qryxstats", body="json"),
    AisCall("GET", "cluster", jobs.statuses, having="what=status_all", body="json"),
    AisCall("GET", "cluster", jobs.running, having="what=running_all", body="json"),
    AisCall("PUT", "cluster", jobs.start, action="start"),
    AisCall("PUT", "cluster", jobs.stop, action="stop"),
    AisCall("GET", "download", cluster.none, body="json"),
    AisCall("GET", "sort", cluster.none),
    # -- transforms
    AisCall("GET", "etl", etl.list_all),
    AisCall("PUT", "etl", etl.init, body="json", most_bytes=etl.MAX_INIT_BYTES),
    AisCall("GET", "etl/*", etl.about_one),
    AisCall("POST", "etl/*", etl.change),
    AisCall("DELETE", "etl/*", etl.delete),
    # -- buckets
    AisCall("GET", "buckets", buckets.list_buckets, action="list"),
    AisCall("GET", "buckets", buckets.list_buckets, body="json"),
    AisCall("GET", "buckets", buckets.summaries, action="summary-bck"),
    AisCall("GET", "buckets/B", listing.list_objects, action="list"),
    AisCall("GET", "buckets/B", buckets.summary, action="summary-bck"),
    AisCall("POST", "buckets/B", buckets.create, action="create-bck"),
    AisCall("DELETE", "buckets/B", buckets.destroy, action="destroy-bck"),
    AisCall("HEAD", "buckets/B", buckets.head),
    AisCall("HEAD", "buckets/B/O", buckets.head, having="bsumm_remote"),
    AisCall("PATCH", "buckets/B", buckets.set_props, action="set-bprops"),
    # -- objects
    AisCall("PUT", "objects/B/O", multipart.put_part, having="partNumber", body="bytes"),
    AisCall("PUT", "objects/B/O", append.append, having="append_type", body="bytes"),
    AisCall("PUT", "objects/B/O", _refused("adding a member to an archive"), having="archpath", body="bytes"),
    AisCall("PUT", "objects/B/O", objects.put, body="bytes"),
    AisCall("GET", "objects/B/O", objects.get, at_once=objects.get_cached),
    AisCall("HEAD", "objects/B/O", objects.head),
    AisCall("DELETE", "objects/B/O", multipart.abort, having="uploadId", body="json"),
    AisCall("DELETE", "objects/B/O", objects.delete, body="json"),
    AisCall("PATCH", "objects/B/O", objects.set_custom, body="json"),
    AisCall("POST", "objects/B/O", multipart.complete, action="mpt-complete"),
    AisCall("POST", "objects/B/O", multipart.begin, action="mpt-upload"),
    # -- not here
    AisCall("*", "download/*", _refused("download")),
    AisCall("*", "sort/*", _refused("dsort")),
    AisCall("*", "authn/*", _refused("authn")),
    AisCall("*", "cluster/*", _refused("changing the cluster")),
)
"""All calls. Calls of one method and place stand together, those that are selected before those that are not."""


@dataclass(frozen=True, slots=True)
class Route:
    """The calls that a request may be, before its body is known, and what its path names."""

    calls: tuple[AisCall, ...]
    bucket: str = ""
    key: str = ""
    rest: tuple[str, ...] = ()

    @property
    def body(self) -> Literal["", "json", "bytes"]:
        """Kind of the body."""
        return "json" if any(call.takes_json for call in self.calls) else self.calls[0].body

    @property
    def limit_bytes(self) -> int:
        return max(call.limit_bytes for call in self.calls)

    def choose(self, action: str) -> AisCall:
        """Return the call for the action in the body. Raises AISError for an unknown action."""
        for call in self.calls:
            if call.action == action or (not call.action and len(self.calls) == 1):
                return call
        if not action:
            raise AISError(400, "the body with the action is missing")
        if action in _UNSUPPORTED_ACTIONS:
            raise unsupported(f'action "{action}"')
        raise AISError(400, f'unknown action "{action[:80]}"', "ErrUnknownAction")


_UNSUPPORTED_ACTIONS = frozenset(
    (
        *("attach", "detach", "blob-download", "cleanup-mpt", "cleanup-store", "create-inventory", "decommission-node"),
        *("ec-encode", "ec-get", "ec-put", "ec-resp", "elect-primary", "index-shard", "invalidate-listobj-cache"),
        *("lso-inv", "make-n-copies", "mirror", "mountpath-add", "put-copies", "rebalance", "recover-bck"),
        *("reset-bprops", "reset-config", "reset-stats", "resilver", "set-config", "shutdown-node", "rotate-logs"),
        *(
            "show-inventory",
            "start-maintenance",
            "stop-maintenance",
            "store-cleanup",
            "warm-up-metadata",
            "load-lom-cache",
        ),
    )
)
"""Actions of AIStore that have no meaning here."""


_NAMED = {"B": "bucket", "O": "key", "*": "rest"}


def route(method: str, path: str, query: Mapping[str, str]) -> Route:
    """Return the calls that fit a request, by its path below /v1/ as it was sent. Raises AISError."""
    found: list[AisCall] = []
    named: dict[str, str] = {}
    methods: set[str] = set()
    for call in CALLS:
        names = _match(call.place, path)
        if names is None:
            continue
        methods.add(call.method)
        if call.method in ("*", method) and _has(query, call.having):
            found.append(call)
            named = named or names
    if not found:
        if _is_incomplete(method, path):
            raise AISError(400, f"the path /v1/{path[:200]} lacks the name of a bucket or object")
        if not methods:
            raise AISError(400, f"invalid path /v1/{path[:200]}", "ErrInvalidURL")
        if method not in methods:
            allowed = ", ".join(sorted(methods))
            raise AISError(405, f"method {method[:20]} is not allowed; need {allowed}", headers={"allow": allowed})
        selected = ", ".join(f"{name}={value[:40]}" for name, value in sorted(query.items()))
        raise unsupported(f"{method} /v1/{path[:200]} with {selected or 'no parameters'}")
    # Without an action, the first that the parameters select is the call, unless others need the body to be chosen.
    if not found[0].action:
        found = found[:1]
    rest = named.get("rest", "")
    return Route(
        tuple(found),
        decoded(named.get("bucket", "")),
        decoded(named.get("key", "")),
        tuple(decoded(part) for part in rest.split("/")) if rest else (),
    )


def _is_incomplete(method: str, path: str) -> bool:
    """Whether more names would make the path that of a call."""
    known = "/".join(part for part in path.split("/") if part)
    longer = [f"{known}/B".lstrip("/"), f"{known}/B/O".lstrip("/")]
    return any(call.method == method and _match(call.place, one) for call in CALLS for one in longer)


def _has(query: Mapping[str, str], having: str) -> bool:
    name, equals, value = having.partition("=")
    return not name or (query.get(name) == value if equals else name in query)


def _match(place: str, path: str) -> dict[str, str] | None:
    """Return what a path names, as it was sent, if it is at a place; otherwise None."""
    names = place.split("/")
    if names[-1] != "O":  # the name of an object may end with a slash
        path = path.rstrip("/")
    parts = path.split("/", len(names) - 1)
    if names[-1] == "*" and len(parts) == len(names) - 1:
        parts.append("")
    if len(parts) != len(names) or (names[-1] not in "O*" and "/" in parts[-1]):
        return None
    named: dict[str, str] = {}
    for name, part in zip(names, parts, strict=True):
        if kind := _NAMED.get(name):
            named[kind] = part
        elif name != part:
            return None
    return None if named.get("key") == "" else named
