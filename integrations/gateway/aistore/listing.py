"""Listing of a bucket's objects, page by page, as MessagePack or JSON. A page follows a name: nothing is kept."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from typing import Any

from ais_loader.errors import ArchiveError, NotFound
from ais_loader.extras import needs
from ais_loader.objects.bucket import Bucket
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.urls import ARCHIVE_EXTENSIONS, split_member

from ..listing import page
from ..request import Response, key_of
from . import attributes
from .request import AISError, AisRequest, json_response, props_named, text_of

with needs("msgpack", "ais-loader gateway"):
    import msgpack

MSGPACK = "application/msgpack"
_PAGE, _MAX_PAGE = 10_000, 100_000
_CACHED, _ARCHIVES, _NAMES, _SIZES, _NOT_CACHED, _FLAT = 1, 8, 16, 32, 512, 2048
_PRESENT, _MEMBER, _DIR, _ARCHIVE = 64, 128, 256, 512
"""Flags of entries."""
_PROPS = frozenset(
    (
        *("name", "size", "checksum", "atime", "version", "cached", "status", "copies", "ec", "custom", "location"),
        *("target_url", "node", "location", "chunked"),
    )
)
_IN_JSON = {
    "n": "name",
    "s": "size",
    "cs": "checksum",
    "a": "atime",
    "v": "version",
    "t": "location",
    "m": "custom-md",
    "c": "copies",
    "f": "flags",
}
_TOKEN_MARK = "\0"
"""Separates an archive and its member in the token of a page that ends within the archive."""


def list_objects(request: AisRequest) -> Response:
    """Answer with a page of a bucket's objects. Raises AISError."""
    asked = _Asked(request.value)
    bucket = request.open_bucket()
    if asked.prefix.startswith("/"):  # names that begin so are the store's own
        bucket.info()
    copies = bucket.info().copies if "copies" in asked.props else 0
    rows = list(itertools.islice(_rows(bucket, asked), asked.most + 1))
    is_last = len(rows) <= asked.most
    rows = rows[: asked.most]
    entries = [_entry(row, asked, copies) for row in rows]
    token = "" if is_last or not rows else rows[-1].token
    job = asked.uuid or uuid.uuid4().hex[:12]
    if MSGPACK in request.headers.get("accept", ""):
        body = msgpack.packb({"UUID": job, "ContinuationToken": token, "Entries": entries, "Flags": 0})
        return Response(200, {"content-type": MSGPACK}, body)
    shown = [{_IN_JSON[key]: str(value) if key == "s" else value for key, value in one.items()} for one in entries]
    return json_response({"uuid": job, "continuation_token": token, "entries": shown, "flags": 0})


class _Asked:
    """Arguments of a listing, read from the message of a request."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.prefix = text_of(value, "prefix")
        self.uuid = text_of(value, "uuid")[:80]
        self.token = text_of(value, "continuation_token")
        self.after = self.token or text_of(value, "start_after")
        size = value.get("pagesize") or 0
        if isinstance(size, str) and size.isascii() and size.isdigit():
            size = int(size)
        if type(size) is not int or size < 0:
            raise AISError(400, "pagesize: need a whole number")
        self.most = min(size or _PAGE, _MAX_PAGE)
        text = value.get("flags") or "0"
        if not isinstance(text, str) or not (text.isascii() and text.isdigit() and len(text) < 20):
            raise AISError(400, "flags: need a whole number as a string")
        self.flags = int(text)
        self.props = props_named(text_of(value, "props"), _PROPS) or frozenset(("name", "size"))
        if self.flags & _NAMES:
            self.props = frozenset(("name",))
        elif self.flags & _SIZES:
            self.props = frozenset(("name", "size"))


class _Row:
    """An object, the member of an archive, or a folder."""

    __slots__ = ("flags", "info", "name", "size_bytes", "token")

    def __init__(self, name: str, flags: int, size_bytes: int = 0, info: ObjectInfo | None = None, token: str = ""):
        self.name, self.flags, self.size_bytes, self.info = name, flags, size_bytes, info
        self.token = token or name


def _rows(bucket: Bucket, asked: _Asked) -> Iterator[_Row]:
    after, mark, after_member = asked.after.partition(_TOKEN_MARK)
    expands = bool(asked.flags & _ARCHIVES)
    if mark and expands:
        yield from _members(bucket, after, _member_prefix(asked.prefix, after), after_member)
    elif expands and not asked.after:
        shard, member = split_member(asked.prefix)
        if member is not None:
            yield from _members(bucket, shard, member, "")
    delimiter = "/" if asked.flags & _FLAT else ""
    while True:
        found = page(bucket, asked.prefix, delimiter, after, min(asked.most + 1, 1000))
        folders = [_Row(prefix, _DIR) for prefix in found.prefixes]
        objects = [_Row(key_of(info.name), _PRESENT * info.is_stored, info.size_bytes, info) for info in found.objects]
        for row in sorted(objects + folders, key=lambda row: row.name) if folders else objects:
            info = row.info
            if info is not None:
                if asked.flags & (_NOT_CACHED if info.is_stored else _CACHED):
                    continue
                if expands and row.name.lower().endswith(ARCHIVE_EXTENSIONS):
                    inner = list(_members(bucket, row.name, _member_prefix(asked.prefix, row.name), ""))
                    if inner:
                        row.flags |= _ARCHIVE
                        row.token += _TOKEN_MARK
                    yield row
                    yield from inner
                    continue
            yield row
        if not found.is_truncated:
            return
        after = found.last


def _member_prefix(prefix: str, shard: str) -> str:
    return prefix[len(shard) + 1 :] if prefix.startswith(f"{shard}/") else ""


def _members(bucket: Bucket, shard: str, prefix: str, after: str) -> Iterator[_Row]:
    """Yield the members of an archive, sorted by name; none if the object is not an archive."""
    try:
        found = sorted((one.name, one.size_bytes) for one in bucket.members(shard, prefix) if one.name > after)
    except (ArchiveError, NotFound):
        return
    for name, size_bytes in found:
        yield _Row(f"{shard}/{name}", _PRESENT | _MEMBER, size_bytes, token=f"{shard}{_TOKEN_MARK}{name}")


def _entry(row: _Row, asked: _Asked, copies: int) -> dict[str, Any]:
    entry: dict[str, Any] = {"n": row.name}
    if row.flags:
        entry["f"] = row.flags
    props, info = asked.props, row.info
    if "size" in props and row.size_bytes:
        entry["s"] = row.size_bytes
    if info is None:
        return entry
    if "checksum" in props and info.is_stored:
        entry["cs"] = f"{info.checksum:08x}"
    if "atime" in props:
        entry["a"] = attributes.time_text(info.modified_ns)
    if "version" in props:
        entry["v"] = attributes.version_of(info)
    if "location" in props:
        entry["t"] = attributes.LOCATION
    if "custom" in props and (text := attributes.custom_text(info)):
        entry["m"] = text
    if copies:
        entry["c"] = copies
    return entry
