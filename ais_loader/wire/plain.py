"""Messages as plain values: for JSON, and for the values that callers get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message


def plain(message: Message) -> dict[str, Any]:
    """Return all fields of a message by their names, as lists, dicts and values.

    A value of an enumeration is its name in small letters. An optional value that is not given is None.
    """
    return {field.name: _plain(message, field) for field in message.DESCRIPTOR.fields}


def _plain(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if isinstance(value, Message):
        return plain(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(one) if isinstance(one, Message) else one for one in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return field.enum_type.values_by_number[value].name.lower() if field.enum_type is not None else value
