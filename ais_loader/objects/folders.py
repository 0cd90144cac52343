"""Folders as objects and back: files put below a prefix, and the objects of a prefix downloaded to files."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ais_loader import errors
from ais_loader.changes import DownloadSummary, Failure, OnError, OnProgress, PutSummary, Tally, check_on_error
from ais_loader.checksum import crc32c
from ais_loader.entry import ObjectInfo
from ais_loader.objects.equal_files import holds, without_equal
from ais_loader.objects.folder_walk import PutPlan, identity_of, walk_folder
from ais_loader.objects.whole_file import whole_file
from ais_loader.patterns import matcher
from ais_loader.urls import store_folders

if TYPE_CHECKING:
    from ais_loader.bucket import Bucket

_SMALL_BYTES = 8 << 20
"""Objects up to this size share requests; larger ones come as a stream each."""
_TOGETHER = 1000
_OF_A_NAME = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ENOTEMPTY)
"""Errors about one file: the next one may fare better."""

ToFile: TypeAlias = tuple[ObjectInfo, str]


def chooser(include: Sequence[str], exclude: Sequence[str]) -> Callable[[str], bool]:
    """Whether a path is wanted. Raises TypeError for one pattern in place of several."""
    for patterns in (include, exclude):
        if isinstance(patterns, str):
            raise TypeError(f"{patterns!r}: need a sequence of patterns, not one")
    included, excluded = matcher(include), matcher(exclude)
    return lambda path: (not include or included(path)) and not excluded(path)


def put_folder(
    bucket: Bucket,
    folder: str | os.PathLike[str],
    prefix: str,
    *,
    include: Sequence[str],
    exclude: Sequence[str],
    hidden: bool,
    follow_links: bool,
    skip_equal: bool,
    if_absent: bool,
    metadata: Mapping[str, str] | None,
    on_error: OnError,
    progress: OnProgress | None,
) -> PutSummary:
    """See `Bucket.put_folder`."""
    check_on_error(on_error, "raise", "return")
    top = os.path.expanduser(os.fspath(folder))
    if not os.path.isdir(top):
        raise errors.InvalidRequest(f"{top}: {'not a folder' if os.path.exists(top) else 'no such folder'}")
    url = bucket.client.url
    own = (
        {found for drive in store_folders(url) if (found := identity_of(drive))} if url.startswith("file://") else set()
    )
    if identity_of(top) in own:
        raise errors.InvalidRequest(f"{top} is the store itself")
    plan = PutPlan()
    begin = f"{prefix}/" if prefix and not prefix.endswith("/") else prefix
    walk_folder(top, begin, plan, own, follow_links=follow_links, hidden=hidden, wanted=chooser(include, exclude))
    failures = [
        Failure(begin + os.path.relpath(path, top), errors.SourceUnreadable(f"{path}: {reason}"), path=path)
        for path, reason in [*plan.failures, *_unreadable(plan)]
    ]
    if failures and on_error == "raise":
        raise failures[0].error
    bucket.info()  # a bucket that is not there is told also where the folder is empty
    skipped = 0
    if skip_equal:
        plan.files, skipped = without_equal(bucket, plan.files)
    files = [(file.name, Path(file.path), dict(metadata or {})) for file in plan.files]
    put = bucket.put_many(files, if_absent=if_absent, on_error=on_error, progress=progress)
    return dataclasses.replace(
        put, skipped=skipped, failed=put.failed + len(failures), failures=(*failures, *put.failures)
    )


def _unreadable(plan: PutPlan) -> Iterator[tuple[str, str]]:
    """Files that cannot be opened; they leave the plan."""
    readable = []
    for file in plan.files:
        if os.access(file.path, os.R_OK):
            readable.append(file)
        else:
            yield file.path, os.strerror(errno.EACCES)
    plan.files = readable


def download(
    bucket: Bucket,
    prefix: str,
    folder: str | os.PathLike[str],
    *,
    include: Sequence[str],
    exclude: Sequence[str],
    overwrite: bool,
    timeout_s: float,
    on_error: OnError,
    progress: OnProgress | None,
) -> DownloadSummary:
    """See `Bucket.download`."""
    check_on_error(on_error, "raise", "return")
    top = os.path.expanduser(os.fspath(folder))
    above, wanted = prefix.rpartition("/")[0], chooser(include, exclude)
    cut = len(above) + 1 if above else 0
    objects = (info for info in bucket.objects(prefix) if wanted(info.name[cut:]))
    with Tally(progress) as tally:
        while page := list(itertools.islice(objects, _TOGETHER)):
            to_write: list[ToFile] = []
            for info in page:
                path = os.path.join(top, info.name[cut:])
                if (error := _refused(info, info.name[cut:], path, overwrite=overwrite)) is not None:
                    _failed(tally, info, error, on_error)
                elif os.path.lexists(path) and holds(path, info.size_bytes, info.checksum):
                    tally.add_skipped()
                else:
                    to_write.append((info, path))
            for (info, path), came in _fetched(bucket, to_write, timeout_s):
                error = came if isinstance(came, errors.LoaderError) else _written(path, info, came, overwrite)
                if error is None:
                    tally.add_done(info.size_bytes)
                else:
                    _failed(tally, info, error, on_error)
    return DownloadSummary(
        downloaded=tally.done,
        skipped=tally.skipped,
        size_bytes=tally.size_bytes,
        failed=tally.failed,
        failures=tuple(tally.failures),
    )


def _failed(tally: Tally, info: ObjectInfo, error: errors.LoaderError, on_error: OnError) -> None:
    if on_error == "raise":
        raise error
    tally.add_failed(Failure(info.name, error))


def _refused(info: ObjectInfo, relative: str, path: str, *, overwrite: bool) -> errors.LoaderError | None:
    """Why an object cannot become this file, as far as one can see without its bytes."""
    if any(part in ("", ".", "..") for part in relative.split("/")):
        return errors.InvalidName(f"{info.name!r} is no path below a folder")  # of a store that lies
    if os.path.isdir(path):
        return errors.InvalidRequest(f"{path} is a folder, and the object {info.name!r} would be a file")
    if not overwrite and os.path.lexists(path) and not holds(path, info.size_bytes, info.checksum):
        return errors.InvalidRequest(f"{path} is there with other bytes; overwrite=True replaces it")
    return None


def _fetched(
    bucket: Bucket, wanted: Sequence[ToFile], timeout_s: float
) -> Iterator[tuple[ToFile, Iterable[memoryview] | errors.LoaderError]]:
    """Each with its bytes, in the version that was listed, or with why they did not come."""
    small = [one for one in wanted if one[0].size_bytes <= _SMALL_BYTES]
    entries = [info.entry(pinned=True) for info, _ in small]
    with bucket.client.get_batch(entries, on_error="placeholder", timeout_s=timeout_s) as batch:
        for one, item in zip(small, batch, strict=True):
            yield one, [item.data] if item.error is None else item.error
    for one in wanted:
        if one[0].size_bytes > _SMALL_BYTES:
            try:
                reader = bucket.reader(one[0].name, version=one[0].version, timeout_s=timeout_s)
            except errors.NotFound as error:
                yield one, error
            else:
                with reader:
                    yield one, reader.chunks()


def _written(path: str, info: ObjectInfo, pieces: Iterable[memoryview], overwrite: bool) -> errors.LoaderError | None:
    """Why the file was not written, where that is about this one alone. Raises OSError, NodeUnavailable and alike."""
    checksum = 0
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with whole_file(path, replace=overwrite) as file:
            for piece in pieces:
                checksum = crc32c(piece, checksum)
                file.write(piece)
            if checksum != info.checksum:
                raise errors.CorruptObject(f"{info.name!r}: came with CRC-32C {checksum:08x}, not {info.checksum:08x}")
    except errors.LoaderError as error:
        if error.retryable:
            raise  # it has been tried again and again: the next one would fare no better
        return error
    except OSError as error:
        if error.errno not in _OF_A_NAME:
            raise
        return errors.InvalidRequest(f"{path}: {error.strerror}: no file for the object {info.name!r}")
    return None
