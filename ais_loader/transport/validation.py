"""Validation of names and metadata on the client: strings without a UTF-8 form, which no request can carry and no store
can hold; and names that no archive may contain."""

from __future__ import annotations

import operator
import textwrap
import unicodedata
from collections.abc import Mapping
from typing import Any

from ais_loader import errors
from ais_loader.wire.reserved import require_unreserved

MAX_COPIES = 2**32 - 1
"""Largest number of copies of an object that a request can carry. A store keeps at most one on each host."""
MAX_METADATA_BYTES = 4096
"""Largest size of keys and values together, in UTF-8; the limit of the nodes."""


def require_text(text: str, refusal: type[errors.LoaderError], what: str) -> None:
    """Check a string. Raises `refusal` for a lone surrogate, InvalidRequest for anything but a string."""
    if not isinstance(text, str):
        raise errors.InvalidRequest(f"{what} {textwrap.shorten(repr(text), 60)}: need a str, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise refusal(f"{what} {text!r}: not valid Unicode (a lone surrogate has no UTF-8 form)") from None


def whole_number(what: str, value: Any, *, least: int, most: int | None = None) -> int:
    """Convert an integer of any type to int. Raises InvalidRequest if it is out of bounds, TypeError."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is a {type(value).__name__}; need an int") from None
    if number < least:
        raise errors.InvalidRequest(f"{what}={number}: need at least {least}")
    if most is not None and number > most:
        raise errors.InvalidRequest(f"{what}={number}: need at most {most:,}")
    return number


def require_metadata(metadata: Mapping[str, str]) -> None:
    """Check metadata. Raises InvalidRequest unless it is small and maps strings to strings, without control characters
    and reserved keys.

    Values may contain tabs and line ends, keys may not.
    """
    size_bytes = 0
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise errors.InvalidRequest(f"metadata maps str to str, got {key!r}: {value!r}")
        for text, where, allowed in ((key, "key", ""), (value, "value", "\t\n\r")):
            require_text(text, errors.InvalidRequest, f"metadata, {where}")
            size_bytes += len(text.encode())
            if not text.isprintable():
                for char in text:
                    if unicodedata.category(char) == "Cc" and char not in allowed:
                        raise errors.InvalidRequest(f"metadata {key!r}: control character {char!r} in its {where}")
    require_unreserved(metadata)
    if size_bytes > MAX_METADATA_BYTES:
        raise errors.InvalidRequest(
            f"metadata has {size_bytes:,} bytes, keys and values together; {MAX_METADATA_BYTES:,} are allowed"
        )


def require_bucket(name: str) -> None:
    """Check the name of a bucket for any call but its creation. Raises BucketNotFound."""
    require_text(name, errors.BucketNotFound, "bucket name")


def require_object(bucket: str, name: str) -> None:
    """Check the name of an object for any call but a put. Raises BucketNotFound, ObjectNotFound."""
    require_bucket(bucket)
    require_text(name, errors.ObjectNotFound, "object name")


def member_name_fault(name: str) -> str | None:
    """Return why no archive created here may have a member of this name; None if it may. A tool that extracts members
    without checking their names would write outside of the chosen folder."""
    if name.startswith("/"):
        return "it is absolute"
    components = name.split("/")
    if ".." in components:
        return "it has the component '..'"
    return "it has an empty component" if "" in components else None
