"""Fields of a BatchRequest: which of them are per entry, and what happens to the others when a request is split.

Every field of the message belongs to one of the four groups below. A test reads the message's descriptor and fails for
a field that belongs to none. Code that copies requests, or answers them on a shorter path, uses these groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableSequence, Sequence
from typing import Any

from ais_loader.wire.generated import ais_batch_pb2 as pb

ENTRY_COLUMNS = ("bucket_index", "name", "member", "start", "length", "version", "transform_index")
"""One value per entry, or none at all."""
SHARED = ("bucket", "verify_ranges", "tenant", "request_id", "metadata", "transform")
"""Copied into every part."""
ANSWERING = ("fail_fast", "ordered", "buffered", "deadline_ms")
"""How the whole request is answered. Whoever splits it sets these for each part."""
PER_REQUEST = (
    "first_index",
    "initial_credit_bytes",
    "receiver_checks",
    "resume_offset",
    "resume_checksum",
    "resume_version",
    "map_version",
    "local",
    "whole_up_to",
    "coded_places",
)
"""Valid for one request to one node; never copied."""


def entry_values(request: pb.BatchRequest) -> dict[str, MutableSequence[Any]]:
    """Return the entry columns that a request has, as views of it."""
    columns = ((name, getattr(request, name)) for name in ENTRY_COLUMNS)
    return {name: values for name, values in columns if values}


def add_entries(part: pb.BatchRequest, values: Mapping[str, Sequence[Any]], positions: Sequence[int]) -> None:
    """Append the entries at these positions of the columns."""
    for name, of_column in values.items():
        getattr(part, name).extend([of_column[at] for at in positions])


def carry_over(request: pb.BatchRequest, part: pb.BatchRequest, fields: Collection[str]) -> None:
    """Copy those of these fields that are set; lists and maps of `part` are extended."""
    for field, value in request.ListFields():
        if field.name not in fields:
            continue
        if isinstance(value, str | int):
            setattr(part, field.name, value)
        elif isinstance(value, Mapping):
            getattr(part, field.name).update(value)
        else:
            getattr(part, field.name).extend(value)
