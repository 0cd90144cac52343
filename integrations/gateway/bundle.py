"""Bundle: many objects, ranges and members of archives with one request, as one tar in the order of the request."""

from __future__ import annotations

from ais_loader.values.entry import Entry
from ais_loader.values.urls import split_member

from .errors import S3Error
from .names import name_of
from .parsing import parse_json
from .reading import begun
from .request import Request, Response

MAX_ENTRIES = 10_000
MAX_BODY_BYTES = 16 << 20
_FIELDS = {"key", "member", "start", "length"}


def bundle(request: Request) -> Response:
    """Answer `POST /BUCKET?bundle`. Raises S3Error.

    The body is a JSON list of keys, and of objects with `key` and optionally `member`, `start` and `length`. Members of
    the tar have the names of the entries. An entry that cannot be had is an empty member below `__404__/`.
    """
    assert request.body is not None
    try:
        rows = parse_json(request.body.read())
    except ValueError:
        raise S3Error("InvalidArgument", "the body is not JSON") from None
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_ENTRIES:
        raise S3Error("InvalidArgument", f"the body must be a list of 1 to {MAX_ENTRIES:,} entries")
    entries = [_entry(request, at, row) for at, row in enumerate(rows)]
    request.client.bucket(request.bucket).info()
    archive = request.client.get_batch(entries, archive="tar", archive_names="object", on_error="placeholder")
    return Response(headers={"content-type": "application/x-tar"}, body=begun(archive))


def _entry(request: Request, at: int, row: object) -> Entry:
    if isinstance(row, str):
        row = {"key": row}
    if not isinstance(row, dict) or row.keys() - _FIELDS or not isinstance(row.get("key"), str):
        raise S3Error("InvalidArgument", f"entry {at}: need a key, or an object with {', '.join(sorted(_FIELDS))}")
    key, member = row["key"], row.get("member")
    if member is None and request.with_members:
        key, member = split_member(key)
    if member is not None and not (isinstance(member, str) and member):
        raise S3Error("InvalidArgument", f"entry {at}: member: need a name")
    start, length = row.get("start", 0), row.get("length")
    for value in (start, 0 if length is None else length):
        if type(value) is not int or not 0 <= value < 1 << 63:
            raise S3Error("InvalidArgument", f"entry {at}: start and length: need whole numbers")
    return Entry(request.bucket, name_of(key), member, start, length)
