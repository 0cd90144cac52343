"""Download of a prefix: its objects become files, several at a time; each file appears complete or not at all."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeAlias

from ais_loader import errors
from ais_loader.name_matching import Patterns
from ais_loader.objects.folder_walk import holds
from ais_loader.objects.folders import chooser
from ais_loader.objects.object_file import opened_reader
from ais_loader.objects.opened_batch import opened_batch
from ais_loader.transport.base import Transport, require_text
from ais_loader.values.changes import DownloadSummary, Failure, OnError, OnProgress, Tally, check_on_error
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.requests import BatchOptions
from ais_loader.values.whole_file import whole_file
from ais_loader.wire.checksum import crc32c

_SMALL_BYTES = 8 << 20
"""Objects up to this size share requests; each larger one gets a stream of its own."""
_TOGETHER = 256
_TOGETHER_BYTES = 32 << 20
_THREADS = 4
_OF_A_NAME = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ENOTEMPTY, errno.ELOOP)
"""Errors about one file; the next file may succeed."""

ToFile: TypeAlias = tuple[ObjectInfo, str]
Outcome: TypeAlias = errors.LoaderError | bool
"""The error, or whether the file was written: False if it existed already."""
OnBytes: TypeAlias = Callable[[int], object]


def download(
    transport: Transport,
    bucket: str,
    prefix: str,
    folder: str | os.PathLike[str],
    *,
    include: Patterns,
    exclude: Patterns,
    overwrite: bool,
    timeout_s: float,
    on_error: OnError,
    progress: OnProgress | None,
    on_bytes: OnBytes | None = None,
) -> DownloadSummary:
    """See `Bucket.download`. `on_bytes` is called with numbers of bytes that are in their file; from other threads."""
    check_on_error(on_error, "raise", "return")
    top = os.path.expanduser(os.fspath(folder))
    if os.path.lexists(top) and not os.path.isdir(top):
        raise errors.InvalidRequest(f"{top} is not a folder: download writes files below a folder")
    require_text(prefix, errors.InvalidRequest, "prefix")
    above, wanted = prefix.rpartition("/")[0], chooser(include, exclude)
    cut = len(above) + 1 if above else 0
    named = ((info, info.name[cut:]) for info in transport.objects(bucket, prefix=prefix) if wanted(info.name[cut:]))
    files = _Files(transport, top, overwrite, timeout_s, on_bytes)
    with Tally(progress, on_error=on_error) as tally:
        for info, outcome in _together(files.written, _groups(named), files.ended):
            if isinstance(outcome, errors.LoaderError):
                tally.add_failed(Failure(info.name, outcome))
            elif outcome:
                tally.add_done(info.size_bytes)
            else:
                tally.add_skipped()
    return tally.summary(DownloadSummary, "downloaded")


def _groups(named: Iterable[ToFile]) -> Iterator[list[ToFile]]:
    """Group objects into units of one thread: a large object, or small ones of one request."""
    group: list[ToFile] = []
    size_bytes = 0
    for one in named:
        if one[0].size_bytes > _SMALL_BYTES:
            yield [one]
            continue
        if group and (len(group) == _TOGETHER or size_bytes + one[0].size_bytes > _TOGETHER_BYTES):
            yield group
            group, size_bytes = [], 0
        group.append(one)
        size_bytes += one[0].size_bytes
    if group:
        yield group


def _together(
    work: Callable[[list[ToFile]], list[tuple[ObjectInfo, Outcome]]],
    groups: Iterator[list[ToFile]],
    ended: threading.Event,
) -> Iterator[tuple[ObjectInfo, Outcome]]:
    """Yield the results of `work` for each group, as they become available, a few groups in parallel. Sets `ended` when
    the consumer stops."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="ais-loader-download") as pool:
        pending: set[Future[list[tuple[ObjectInfo, Outcome]]]] = set()
        try:
            for group in groups:
                pending.add(pool.submit(work, group))
                if len(pending) > _THREADS:  # one more than can be written, so that no thread waits for the listing
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    for one in done:
                        yield from one.result()
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for one in done:
                    yield from one.result()
        finally:
            ended.set()
            for one in pending:
                one.cancel()


class _Ended(Exception):
    """The consumer has stopped; no result is reported."""


class _Files:
    """Files below a folder. Thread-safe."""

    def __init__(
        self, transport: Transport, top: str, overwrite: bool, timeout_s: float, on_bytes: OnBytes | None
    ) -> None:
        self.ended = threading.Event()
        self._transport, self._top, self._overwrite, self._timeout_s = transport, top, overwrite, timeout_s
        self._on_bytes = on_bytes or (lambda _: None)

    def written(self, group: Sequence[ToFile]) -> list[tuple[ObjectInfo, Outcome]]:
        """Write the files of a group, and return their results. Raises OSError, NodeUnavailable and similar errors."""
        outcomes: list[tuple[ObjectInfo, Outcome]] = []
        to_write: list[ToFile] = []
        for info, relative in group:
            path = os.path.join(self._top, relative)
            outcome = self._outcome_before(info, relative, path)
            if outcome is None:
                to_write.append((info, path))
            else:
                outcomes.append((info, outcome))
        try:
            for (info, path), fetched in self._fetched(to_write):
                error = fetched if isinstance(fetched, errors.LoaderError) else self._write(path, info, fetched)
                outcomes.append((info, True if error is None else error))
        except _Ended:
            pass
        return outcomes

    def _outcome_before(self, info: ObjectInfo, relative: str, path: str) -> Outcome | None:
        """Return the result of an object that can be decided without its bytes: an error, or that the file exists
        already."""
        if "\0" in relative or any(part in ("", ".", "..") for part in relative.split("/")):
            return errors.InvalidName(f"{info.name!r} is no path below a folder")  # only a faulty store has such names
        if not os.path.lexists(path):
            return None
        if os.path.isdir(path):
            return errors.InvalidRequest(f"{path} is a folder, and the object {info.name!r} would be a file")
        if holds(path, info.size_bytes, info.checksum):
            self._on_bytes(info.size_bytes)
            return False
        if not self._overwrite:
            return errors.InvalidRequest(f"{path} is there with other bytes; overwrite=True replaces it")
        return None

    def _fetched(self, files: Sequence[ToFile]) -> Iterator[tuple[ToFile, Iterable[memoryview] | errors.LoaderError]]:
        """Yield each object with its bytes, in the listed version, or with the error."""
        small = [one for one in files if one[0].size_bytes <= _SMALL_BYTES]
        entries = [info.entry(pinned=True) for info, _ in small]
        options = BatchOptions(on_error="placeholder", timeout_s=self._timeout_s)
        with opened_batch(self._transport, entries, options=options) as batch:
            for one, item in zip(small, batch, strict=True):
                yield one, [item.data] if item.error is None else item.error
        for one in files:
            if one[0].size_bytes > _SMALL_BYTES:
                try:
                    reader = opened_reader(
                        self._transport, one[0].bucket, one[0].name, version=one[0].version, timeout_s=self._timeout_s
                    )
                except (errors.NotFound, errors.ObjectDenied) as error:
                    yield one, error
                else:
                    with reader:
                        yield one, reader.chunks()

    def _write(self, path: str, info: ObjectInfo, pieces: Iterable[memoryview]) -> errors.LoaderError | None:
        """Write one file; return an error that concerns only this file. Raises OSError, NodeUnavailable and similar
        errors."""
        checksum = 0
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with whole_file(path, replace=self._overwrite) as file:
                for piece in pieces:
                    if self.ended.is_set():
                        raise _Ended
                    checksum = crc32c(piece, checksum)
                    file.write(piece)
                    self._on_bytes(len(piece))
                if checksum != info.checksum:
                    raise errors.CorruptObject(
                        f"{info.name!r}: came with CRC-32C {checksum:08x}, not {info.checksum:08x}"
                    )
        except errors.LoaderError as error:
            if error.retryable:
                raise  # it has been retried already: the next one would fail too
            return error
        except OSError as error:
            if error.errno not in _OF_A_NAME:
                raise
            return errors.InvalidRequest(f"{path}: {error.strerror}: no file for the object {info.name!r}")
        return None
