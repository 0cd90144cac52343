"""Members of archives: one of them, or all that match, packed again as a tar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ais_loader.errors import MemberNotFound
from ais_loader.extras import needs
from ais_loader.objects.archive import BatchArchive
from ais_loader.values.entry import Item

from ..reading import Reading, begun
from ..request import Response
from .request import AISError, AisRequest

_MAX_PATTERN = 1000
_MODES = ("regexp", "prefix", "suffix", "substr", "wdskey")


def get_member(request: AisRequest) -> Response:
    """Read one member of an archive. Raises AISError."""
    if "range" in request.headers:
        raise AISError(400, f"{request.url}: a range of an archive's member is not supported", "ErrUnsupp")
    path = request.query["archpath"].lstrip("/")
    bucket = request.open_bucket()
    try:
        reading = Reading.of(bucket, request.name, path)
    except MemberNotFound:
        raise AISError(404, f"{path[:200]} in {request.url} does not exist", "ErrNotFound") from None
    size_bytes = reading.info.size_bytes
    return Response(200, {"content-type": "application/octet-stream"}, reading.body(0, size_bytes), size_bytes)


def get_matching(request: AisRequest) -> Response:
    """Read the members of an archive that match, as a tar, in the order of the archive. Raises AISError."""
    if "range" in request.headers:
        raise AISError(400, f"{request.url}: a range of an archive's members is not supported", "ErrUnsupp")
    matches = _matcher(request.query.get("archregx", ""), request.query.get("archmode", ""))
    bucket = request.open_bucket()
    found = [member for member in bucket.members(request.name) if matches(member.name)]
    if not found:
        raise AISError(404, f"a member that matches does not exist in {request.url}", "ErrNotFound")
    entries = [replace(member.entry(), bucket=request.bucket) for member in found]
    chunks = begun(_Matching(request.client.get_batch(entries), "tar"))
    return Response(200, {"content-type": "application/x-tar"}, chunks)


def _matcher(pattern: str, mode: str) -> Callable[[str], bool]:
    mode = mode or "prefix"
    if mode not in _MODES:
        raise AISError(400, f"invalid archmode {mode[:40]!r}: need one of {', '.join(_MODES)}")
    if not pattern:
        return lambda name: True
    if mode == "regexp":
        if len(pattern) > _MAX_PATTERN:
            raise AISError(400, "archregx: the expression is too long")
        return _searched(_expression(pattern))
    if mode == "wdskey":
        return lambda name: _key_of(name) == pattern
    tests: dict[str, Callable[[str], bool]] = {
        "prefix": lambda name: name.startswith(pattern),
        "suffix": lambda name: name.endswith(pattern),
        "substr": lambda name: pattern in name,
    }
    return tests[mode]


def _expression(pattern: str) -> Any:
    """Compile a regular expression, in the syntax of AIStore's own library. Raises AISError.

    Its time is linear in the name. Python's own would hold the whole process for as long as the client likes.
    """
    with needs("re2", "archmode=regexp"):
        import re2
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise AISError(400, f"archregx: {_text(error)}") from None


def _text(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


def _searched(expression: Any) -> Callable[[str], bool]:
    return lambda name: expression.search(name.encode("utf-8", "replace")) is not None


def _key_of(name: str) -> str:
    """Return the key of a sample as WebDataset has it: the name up to the first dot after the last slash."""
    folder, slash, base = name.rpartition("/")
    return folder + slash + base.partition(".")[0]


class _Matching(BatchArchive):
    """Members of one archive, by the names that they have in it."""

    def name_of(self, item: Item, size_bytes: int) -> str:
        return item.entry.member or ""
