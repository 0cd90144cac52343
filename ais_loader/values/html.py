"""HTML tables by which notebooks show buckets, listings and batches: the first rows, with readable sizes and times."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape

from ais_loader.errors import LoaderError
from ais_loader.values.entry import Entry, ObjectInfo

_ROWS = 20


def html_of_objects(title: str, objects: Iterable[ObjectInfo]) -> str:
    """Format the first objects of a listing, which is not read further; if it fails, the error."""
    try:
        first = list(itertools.islice(objects, _ROWS + 1))
    except LoaderError as error:
        return f"<p>{escape(title)}: {escape(str(error))}</p>"
    rows = [(info.name, f"{info.size_bytes:,}", local_time(info.modified_ns), info.version) for info in first[:_ROWS]]
    more = "and more" if len(first) > _ROWS else f"{len(first)} in all"
    return _table(title, ("name", "bytes", "stored", "version"), rows, more)


def html_of_entries(title: str, entries: Sequence[Entry | str], bucket: str | None = None) -> str:
    """Format the first entries of a sequence. `bucket`: the bucket of mere names."""
    rows = []
    for index, entry in enumerate(entries[:_ROWS]):
        if isinstance(entry, str):
            entry = Entry(bucket or "", entry)
        stop = "" if entry.length is None else f"{entry.start + entry.length:,}"
        part = f"{entry.start:,} to {stop or 'the end'}" if entry.start or stop else "all"
        part = "several" if entry.ranges is not None else part
        rows.append((str(index), entry.bucket, entry.name, entry.member or "", part, entry.version or ""))
    more = "and more" if len(entries) > _ROWS else f"{len(entries)} in all"
    return _table(title, ("", "bucket", "name", "member", "bytes", "version"), rows, more)


def local_time(time_ns: int) -> str:
    """Format a time as local time, to the second."""
    return datetime.fromtimestamp(time_ns // 10**9).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], more: str) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    caption = f"{escape(title)}, {escape(more)}"
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
