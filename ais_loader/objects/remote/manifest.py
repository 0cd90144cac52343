"""Manifest: a list of remote objects in a file, from which an inventory is made without listing the remote storage.

Forms: Parquet; CSV and JSON Lines, also with gzip; and S3 Inventory, whose manifest.json names files of CSV or Parquet
that lie beside it or in `data/`.

Columns: `name`, a name in the bucket, or `key`, the key in the remote storage, which begins with the path of the
bucket's URL; `size` or `size_bytes`; optional are `etag`, and `modified` or `last_modified`, as ISO 8601 or in
nanoseconds since the epoch. Capitals, "_" and other columns do not matter.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_plus

from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs
from ais_loader.wire.inventory import Block, Row, encoded
from ais_loader.wire.remote import Remote

_ROWS_AT_ONCE = 32_768
_BYTES_AT_ONCE = 2 << 20
"""Size of names and ETags after which a message ends."""
_MAX_TEXT_BYTES = (1 << 16) - 1
_MAX_NUMBER = (1 << 63) - 1
_SIZE: Final = ("size", "sizebytes")
_MODIFIED: Final = ("modified", "lastmodified", "lastmodifieddate", "modifiedns")
_OF_VERSIONS: Final = ("islatest", "isdeletemarker")
_FORMS = "need .parquet, .csv, .csv.gz, .jsonl, .jsonl.gz, or the manifest.json of S3 Inventory"


class Manifest:
    """A manifest for a bucket with this remote. Read by `blocks`, once."""

    def __init__(self, path: str | os.PathLike[str], remote: Remote | None) -> None:
        """Raises InvalidRequest for a file of another form, or for another place, OSError."""
        self._path = Path(path)
        self._remote = remote
        rest = remote.url.partition("://")[2] if remote is not None and remote.scheme != "file" else ""
        self._host, _, folder = rest.partition("/")
        self._above = f"{folder}/" if folder else ""
        self.made_ns = 0
        """Time at which it was made, in nanoseconds since the epoch; 0 if it does not say so."""
        self._listing: Mapping[str, Any] | None = None
        if self._path.name.endswith(".json"):
            self._listing = self._s3_inventory()
            stamp = str(self._listing.get("creationTimestamp", ""))
            self.made_ns = int(stamp) * 1_000_000 if stamp.isdecimal() else 0
        else:
            _form(self._path)
            self._path.stat()

    def blocks(self) -> Iterator[Block]:
        """Yield the objects in the order of the file. Raises InvalidRequest, OSError, MissingExtra."""
        rows = self._rows_of_s3() if self._listing is not None else self._rows(self._path, _form(self._path))
        group: list[Row] = []
        size_bytes = 0
        for row in rows:
            group.append(row)
            size_bytes += len(row.name) + len(row.etag)
            if len(group) >= _ROWS_AT_ONCE or size_bytes >= _BYTES_AT_ONCE:
                yield encoded(group)
                group, size_bytes = [], 0
        if group:
            yield encoded(group)

    def _rows(self, path: Path, form: str) -> Iterator[Row]:
        """Yield the rows of a file with names of columns."""
        if form == "parquet":
            columns, records = _parquet(path)
            yield from self._columns(path, columns).rows(records)
        elif form == "csv":
            lines = _csv(path)
            yield from self._columns(path, next(lines, [])).rows(lines)
        else:
            yield from self._json_rows(path)

    def _json_rows(self, path: Path) -> Iterator[Row]:
        parsers: dict[tuple[str, ...], _Columns] = {}
        for number, line in enumerate(_lines(path), 1):
            if not line.strip():
                continue
            try:
                fields = json.loads(line)
                keys, values = tuple(fields), list(fields.values())
            except (ValueError, AttributeError, TypeError):
                raise InvalidRequest(f"{path}, line {number:,}: is no JSON object") from None
            if keys not in parsers:
                parsers[keys] = self._columns(path, keys)
            yield from parsers[keys].rows([values], first=number)

    def _columns(self, path: Path, columns: Sequence[str], *, is_encoded: bool = False) -> _Columns:
        has_quotes = self._remote is not None and self._remote.scheme == "s3"
        return _Columns(path, columns, self._above, has_quotes=has_quotes, is_encoded=is_encoded)

    # -- S3 Inventory

    def _s3_inventory(self) -> Mapping[str, Any]:
        try:
            found = json.loads(self._path.read_bytes())
            form, files, bucket = found["fileFormat"], found["files"], found["sourceBucket"]
            wrong = [one for one in files if not isinstance(one["key"], str)]
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(f"{self._path}: is no manifest.json of S3 Inventory ({error!r})") from None
        if form not in ("CSV", "Parquet") or wrong:
            raise InvalidRequest(f"{self._path}: has files of {form}; need CSV or Parquet")
        if self._remote is not None and self._remote.scheme == "s3" and bucket != self._host:
            raise InvalidRequest(f"{self._path}: is of the cloud bucket {bucket!r}, and not of {self._remote.url}")
        return found  # type: ignore[no-any-return]

    def _rows_of_s3(self) -> Iterator[Row]:
        assert self._listing is not None
        for file in self._listing["files"]:
            path = self._beside(file["key"])
            if (checksum := file.get("MD5checksum")) and _md5(path) != checksum:
                raise InvalidRequest(f"{path}: its MD5 checksum is not the one in {self._path.name}: incomplete?")
            if self._listing["fileFormat"] == "Parquet":
                yield from self._rows(path, "parquet")
                continue
            columns = [one.strip() for one in str(self._listing.get("fileSchema", "")).split(",")]
            yield from self._columns(path, columns, is_encoded=True).rows(_csv(path))

    def _beside(self, key: str) -> Path:
        name = key.rpartition("/")[2]
        for path in (self._path.parent / name, self._path.parent / "data" / name):
            if path.is_file():
                return path
        raise InvalidRequest(f"{self._path}: its file {name!r} is neither in this folder nor in data/")


class _Columns:
    """Columns of one file. Raises InvalidRequest if one is missing."""

    def __init__(
        self, path: Path, columns: Sequence[str], above: str, *, has_quotes: bool, is_encoded: bool = False
    ) -> None:
        """
        Args:
            above: The beginning of all keys.
            has_quotes: Whether ETags are in quotes, which manifests leave out.
            is_encoded: Whether keys are encoded as in URLs.
        """
        at = {str(column).lower().replace("_", ""): position for position, column in enumerate(columns)}
        self._path, self._count = path, len(columns)
        self._has_quotes = has_quotes
        self._is_key = "name" not in at
        self._above, self._is_encoded = above if self._is_key else "", is_encoded
        shown = ", ".join(map(str, columns)) or "none"
        name = at.get("key" if self._is_key else "name")
        size = next((at[one] for one in _SIZE if one in at), None)
        if name is None or size is None:
            missing = "name or key" if name is None else "size or size_bytes"
            raise InvalidRequest(f"{path}: has no column {missing}; its columns are {shown}")
        self._name, self._size = name, size
        self._etag = at.get("etag")
        self._modified = next((at[one] for one in _MODIFIED if one in at), None)
        self._of_versions = [at.get(one) for one in _OF_VERSIONS]

    def rows(self, records: Iterable[Sequence[Any]], *, first: int = 1) -> Iterator[Row]:
        """Yield the rows of objects. Raises InvalidRequest with the number of a record that cannot be one."""
        is_latest, is_marker = self._of_versions
        for number, record in enumerate(records, first):
            if not record:
                continue
            if len(record) != self._count:
                raise self._wrong(number, f"has {len(record)} columns instead of {self._count}")
            if is_latest is not None and not _is_true(record[is_latest]):
                continue
            if is_marker is not None and _is_true(record[is_marker]):
                continue
            name = record[self._name]
            if not isinstance(name, str):
                raise self._wrong(number, f"its name is {name!r}")
            if self._is_encoded:
                name = unquote_plus(name)
            if not name.startswith(self._above):
                continue
            name = name[len(self._above) :]
            if self._is_key and (not name or name.endswith("/")):
                continue  # a directory marker
            encoded_name = name.encode("utf-8", "surrogatepass")
            if len(encoded_name) > _MAX_TEXT_BYTES:
                raise self._wrong(number, f"its name has {len(encoded_name):,} bytes")
            yield Row(encoded_name, self._size_of(number, record), self._time_of(number, record), self._tag_of(record))

    def _size_of(self, number: int, record: Sequence[Any]) -> int:
        try:
            size_bytes = int(record[self._size])
        except (TypeError, ValueError):
            size_bytes = -1
        if not 0 <= size_bytes <= _MAX_NUMBER:
            raise self._wrong(number, f"its size is {record[self._size]!r}")
        return size_bytes

    def _time_of(self, number: int, record: Sequence[Any]) -> int:
        value = record[self._modified] if self._modified is not None else None
        if value is None or value == "":
            return 0
        try:
            if isinstance(value, str) and not value.isdecimal():
                value = datetime.fromisoformat(value)
            if isinstance(value, datetime):
                value = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
                value = int(value.timestamp() * 1000) * 1_000_000
            return min(max(0, int(value)), _MAX_NUMBER)
        except (TypeError, ValueError, OverflowError):
            raise self._wrong(number, f"its time is {value!r}") from None

    def _tag_of(self, record: Sequence[Any]) -> bytes:
        tag = record[self._etag] if self._etag is not None else ""
        tag = str(tag) if tag else ""
        if self._has_quotes and tag and not tag.endswith('"'):
            tag = f'"{tag}"'
        return tag.encode("utf-8", "replace")

    def _wrong(self, number: int, fault: str) -> InvalidRequest:
        return InvalidRequest(f"{self._path}, record {number:,}: {fault}")


def _form(path: Path) -> str:
    """Return the form of a file, by its name. Raises InvalidRequest."""
    suffix = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    form = {"parquet": "parquet", "csv": "csv", "jsonl": "jsonl", "ndjson": "jsonl"}.get(suffix, "")
    if not form or (form == "parquet" and path.name.lower().endswith(".gz")):
        raise InvalidRequest(f"manifest {path}: {_FORMS}")
    return form


def _lines(path: Path) -> Generator[str, None, None]:
    """Yield the lines of a text file. Raises InvalidRequest, OSError."""
    is_gzip = path.name.lower().endswith(".gz")
    with gzip.open(path) if is_gzip else open(path, "rb") as file, io.TextIOWrapper(file, "utf-8", newline="") as text:
        try:
            yield from text
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InvalidRequest(f"{path}: is damaged or incomplete: {error}") from None
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"{path}: is not in UTF-8: {error}") from None


def _csv(path: Path) -> Iterator[list[str]]:
    """Yield the records of a CSV file. Raises InvalidRequest, OSError."""
    with closing(_lines(path)) as lines:
        try:
            yield from csv.reader(lines)
        except csv.Error as error:
            raise InvalidRequest(f"{path}: cannot be read: {error}") from None


def _parquet(path: Path) -> tuple[Sequence[str], Iterator[Sequence[Any]]]:
    """Return the names of the columns, and the records."""
    with needs("pyarrow", "manifests in Parquet"):
        import pyarrow
        import pyarrow.parquet

    def records() -> Iterator[Sequence[Any]]:
        with file:
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=wanted):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowException as error:
        raise InvalidRequest(f"{path}: is no Parquet file: {error}") from None
    known = {"name", "key", "etag", *_SIZE, *_MODIFIED, *_OF_VERSIONS}
    wanted = [column for column in file.schema_arrow.names if column.lower().replace("_", "") in known]
    return wanted, records()


def _is_true(value: Any) -> bool:
    return value is True or str(value).lower() == "true"


def _md5(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()
