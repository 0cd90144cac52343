"""Keys of S3 and names of objects. They are the same, except for markers of folders.

A marker is a key that ends with a slash, such as `d/`. No object's name ends so. The marker is stored as `d/` followed
by the character U+0001, which sorts before all others that a name can have, so that keys and names have one order.
"""

from __future__ import annotations

from storage_node.store.names import object_name_fault

from .errors import S3Error

MARKER = "\x01"
_AFTER = "\U0010ffff"


def name_of(key: str) -> str:
    """Return the object's name. Raises S3Error for a key that no object can have, with the reason."""
    if key.endswith("/" + MARKER):
        raise S3Error("InvalidArgument", f"key {key[:80]!r}: the gateway keeps names that end so to itself")
    if key.startswith("/"):
        raise S3Error("InvalidArgument", f"key {key[:80]!r}: it begins with '/'")
    name = key + MARKER if key.endswith("/") else key
    fault = object_name_fault(name)
    if fault is not None:
        code = "KeyTooLongError" if len(name.encode("utf-8", "replace")) > 1024 else "InvalidArgument"
        raise S3Error(code, f"key {key[:80]!r}: {fault}")
    return name


def check_prefix(prefix: str) -> str:
    """Return a prefix of names. Raises S3Error for one of names that the store keeps to itself, such as parts."""
    if prefix.startswith("/"):
        raise S3Error("InvalidArgument", f"prefix {prefix[:80]!r}: it begins with '/'")
    return prefix


def key_of(name: str) -> str:
    """Return the key of an object."""
    return name[:-1] if name.endswith("/" + MARKER) else name


def behind(prefix: str) -> str:
    """Return a text that follows all names that begin with `prefix`, and precedes all others that follow them."""
    return prefix + _AFTER * max(1, (1024 - len(prefix.encode())) // 4)
