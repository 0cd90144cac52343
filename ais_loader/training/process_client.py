"""Process client: the client that datasets use in each process.

A URL of a cloud reads the remote bucket that stands for it, created on demand. There is one for each cloud bucket or
server, named after it, whatever the prefix: jobs that read different prefixes of a cloud bucket share the copies.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import xxhash

from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs
from ais_loader.name_matching import is_pattern
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client, connect, with_tls
from ais_loader.training.worker_exit import exit_with_trainer
from ais_loader.values.entry import Entry
from ais_loader.values.options import ClusterOptions, EmbeddedOptions
from ais_loader.values.urls import ENDPOINT_SCHEMES, NODE_SCHEME, SCHEME, is_remote, store_folders
from ais_loader.wire.remote import SCHEMES, Remote

with needs("torch", "datasets"):
    from torch.utils.data import get_worker_info

ClientOrUrl: TypeAlias = Client | str | os.PathLike[str]


class ProcessClient:
    """The client that datasets use in this process: the caller's own, or one opened from a URL at the first read.

    A client opened here is read-only, so that any number of workers can open an embedded store alongside its writer.
    """

    def __init__(self, client_or_url: ClientOrUrl, retry_s: float | None = None) -> None:
        if not isinstance(client_or_url, (Client, str, os.PathLike)):
            raise TypeError(
                f"need a Client, or a store's URL or path, before what is read, got {type(client_or_url).__name__}"
            )
        if not isinstance(client_or_url, Client) and not is_remote(os.fspath(client_or_url)):
            store_folders(os.fspath(client_or_url))  # an address that is none is told here, not in a worker
        self._given = client_or_url if isinstance(client_or_url, Client) else os.fspath(client_or_url)
        self.options: EmbeddedOptions | ClusterOptions
        if isinstance(self._given, Client):
            self.options = self._given._transport.options
        else:
            self.options = ClusterOptions() if is_remote(self._given) else EmbeddedOptions()
        if retry_s is not None:
            if isinstance(self._given, Client):
                raise InvalidRequest(
                    f"retry_s={retry_s!r}: a Client has its own: connect(url, options=ClusterOptions(retry_s=...))"
                )
            if not is_remote(self._given):
                raise InvalidRequest(
                    f"retry_s={retry_s!r}: an embedded store has no nodes to reach; it goes with grpc://host:port"
                )
            self.options = ClusterOptions(retry_s=retry_s)
        if isinstance(self.options, ClusterOptions) and not isinstance(self._given, Client):
            self.options = with_tls(self._given, self.options)  # the CA of this process, for workers elsewhere too
        self._opened: list[Client] = []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": []}

    def __repr__(self) -> str:
        return repr(self._given.url if isinstance(self._given, Client) else self._given)

    @property
    def address(self) -> str:
        """The store's URL, independent of how a path is written."""
        if isinstance(self._given, Client):
            return self._given.url
        if self._given.startswith(ENDPOINT_SCHEMES):
            return self._given
        scheme = NODE_SCHEME if self._given.startswith(NODE_SCHEME) else "file://"
        return ",".join(scheme + os.path.abspath(folder) for folder in store_folders(self._given))

    def listed(self, url: str, *, pinned: bool) -> Sequence[Entry]:
        """Return entries of the objects under `ais://bucket/prefix`, or in a remote place such as s3://bucket/prefix.
        Raises InvalidRequest if there are none."""
        if is_place(url):
            return self._listed_place(url, pinned=pinned)
        bucket, _, prefix = url.removeprefix(SCHEME).partition("/")
        if not url.startswith(SCHEME) or not bucket:
            hint = f"; did you mean 'ais://{url}/'?" if "/" not in url else ""
            raise InvalidRequest(
                f"{url!r}: need a list of entries, or the URL of a prefix, ais://bucket/prefix, or the path of a saved "
                f"EntryTable{hint}"
            )
        with self.opened() as client:
            found = client.bucket(bucket).entries(prefix, pinned=pinned)
        if not found:
            hint = ""
            if is_pattern(prefix):
                top = prefix[: prefix.rfind("/") + 1]
                hint = (
                    f"; a prefix is not a pattern: pass client.bucket({bucket!r}).entries({top!r}, "
                    f"pattern={prefix[len(top) :]!r})"
                )
            raise InvalidRequest(
                f"{url!r}: no object of bucket {bucket!r} has a name that begins with {prefix!r}{hint}"
            )
        return found

    def _listed_place(self, url: str, *, pinned: bool) -> Sequence[Entry]:
        given = self._given
        if not isinstance(given, Client) and not self.is_shared:
            raise InvalidRequest(
                f"{url!r} with the embedded store {given!r}: workers only read it, and cannot fetch into it; use "
                f"{NODE_SCHEME}{os.path.abspath(given)}, a node that all processes of this machine share"
            )
        with self.opened("a") as client:
            bucket, prefix = place_bucket(client, url)
            found = bucket.entries(prefix, pinned=pinned)
        if not found:
            raise InvalidRequest(f"{url!r}: there is no object with this prefix, or the place cannot be listed")
        return found

    @contextmanager
    def opened(self, mode: Literal["a", "r"] = "r") -> Iterator[Client]:
        """Context of a client that is closed again, lest what is forked afterwards inherit it."""
        if isinstance(self._given, Client):
            yield self._given
            return
        with connect(self._given, mode=mode, options=self.options) as client:
            yield client

    @property
    def is_shared(self) -> bool:
        """Whether other clients here can have an effect on the store: it is one of nodes, or the caller's own."""
        return isinstance(self._given, Client) or is_remote(self._given)

    @property
    def is_remote(self) -> bool:
        """Whether the store is behind nodes, so that a request can be sent ahead of its use."""
        return is_remote(self._given.url if isinstance(self._given, Client) else self._given)

    def get(self) -> Client:
        info = get_worker_info()
        if info is not None and getattr(info, "worker_method", "multiprocessing") == "multiprocessing":  # not a thread
            exit_with_trainer()
        if isinstance(self._given, Client):
            return self._given
        if not self._opened:
            # Threads may come here together. The first one that is done decides, without a lock that a fork inherits.
            self._opened.append(connect(self._given, mode="r", options=self.options))
        return self._opened[0]


_OTHER = re.compile(r"[^A-Za-z0-9_.-]+")
_MAX_NAME = 63


def is_place(url: str) -> bool:
    """Whether the text is the URL of a remote place, such as s3://bucket/prefix."""
    return url.partition("://")[0] in SCHEMES and "://" in url


def split_place(url: str) -> tuple[Remote, str, str]:
    """Split into the remote of the whole cloud bucket, the name of its remote bucket, and the prefix.

    A folder is a place of its own, without a prefix. Raises InvalidRequest.
    """
    scheme, _, rest = url.partition("://")
    root, _, prefix = rest.partition("/")
    remote = Remote(url if scheme == "file" else f"{scheme}://{root}")
    text = _OTHER.sub("-", f"{scheme}-{root or rest}".strip("/")).strip("-.")
    if text != f"{scheme}-{root}" or len(text) > _MAX_NAME:
        text = f"{text[: _MAX_NAME - 9]}-{xxhash.xxh3_64_hexdigest(remote.url.encode())[:8]}"
    return remote, text, "" if scheme == "file" else prefix


def place_bucket(client: Client, url: str) -> tuple[Bucket, str]:
    """Return the remote bucket for a place, created if there is none, and the prefix of the objects.

    An existing bucket of that name keeps its endpoint, profile and rule of validation. Raises InvalidRequest if it has
    another place.
    """
    remote, name, prefix = split_place(url)
    found = {info.name: info for info in client.buckets()}.get(name)
    if found is None:
        return client.create_bucket(name, remote=remote, exist_ok=True), prefix
    if found.remote is None or found.remote.url != remote.url:
        raise InvalidRequest(f"{url!r}: bucket {name!r} exists, and is not a remote one of {remote.url}; name another")
    return client.bucket(name), prefix
