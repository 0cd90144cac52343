"""Client of any S3 endpoint, as far as measurements need one. It stands in for the client of a store.

Keys and region come from the variables of the AWS tools (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
AWS_REGION), never from arguments, which other users of the machine could read. Requests are signed. They are made in
Rust by obstore, so that the client costs as little of the machine as possible.
"""

from __future__ import annotations

import contextlib
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import islice
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any

from ais_loader.errors import (
    AccessDenied,
    BucketExists,
    BucketNotFound,
    InvalidRequest,
    LoaderError,
    NodeUnavailable,
    ObjectNotFound,
)
from ais_loader.extras import needs

with needs("obstore", "ais-loader bench --s3", extra="bench,remote"):
    import obstore
    from obstore.store import S3Store

if TYPE_CHECKING:
    from typing_extensions import Buffer

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_PUTS_AT_ONCE = 8
_DELETED_AT_ONCE = 1000
_TIMEOUT = timedelta(seconds=60)


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    """Raise LoaderErrors in place of the errors of obstore."""
    try:
        yield
    except LoaderError:
        raise
    except FileNotFoundError as error:
        missing = BucketNotFound if "NoSuchBucket" in str(error) else ObjectNotFound
        raise missing(f"{what}: {_reason(error)}") from None
    except (
        PermissionError,
        obstore.exceptions.PermissionDeniedError,
        obstore.exceptions.UnauthenticatedError,
    ) as error:
        raise AccessDenied(f"{what}: {_reason(error)}") from None
    except Exception as error:  # noqa: BLE001 - obstore's classes have no common one
        raise NodeUnavailable(f"{what}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return str(error).partition("Debug source:")[0].strip()[:500]


class S3Client:
    """Client of one endpoint. As a context manager, it does nothing at the end: connections close with the object."""

    def __init__(self, endpoint: str, *, retry_s: float) -> None:
        """
        Args:
            endpoint: Such as `http://127.0.0.1:9000`.

        Raises InvalidRequest if it is no URL of HTTP, or if the environment has no keys.
        """
        if not endpoint.startswith(("http://", "https://")):
            raise InvalidRequest(f"{endpoint!r}: an S3 endpoint is a URL such as http://127.0.0.1:9000")
        if missing := [name for name in KEYS if not os.environ.get(name)]:
            raise InvalidRequest(f"the keys of the S3 endpoint are not set: need {' and '.join(missing)}")
        self.endpoint, self._retry_s = endpoint.rstrip("/"), retry_s

    def bucket(self, name: str) -> S3Bucket:
        return S3Bucket(self, name)

    def create_bucket(self, name: str, *, copies: int = 1) -> S3Bucket:
        """Create a bucket. Raises BucketExists, AccessDenied, NodeUnavailable."""
        bucket = self.bucket(name)
        try:
            bucket.call_itself("HEAD")
        except BucketNotFound:
            bucket.call_itself("PUT")
            return bucket
        raise BucketExists(f"bucket {name} exists")  # endpoints differ in what they say of a second creation

    def delete_bucket(self, name: str, *, force: bool) -> int:
        """Delete a bucket with everything in it. Returns the number of objects."""
        count = self.bucket(name).delete_prefix("")
        self.bucket(name).call_itself("DELETE")
        return count

    def describe(self) -> dict[str, Any]:
        """Return nothing: the processes of an endpoint are not known."""
        return {}

    def store_of(self, name: str) -> S3Store:
        """Return obstore's store for a bucket."""
        options: Any = {"allow_http": self.endpoint.startswith("http://"), "timeout": _TIMEOUT}
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        retry: Any = {"retry_timeout": timedelta(seconds=self._retry_s)}
        return S3Store(
            name, config={"endpoint": self.endpoint, "region": region}, client_options=options, retry_config=retry
        )

    def close(self) -> None: ...

    def __enter__(self) -> S3Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class S3Bucket:
    """One bucket of an endpoint. Calls raise ObjectNotFound, BucketNotFound, AccessDenied and NodeUnavailable."""

    def __init__(self, client: S3Client, name: str) -> None:
        self.client, self.name = client, name
        self._store = client.store_of(name)

    def info(self) -> Any:
        """Return the number of copies, which S3 does not tell, as one."""
        return SimpleNamespace(copies=1)

    def get(self, name: str) -> Buffer:
        with _translated(f"{self.name}/{name}"):
            return obstore.get(self._store, name).bytes()

    def get_range(self, name: str, start: int, length: int) -> Buffer:
        with _translated(f"{self.name}/{name}"):
            return obstore.get_range(self._store, name, start=start, length=length)

    def put(self, name: str, data: Buffer) -> Any:
        """Put with one request, and return the size, as `size_bytes`."""
        data = memoryview(data)
        with _translated(f"{self.name}/{name}"):
            obstore.put(self._store, name, bytes(data), use_multipart=False)
        return SimpleNamespace(size_bytes=data.nbytes)

    def exists(self, name: str) -> bool:
        try:
            with _translated(f"{self.name}/{name}"):
                obstore.head(self._store, name)
        except ObjectNotFound:
            return False
        return True

    def iter_put_many(self, objects: Iterable[tuple[str, Buffer]]) -> Iterator[None]:
        """Put objects, several at once. Yields once for each that is stored."""
        objects = iter(objects)
        with ThreadPoolExecutor(_PUTS_AT_ONCE) as pool:
            while group := list(islice(objects, 4 * _PUTS_AT_ONCE)):
                for _ in pool.map(lambda one: self.put(*one), group):
                    yield None

    def objects(self, prefix: str = "") -> Iterator[str]:
        """Yield the names below a folder."""
        with _translated(self.name):
            for page in obstore.list(self._store, prefix.rstrip("/") or None):
                yield from (one["path"] for one in page)

    def delete_prefix(self, prefix: str) -> int:
        """Delete the objects below a folder, and return their number."""
        names = list(self.objects(prefix))
        for first in range(0, len(names), _DELETED_AT_ONCE):
            with _translated(self.name):
                obstore.delete(self._store, names[first : first + _DELETED_AT_ONCE])
        return len(names)

    def call_itself(self, method: str) -> None:
        """Make a request about the bucket, for which obstore has no call: by a presigned URL of the bucket."""
        with _translated(self.name):
            url = obstore.sign(self._store, method, "", _TIMEOUT)  # type: ignore[call-overload]
        request = urllib.request.Request(url, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT.total_seconds()):
                pass
        except urllib.error.HTTPError as error:
            kinds = {403: AccessDenied, 404: BucketNotFound}
            reason = error.read(500).decode(errors="replace") or error.reason
            raise kinds.get(error.code, NodeUnavailable)(f"{method} of bucket {self.name}: {reason}") from None
        except OSError as error:
            raise NodeUnavailable(f"{self.client.endpoint}: {error}") from None
