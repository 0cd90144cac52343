"""Batches as they are opened: entries of any form become requests to a store, and their answers a Batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ais_loader.errors import InvalidRequest
from ais_loader.objects.archive import ArchiveFormat, ArchiveNames, BatchArchive, check_names, check_options
from ais_loader.objects.head_many import head_many
from ais_loader.transport.base import Transport
from ais_loader.values.batch import Batch
from ais_loader.values.entry import Entry, EntryLike
from ais_loader.values.joined_ranges import JoinedRanges, of_one_version
from ais_loader.values.requests import BatchOptions, plain_names, requests_for_entries, requests_for_names, to_entries


def opened_batch(
    transport: Transport,
    entries: Iterable[EntryLike],
    bucket: str | None = None,
    *,
    options: BatchOptions,
    opaque: Any = None,
) -> Batch:
    """See `Client.get_batch`."""
    _check_bucket(bucket)
    if bucket is not None and (names := plain_names(entries)) is not None:
        return _batch(transport, names, requests_for_names(bucket, names, options), options, bucket, opaque=opaque)
    return _batch_of_entries(transport, to_entries(entries, bucket), options, opaque)


def opened_archive(
    transport: Transport,
    entries: Iterable[EntryLike],
    bucket: str | None = None,
    *,
    archive: ArchiveFormat,
    archive_names: ArchiveNames,
    options: BatchOptions,
    opaque: Any = None,
) -> BatchArchive:
    """See `Client.get_batch`."""
    check_options(archive, archive_names)
    _check_bucket(bucket)
    parsed = to_entries(entries, bucket)
    check_names(parsed, archive_names)
    return BatchArchive(_batch_of_entries(transport, parsed, options, opaque), archive, archive_names)


def _check_bucket(bucket: object) -> None:
    if bucket is not None and not isinstance(bucket, str):
        hint = "; pass its name" if hasattr(bucket, "name") else ""
        raise TypeError(f"bucket is a {type(bucket).__name__}; need a str{hint}")


def _batch_of_entries(transport: Transport, parsed: list[Entry], options: BatchOptions, opaque: Any) -> Batch:
    joined: JoinedRanges | None = None
    if any(entry.ranges is not None for entry in parsed):
        if any(entry.etl is not None and entry.ranges is not None for entry in parsed):
            raise InvalidRequest(
                "an entry with several ranges cannot pass through a transform: make one entry for each range"
            )
        parsed = of_one_version(parsed, lambda bucket, names: head_many(transport, bucket, names))
        joined = JoinedRanges(parsed)
    _, requests = requests_for_entries(parsed if joined is None else joined.requested, options)
    return _batch(transport, parsed, requests, options, joined=joined, opaque=opaque)


def batch_of_names(
    transport: Transport, bucket: str, names: Sequence[Any], options: BatchOptions, versions: Sequence[str] = ()
) -> Batch:
    """Open a batch of whole objects of one bucket, without an Entry for each. With `versions` only these are accepted;
    take the batch whole then, since its items do not tell them."""
    return _batch(transport, names, requests_for_names(bucket, names, options, versions), options, bucket)


def opened_long_batch(
    transport: Transport, entries: Sequence[Entry], options: BatchOptions, *, window_bytes: int
) -> Batch | None:
    """See `Transport.open_long_batch`. Takes at most as many entries as fit into one request."""
    parsed, requests = requests_for_entries(entries, options)
    stream = transport.open_long_batch(requests[0], timeout_s=options.timeout_s, window_bytes=window_bytes)
    return None if stream is None else Batch(parsed, requests, lambda _: stream, "raise")


def _batch(
    transport: Transport,
    entries: Sequence[Entry | str],
    requests: list[Any],
    options: BatchOptions,
    bucket: str | None = None,
    joined: JoinedRanges | None = None,
    opaque: Any = None,
) -> Batch:
    return Batch(
        entries,
        requests,
        lambda request: transport.open_batch(
            request, timeout_s=options.timeout_s, assembly=options.assembly, colocation=options.colocation
        ),
        options.on_error,
        bucket,
        joined,
        opaque,
    )
