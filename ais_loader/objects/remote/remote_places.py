"""Remote places as data sets: the remote bucket that stands for a cloud bucket, created on demand.

There is one for each cloud bucket or server, named after it, whatever the prefix: jobs that read different prefixes of
a cloud bucket share the copies.
"""

from __future__ import annotations

import re

import xxhash

from ais_loader.errors import InvalidRequest
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.wire.remote import SCHEMES, Remote

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
