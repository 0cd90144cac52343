"""Storage provider for multi-storage-client: files of a profile are objects of a bucket.

Source: multi-storage-client 1.3.1, types.py and providers/base.py (`BaseStorageProvider`: which methods a provider
has, with paths below its base path, and which errors they raise).
"""

from __future__ import annotations

import datetime
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ais_loader import Client, ObjectInfo, errors
from ais_loader.extras import needs
from ais_loader.objects.bucket import one_level
from ais_loader.values.whole_file import whole_file

from ..file_errors import as_files
from ..shared_store import StoreReference

with needs("multistorageclient", "msc:// over a store"):
    from multistorageclient.providers.base import BaseStorageProvider
    from multistorageclient.types import (
        AWARE_DATETIME_MIN,
        ObjectMetadata,
        PreconditionFailedError,
        Range,
        RetryableError,
        SymlinkHandling,
    )

_SYMLINK = "msc-symlink-target"
"""The metadata key under which the client's providers for object stores keep where a link leads."""
_TRANSIENT = (errors.NodeUnavailable, errors.Overloaded, errors.SilenceTimeout, errors.RemoteUnavailable)


class AISProvider(BaseStorageProvider):  # type: ignore[misc]  # the client is not type-checked here
    """Objects of a store as files of a multi-storage-client profile.

    Errors are those that the client expects: FileNotFoundError, PermissionError, PreconditionFailedError, and
    RetryableError, after which it tries again, if the store did not answer. All others are from `ais_loader.errors`.
    An ETag is an object's version. Reading never locks an embedded store, and each write locks it for a moment, as in
    fsspec. The provider is safe in threads and after a fork.
    """

    def __init__(
        self,
        base_path: str = "",
        store: str | os.PathLike[str] | None = None,
        *,
        lock_wait_s: float = 10.0,
        credentials_provider: Any = None,
        config_dict: dict[str, Any] | None = None,
        telemetry_provider: Callable[[], Any] | None = None,
        **unknown: Any,
    ) -> None:
        """
        Args:
            base_path: The bucket, or `bucket/folder`, to which the profile's paths belong.
            store: The store's URL. None means the value of AIS_LOADER_URL at each use.
            lock_wait_s: How long a write waits while another process writes to an embedded store and makes no progress.
            credentials_provider: Must be None. Tokens and certificates are found as in `ais_loader.connect`.
            config_dict, telemetry_provider: Passed by the client, for its metrics.

        Raises ValueError for options of AIStore's provider, such as `endpoint`.
        """
        if unknown or credentials_provider is not None:
            found = ", ".join(sorted(unknown) or ["credentials_provider"])
            raise ValueError(
                f"{found}: not an option of ais-loader's provider, which has base_path, store (a folder, grpc://… or "
                "AIS_LOADER_URL) and lock_wait_s"
            )
        super().__init__(
            base_path=base_path, provider_name="ais", config_dict=config_dict, telemetry_provider=telemetry_provider
        )
        self._store = StoreReference(store)
        self._lock_wait_s = lock_wait_s

    # -- reading

    def _get_object(self, path: str, byte_range: Range | None = None) -> bytes:
        bucket_name, name = _split(path)
        with _as_the_client_expects(path):
            bucket = self._store.reader().bucket(bucket_name)
            if byte_range is None:
                return bucket.get(name)
            try:
                return bucket.get(name, start=byte_range.offset, length=byte_range.size)
            except errors.RangeError:  # it passes the end, where a range of a file ends
                size_bytes = bucket.head(name).size_bytes
                start = min(byte_range.offset, size_bytes)
                return bucket.get(name, start=start, length=min(byte_range.size, size_bytes - start))

    def _get_object_metadata(self, path: str, strict: bool = True) -> ObjectMetadata:
        bucket_name, name = _split(path)
        with _as_the_client_expects(path):
            bucket = self._store.reader().bucket(bucket_name)
            try:
                if name and not name.endswith("/"):
                    return _metadata(bucket.head(name))
            except errors.ObjectNotFound:
                if not strict:
                    raise
            folder = f"{name.rstrip('/')}/" if name else ""
            if next(bucket.objects(folder, page_size=1), None) is None:
                raise FileNotFoundError(f"{path}: no object of this name, and none in a folder of this name")
            return _folder(f"{path.rstrip('/')}/")

    def _list_objects(
        self,
        path: str,
        start_after: str | None = None,
        end_at: str | None = None,
        include_directories: bool = False,
        symlink_handling: SymlinkHandling = SymlinkHandling.FOLLOW,
    ) -> Iterator[ObjectMetadata]:
        bucket_name, prefix = _split(path)
        with _as_the_client_expects(path):
            bucket = self._store.reader().bucket(bucket_name)
            if include_directories:
                found: Iterator[ObjectInfo | str] = one_level(bucket, prefix)
            else:
                found = iter(bucket.objects(prefix, start_after=_split(start_after)[1] if start_after else ""))
            for one in found:
                row = _metadata(one) if isinstance(one, ObjectInfo) else _folder(f"{bucket_name}/{one[:-1]}")
                if end_at is not None and row.key > end_at:
                    return
                if start_after is None or row.key > start_after:
                    yield row

    def _download_file(self, remote_path: str, f: Any, metadata: ObjectMetadata | None = None) -> int:
        bucket_name, name = _split(remote_path)
        with _as_the_client_expects(remote_path), self._store.reader().bucket(bucket_name).reader(name) as reader:
            if isinstance(f, io.StringIO):
                f.write(b"".join(reader.chunks()).decode())
            elif not isinstance(f, str):
                for chunk in reader.chunks():
                    f.write(chunk)
            else:
                os.makedirs(os.path.dirname(f) or ".", exist_ok=True)
                with whole_file(f, replace=True) as file:
                    file.writelines(reader.chunks())
            return reader.info.size_bytes

    # -- writing

    @contextmanager
    def _writing(self, path: str) -> Iterator[Client]:
        with _as_the_client_expects(path), self._store.writer(self._lock_wait_s) as client:
            yield client

    def _put_object(
        self,
        path: str,
        body: bytes,
        if_match: str | None = None,
        if_none_match: str | None = None,
        attributes: dict[str, str] | None = None,
    ) -> int:
        if if_none_match not in (None, "*"):
            raise ValueError(f"if_none_match={if_none_match!r}: need '*', which means that there is no such object")
        return self._put(path, body, attributes, if_version=if_match, if_absent=if_none_match == "*")

    def _put(self, path: str, data: Any, attributes: dict[str, str] | None, **conditions: Any) -> int:
        bucket_name, name = _split(path)
        with self._writing(path) as client:
            return client.bucket(bucket_name).put(name, data, metadata=attributes, **conditions).size_bytes

    def _upload_file(self, remote_path: str, f: Any, attributes: dict[str, str] | None = None) -> int:
        if isinstance(f, str):
            return self._put(remote_path, Path(f), attributes)
        data = f.read()
        return self._put(remote_path, data.encode() if isinstance(data, str) else data, attributes)

    def _copy_object(self, src_path: str, dest_path: str) -> int:
        (source, name), (target, new_name) = _split(src_path), _split(dest_path)
        with self._writing(src_path) as client:
            return client.bucket(source).copy(name, new_name, to_bucket=target).size_bytes

    def _delete_object(self, path: str, if_match: str | None = None) -> None:
        bucket_name, name = _split(path)
        with self._writing(path) as client:
            client.bucket(bucket_name).delete(name, if_version=if_match)

    def _delete_objects(self, paths: list[str]) -> None:
        by_bucket: dict[str, list[str]] = {}
        for path in paths:
            bucket_name, name = _split(path)
            by_bucket.setdefault(bucket_name, []).append(name)
        for bucket_name, names in by_bucket.items():
            with self._writing(bucket_name) as client:
                for result in client.bucket(bucket_name).iter_delete_many(names, on_error="yield"):
                    if isinstance(result, errors.LoaderError) and not isinstance(result, errors.ObjectNotFound):
                        raise result

    def _make_symlink(self, path: str, target: str) -> None:
        (bucket_name, name), (target_bucket, target_name) = _split(path), _split(target)
        if bucket_name != target_bucket:
            raise ValueError(f"{path}: a link leads to an object of the same bucket, not to {target}")
        self._put(path, b"", {_SYMLINK: ObjectMetadata.encode_symlink_target(name, target_name)})


def _split(path: str) -> tuple[str, str]:
    """Return bucket and name. Either may be empty."""
    bucket, _, name = path.lstrip("/").partition("/")
    return bucket, name


@contextmanager
def _as_the_client_expects(path: str) -> Iterator[None]:
    try:
        with as_files(path):
            yield
    except FileExistsError as error:
        raise PreconditionFailedError(str(error)) from error
    except _TRANSIENT as error:
        raise RetryableError(f"{path}: {error}") from error


def _metadata(info: ObjectInfo) -> ObjectMetadata:
    return ObjectMetadata(
        key=f"{info.bucket}/{info.name}",
        content_length=info.size_bytes,
        last_modified=datetime.datetime.fromtimestamp(info.modified_ns / 1e9, datetime.UTC),
        etag=info.version,
        metadata=info.metadata or None,
        symlink_target=info.metadata.get(_SYMLINK),
    )


def _folder(path: str) -> ObjectMetadata:
    return ObjectMetadata(key=path, content_length=0, last_modified=AWARE_DATETIME_MIN, type="directory")
