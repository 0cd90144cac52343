"""Providers of buckets, as AIStore names them: its own, and remote storage."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ais_loader.objects.bucket import Bucket
from ais_loader.transport.base import BucketInfo

from .errors import AISError

_ALIASES = {
    "": "ais",
    "ais": "ais",
    "aws": "aws",
    "s3": "aws",
    "gcp": "gcp",
    "gs": "gcp",
    "azure": "azure",
    "az": "azure",
    "oci": "oci",
    "oc": "oci",
    "ht": "ht",
}
_OF_SCHEME = {"s3": "aws", "gs": "gcp", "az": "azure", "azure": "azure", "http": "ht", "https": "ht"}
_BUCKET = re.compile(r"(?!\.)[A-Za-z0-9_.-]{1,63}(@[A-Za-z0-9_.-]{1,63})?\Z")


def provider_named(query: Mapping[str, str], parameter: str = "provider") -> str:
    """Return the provider that a query names. Raises AISError for an unknown one, and for a namespace."""
    text = query.get(parameter, "")
    if text not in _ALIASES:
        raise AISError(400, f"invalid provider {text[:40]!r}", "ErrInvalidBackendProvider")
    if query.get("namespace", "") not in ("", "@#"):
        raise AISError(400, f"namespace {query['namespace'][:80]!r}: buckets have no namespaces here")
    return _ALIASES[text]


def provider_of(info: BucketInfo) -> str:
    """Return the provider of a bucket: "ais" unless it is remote."""
    if info.remote is None:
        return "ais"
    return _OF_SCHEME.get(str(info.remote.url).partition("://")[0].lower(), "ais")


def check_bucket_name(name: str) -> None:
    """Raise AISError unless `name` is that of a bucket, or of one of its snapshots."""
    if not name:
        raise AISError(400, "the name of the bucket is missing")
    if not _BUCKET.match(name):
        raise AISError(400, f"bucket name {name[:80]!r}: need 1 to 63 letters, digits, '-', '_' and '.'")


def keeps_copies(bucket: Bucket) -> bool:
    """Whether reads of a remote bucket may be answered from stored copies that are not the latest."""
    remote = bucket.info().remote
    return remote is not None and remote.validate != "always"
