"""Promotion: files on the store's machines become objects, and are not sent over the network."""

from __future__ import annotations

import posixpath

from ais_loader import errors
from ais_loader.values.promote import PromoteResult
from ais_loader.values.urls import is_remote

from ..request import Response, check_prefix
from .jobs import JobOutcome, Stopping, answer_when_done
from .request import AISError, AisRequest, unsupported


def promote(request: AisRequest) -> Response:
    """Answer `promote`. Nodes promote only from the folders that their operator has named. Raises Refusal."""
    value = request.value
    source = value.get("src") or request.json.get("name")
    to = value.get("obj") or ""
    if not isinstance(source, str) or not source.startswith("/") or not isinstance(to, str):
        raise AISError(400, "need the absolute path of a file or folder, and the name of an object or a prefix")
    if not is_remote(request.client.url):
        # Any client of an embedded store may read this machine's files as the gateway's user. Those of HTTP may not.
        raise unsupported("promotion into a store without nodes")
    bucket = request.named_bucket(request.bucket, request.provider, must_exist=True)
    file = posixpath.basename(source.rstrip("/"))

    def action(stopping: Stopping) -> JobOutcome:
        done, size_bytes = 0, 0
        failure: errors.LoaderError | None = None
        made: list[PromoteResult] = []
        for result in bucket.iter_promote(
            source,
            exclude=() if value.get("rcr") else "*/*",  # as in AIStore, a folder without those in it
            prefix=check_prefix(to),
            move=bool(value.get("dls")),
            shared=False if value.get("notshr") else "auto",
            overwrite="changed" if value.get("ovw") else "never",
        ):
            stopping.check()
            failure = failure or result.error
            made = [*made, result][:2]
            if result.info is not None:
                done, size_bytes = done + 1, size_bytes + result.info.size_bytes
        if to and not to.endswith("/") and [one.name for one in made] == [to + file]:
            # A single file becomes the object that is named, not one below this prefix.
            bucket.rename(to + file, to)
        return JobOutcome.of(done, size_bytes, failure)

    return answer_when_done(request.recent_jobs, request.action, action)
