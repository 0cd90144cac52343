"""Archives: an action packs a group of objects into one, or appends them; a request adds one member to a tar."""

from __future__ import annotations

import io
import itertools
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile

from ais_loader import errors
from ais_loader.objects.archive import ArchiveFormat, ArchiveNames
from ais_loader.objects.bucket import Bucket
from ais_loader.values.entry import Entry

from ..names import name_of
from ..request import Response
from ..spool import IN_MEMORY_BYTES
from . import attributes
from .copies import places
from .errors import AISError, unsupported
from .groups import Selection, selection
from .jobs import JobOutcome, Stopping, answer_when_done
from .request import AisRequest

_GROUP = 1000
_APPENDED_BYTES = 64 << 20
"""Members that are appended together. They are held in memory."""
_FORMATS: dict[str, ArchiveFormat] = {
    **dict.fromkeys((".tar", "tar", "application/x-tar"), "tar"),
    **dict.fromkeys((".tgz", ".tar.gz"), "tar.gz"),
    ".tar.lz4": "tar.lz4",
    ".zip": "zip",
}


@dataclass(frozen=True, slots=True)
class _Archiving:
    """An archive that is to be made of objects."""

    source: Bucket
    """The bucket of the objects."""
    to: Bucket
    name: str
    """The archive's name in `to`."""
    format: ArchiveFormat
    names: ArchiveNames
    """Whether the members' names begin with the bucket."""
    spool: str | None
    """Folder of the temporary file; None for that of the system."""

    def make(self, entries: Iterable[Entry]) -> JobOutcome:
        """Make the archive. Raises ObjectNotFound if there are no entries."""
        found = list(entries)
        if not found:
            raise errors.ObjectNotFound(f"{self.source.name}: none of the objects exists")
        with SpooledTemporaryFile(IN_MEMORY_BYTES, dir=self.spool) as file:
            batch = self.source.client.get_batch(found, archive=self.format, archive_names=self.names)
            batch.write_to(file)
            file.seek(0)
            made = self.to.put(self.name, file)
        return JobOutcome(len(found), made.size_bytes)

    def append(self, entries: Iterator[Entry]) -> JobOutcome:
        """Append the entries to the archive, which is a tar."""
        members: list[tuple[str, bytes]] = []
        done, size_bytes, held = 0, 0, 0
        while group := list(itertools.islice(entries, _GROUP)):
            for item in self.source.client.get_batch(group):
                member = item.entry.name if self.names == "object" else f"{self.source.name}/{item.entry.name}"
                members.append((member, item.tobytes()))
                done, size_bytes, held = done + 1, size_bytes + len(item.data), held + len(item.data)
                if held >= _APPENDED_BYTES:
                    self.to.append_members(self.name, members)
                    members, held = [], 0
        if members:
            self.to.append_members(self.name, members)
        return JobOutcome(done, size_bytes)


def archive_objects(request: AisRequest) -> Response:
    """Answer `archive`: make an archive of objects, or append them to a tar. Raises Refusal."""
    value = request.value
    source = request.named_bucket(request.bucket, request.provider, must_exist=True)
    chosen = selection(request)
    name = value.get("archname")
    if not isinstance(name, str) or not name:
        raise AISError(400, "archname: need the name of the archive")
    target = value.get("tobck") or {}
    if not isinstance(target, dict) or not isinstance(target.get("name", ""), str):
        raise AISError(400, "tobck: need a bucket")
    to = source
    if target.get("name"):
        to = places(request, target["name"], target.get("provider") or "", create=True)
    made = _Archiving(
        source, to, name_of(name), _format(value.get("mime") or "", name), _names(value.get("isbn")), request.spool
    )
    appends = bool(value.get("aate")) and to.exists(made.name)
    if appends and made.format != "tar":
        raise unsupported(f"appending to {made.format}")
    skips = bool(value.get("coer")) or not chosen.is_list

    def action(stopping: Stopping) -> JobOutcome:
        found = _found(source, chosen, stopping, skips=skips)
        return made.append(found) if appends else made.make(found)

    return answer_when_done(request.recent_jobs, request.action, action)


def _format(mime: object, name: str) -> ArchiveFormat:
    if isinstance(mime, str) and mime:
        if mime not in _FORMATS:
            raise AISError(400, f"mime {mime[:40]!r}: need .tar, .tgz, .tar.gz, .tar.lz4 or .zip")
        return _FORMATS[mime]
    for end, format_ in _FORMATS.items():
        if end.startswith(".") and name.endswith(end):
            return format_
    raise AISError(400, f"{name[:80]!r}: need a name that ends with .tar, .tgz, .tar.gz, .tar.lz4 or .zip, or mime")


def _names(with_bucket: object) -> ArchiveNames:
    return "bucket" if with_bucket is True else "object"


def _found(source: Bucket, chosen: Selection, stopping: Stopping, *, skips: bool) -> Iterator[Entry]:
    """Yield the entries that exist. Raises ObjectNotFound for another one, unless it is skipped; Stopped."""
    names = chosen.of(source)
    while group := list(itertools.islice(names, _GROUP)):
        stopping.check()
        for name, info in zip(group, source.head_many(group), strict=True):
            if info is not None:
                yield Entry(source.name, name)
            elif not skips:
                raise errors.ObjectNotFound(f"{source.name}/{name}: no such object")


FLAGS = "ais-pine"
MAX_MEMBER_BYTES = 64 << 20
_APPEND, _APPEND_IF_EXISTS = 1, 2


def put_member(request: AisRequest) -> Response:
    """Add a member to a tar. Without a flag, the tar is a new one, which has only this member. Raises AISError.

    The header `Ais-Pine` is 1 if the tar must exist, and 2 if it may.
    """
    path, text = request.query["archpath"].lstrip("/"), request.headers.get(FLAGS, "0").strip()
    if not path:
        raise AISError(400, "archpath: need the name of a member")
    if text not in ("", "0", "1", "2"):
        raise AISError(400, f"{FLAGS}: need 0, 1 or 2")
    flags, bucket = int(text or "0"), request.open_bucket()
    data = request.body.read() if request.body is not None else b""
    if flags == _APPEND:
        bucket.head(request.name)
    if flags in (_APPEND, _APPEND_IF_EXISTS):
        return Response(headers=attributes.headers_of(bucket.append_members(request.name, [(path, data)])))
    if not request.key.lower().endswith(".tar"):
        raise AISError(501, f"{request.url}: members can be put only into plain tars", "ErrUnsupp")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo(path)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return Response(headers=attributes.headers_of(bucket.put(request.name, packed.getvalue())))
