"""The fields of a BatchRequest: which belong to an entry each, and what becomes of the others when a request is cut
into parts.

Every field of the message is in one of the four groups; a test reads the message's descriptor and fails for one that is
in none. Whoever copies requests, or answers them by a short way, goes by these groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableSequence, Sequence
from typing import Any

from ais_loader.wire.generated import ais_batch_pb2 as pb

ENTRY_COLUMNS = ("bucket_index", "name", "member", "start", "length", "version", "transform_index")
"""One value for each entry, or none at all."""
SHARED = ("bucket", "verify_ranges", "tenant", "request_id", "metadata", "transform")
"""The same in every part, whoever cuts."""
ANSWERING = ("fail_fast", "ordered", "buffered", "deadline_ms")
"""How the whole is to be answered: of a part, whoever cuts says how."""
PER_REQUEST = (
    "first_index",
    "initial_credit_bytes",
    "receiver_checks",
    "resume_offset",
    "resume_checksum",
    "resume_version",
    "map_version",
    "local",
)
"""Of one request, to one node: never carried over."""


def entry_values(request: pb.BatchRequest) -> dict[str, MutableSequence[Any]]:
    """The entry columns that a request has, as views of it."""
    columns = ((name, getattr(request, name)) for name in ENTRY_COLUMNS)
    return {name: values for name, values in columns if values}


def add_entries(part: pb.BatchRequest, values: Mapping[str, Sequence[Any]], positions: Sequence[int]) -> None:
    """Append the entries at these positions of such columns."""
    for name, of_column in values.items():
        getattr(part, name).extend([of_column[at] for at in positions])


def carry_over(request: pb.BatchRequest, part: pb.BatchRequest, fields: Collection[str]) -> None:
    """Copy those of these fields that are set; lists and maps of `part` are added to."""
    for field, value in request.ListFields():
        if field.name not in fields:
            continue
        if isinstance(value, str | int):
            setattr(part, field.name, value)
        elif isinstance(value, Mapping):
            getattr(part, field.name).update(value)
        else:
            getattr(part, field.name).extend(value)
