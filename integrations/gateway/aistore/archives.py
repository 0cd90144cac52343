"""Archives: an action packs a group of objects into one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile

from ais_loader import errors
from ais_loader.objects.archive import ArchiveFormat, ArchiveNames
from ais_loader.objects.bucket import Bucket
from ais_loader.values.entry import Entry

from ..request import Response, name_of
from ..spool import IN_MEMORY_BYTES
from .copies import places, target_named
from .groups import Selection, selection
from .jobs import JobOutcome, Stopping, answer_when_done
from .request import AISError, AisRequest, unsupported

_GROUP = 1000
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


def archive_objects(request: AisRequest) -> Response:
    """Answer `archive`: make an archive of objects. Raises Refusal."""
    value = request.value
    source = request.named_bucket(request.bucket, request.provider, must_exist=True)
    chosen = selection(request)
    name = value.get("archname")
    if not isinstance(name, str) or not name:
        raise AISError(400, "archname: need the name of the archive")
    target, provider = target_named(request)
    to = places(request, target, provider, create=True) if target else source
    names: ArchiveNames = "bucket" if value.get("isbn") is True else "object"
    made = _Archiving(source, to, name_of(name), _format(value.get("mime") or "", name), names, request.spool)
    if value.get("aate") and to.exists(made.name):
        raise unsupported("appending to an archive")
    skips = bool(value.get("coer")) or not chosen.is_list

    def action(stopping: Stopping) -> JobOutcome:
        return made.make(_found(source, chosen, stopping, skips=skips))

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
