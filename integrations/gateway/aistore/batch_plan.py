"""Plan of a GetBatch: what a request asks for, as entries of a batch of the store."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

from ais_loader.objects.archive import ArchiveFormat, ArchiveNames
from ais_loader.values.entry import Entry

from ..request import name_of
from .request import AISError, check_bucket_name, flag_of, provider_named, text_of

MAX_ENTRIES = 100_000
_FORMATS: dict[str, tuple[ArchiveFormat, str]] = {
    **dict.fromkeys(("", "tar", ".tar", "application/x-tar"), ("tar", "application/x-tar")),
    **dict.fromkeys((".tgz", ".tar.gz"), ("tar.gz", "application/gzip")),
    ".tar.lz4": ("tar.lz4", "application/x-lz4"),
    ".zip": ("zip", "application/zip"),
}
"""Formats of archives and their content types, by the names that clients give. Case matters, as in AIStore."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Parts of an entry as the client gave them, which the answer repeats. It is the `opaque` of the store's entry."""

    url: str
    """The bucket, such as `ais://BUCKET`."""
    provider: str
    name: str
    member: str
    opaque: str | None


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A valid request for a batch."""

    entries: list[Entry]
    """Entries of the store, in the order of the request. The `opaque` of each is an Asked."""
    buckets: list[tuple[str, str]]
    """The buckets that they name, each once: provider and name."""
    archive: ArchiveFormat
    content_type: str
    names: ArchiveNames
    is_streamed: bool
    """Whether the archive is the whole answer. Otherwise, the answer begins with a document about its entries."""
    goes_on: bool
    """Whether an entry that cannot be had becomes a placeholder. Otherwise it ends the batch."""


def batch_plan(message: Any, bucket: str, provider: str, coloc: str = "") -> BatchPlan:
    """Read the message of a request.

    Args:
        bucket: The bucket of entries that name none; "" if there is none.
        provider: The provider of that bucket.
        coloc: The hint in the query. It must be valid, and changes nothing.

    Raises Refusal.
    """
    if not isinstance(message, dict):
        raise AISError(400, "the body must be an object")
    rows = message.get("in")
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_ENTRIES:
        raise AISError(400, f"in: need a list of 1 to {MAX_ENTRIES:,} entries")
    if coloc not in ("", "0", "1", "2") or message.get("coloc") not in (None, 0, 1, 2):
        raise AISError(400, "coloc: need 0, 1 or 2")
    mime = text_of(message, "mime")
    if mime not in _FORMATS:
        raise AISError(400, f"mime {mime[:40]!r}: need .tar, .tgz, .tar.gz, .tar.lz4 or .zip")
    archive, content_type = _FORMATS[mime]
    buckets: dict[tuple[str, str], None] = {}
    entries = []
    for at, row in enumerate(rows):
        entry, place = _entry(at, row, bucket, provider)
        buckets[place] = None
        entries.append(entry)
    for _, name in buckets:
        check_bucket_name(name)
    return BatchPlan(
        entries,
        list(buckets),
        archive,
        content_type,
        "object" if flag_of(message, "onob") else "bucket",
        flag_of(message, "strm"),
        flag_of(message, "coer"),
    )


def _entry(at: int, row: Any, bucket: str, provider: str) -> tuple[Entry, tuple[str, str]]:
    """Return an entry, and the provider and name of its bucket."""
    where = f"entry {at}"
    if not isinstance(row, dict):
        raise AISError(400, f"{where}: need an object")
    name = text_of(row, "objname", f"{where}: ")
    if not name:
        raise AISError(400, f"{where}: objname: need a name")
    own = text_of(row, "bucket", f"{where}: ")
    if own:
        bucket, provider = own, provider_named({"provider": text_of(row, "provider", f"{where}: ")})
    if not bucket:
        raise AISError(400, f"{where}: need a bucket, here or in the path")
    member = text_of(row, "archpath", f"{where}: ")
    opaque = text_of(row, "opaque", f"{where}: ") or None
    if opaque is not None:
        try:
            base64.b64decode(opaque.encode(), validate=True)
        except (binascii.Error, ValueError):
            raise AISError(400, f"{where}: opaque: need base64") from None
    start, length = _range(row, where)
    asked = Asked(f"{provider}://{bucket}", provider, name, member, opaque)
    # Members have their names without a slash at the beginning, in the store and in the answer.
    entry = Entry(bucket, name_of(name), member.lstrip("/") or None, start, length, opaque=asked)
    return entry, (provider, bucket)


def _range(row: dict[str, Any], where: str) -> tuple[int, int | None]:
    start, length = row.get("start") or 0, row.get("length") or 0
    for value in (start, length):
        if type(value) is not int or not -1 <= value < 1 << 63:
            raise AISError(400, f"{where}: start and length: need whole numbers")
    if start < 0:
        raise AISError(400, f"{where}: start must not be negative")
    if start and not length:
        raise AISError(400, f"{where}: a start needs a length; -1 is the rest")
    return start, length if length > 0 else None
