"""Properties of a bucket in AIStore's terms. Clients read them all; most cannot be changed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ais_loader.objects.bucket import Bucket
from ais_loader.transport.base import BucketInfo
from storage_node.gateway.aistore.errors import AISError, unsupported
from storage_node.gateway.aistore.providers import provider_of

ALL_ACCESS = str(2**64 - 1)


def props_of(info: BucketInfo) -> dict[str, Any]:
    """Return a bucket's properties in AIStore's terms."""
    nothing = {"name": "", "provider": "", "namespace": {"uuid": "", "name": ""}}
    return {
        "provider": provider_of(info),
        "backend_bck": nothing,
        "checksum": {"type": "crc32c", "validate_cold_get": False, "validate_warm_get": True},
        "versioning": {"enabled": True, "validate_warm_get": False, "synchronize": False},
        "mirror": {"enabled": info.copies > 1, "copies": info.copies, "burst_buffer": 0},
        "ec": {"enabled": False, "data_slices": 0, "parity_slices": 0, "objsize_limit": 0},
        "lru": {"enabled": info.remote is not None},
        "access": ALL_ACCESS,
        "features": "0",
        "bid": str(int(info.uuid.replace("-", "")[:15] or "0", 16)),
        "created": "0",
        "write_policy": {"data": "", "md": ""},
    }


def change_props(bucket: Bucket, wanted: Mapping[str, Any]) -> None:
    """Change a bucket's properties. Raises AISError, and changes nothing, if one has no meaning here."""
    current = props_of(bucket.info())
    copies = _copies(wanted, current)
    if copies != current["mirror"]["copies"]:
        bucket.set(copies=copies)


def require_defaults(wanted: Mapping[str, Any]) -> int:
    """Return the number of copies that a new bucket is to have. Raises AISError for properties without a meaning."""
    return _copies(wanted, props_of(BucketInfo("", "0", 1)))


def _copies(wanted: Mapping[str, Any], current: Mapping[str, Any]) -> int:
    """Return the number of copies that properties ask for. Raises AISError for any other change."""
    mirror = wanted.get("mirror") or {}
    _require_same({**wanted, "mirror": {}}, current, "")
    if not isinstance(mirror, dict) or mirror.keys() - {"enabled", "copies", "burst_buffer"}:
        raise unsupported("this property of mirror")
    copies = 1 if mirror.get("enabled") is False else mirror.get("copies", current["mirror"]["copies"])
    if type(copies) is not int or (copies == 1 and mirror.get("enabled")):
        raise AISError(400, "mirror: need the number of copies, 2 or more if it is enabled")
    return copies


def _require_same(wanted: Mapping[str, Any], current: Mapping[str, Any], place: str) -> None:
    for key, value in wanted.items():
        if value in (None, "", {}):
            continue
        found = current.get(key)
        if isinstance(value, dict) and isinstance(found, dict):
            _require_same(value, found, f"{place}{key}.")
        elif value != found:
            raise unsupported(f"the property {place}{key}={str(value)[:80]!r} of a bucket")
