"""Conversion of entries to requests: pure functions. A request consists of columns, and carries a limited number."""

from __future__ import annotations

import numbers
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from ais_loader.errors import InvalidRequest
from ais_loader.name_matching import unknown_option
from ais_loader.values.entry import Entry, EntryLike, MemberInfo, ObjectInfo, to_entry
from ais_loader.values.pipeline import Etl, args_text, to_pipeline
from ais_loader.values.urls import SCHEME
from ais_loader.wire.generated import ais_batch_pb2 as pb

MAX_ENTRIES_PER_REQUEST = 10_000
_FIELDS = attrgetter("bucket", "name", "member", "start", "length", "version", "etl", "args")
_NUMBERS = (float, int, numbers.Real)
OnError: TypeAlias = Literal["raise", "placeholder"]


def checked_timeout_s(timeout_s: float) -> float:
    """Check a timeout. Raises InvalidRequest for anything but a positive, finite number of seconds."""
    # The concrete types come first: the check against numbers.Real costs more than the rest of a call.
    if not isinstance(timeout_s, _NUMBERS) or not 0 < timeout_s < float("inf"):
        raise InvalidRequest(f"timeout_s={timeout_s!r}: need a number of seconds above 0")
    return float(timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """How to fetch a batch. None of these options changes which bytes an entry has."""

    on_error: OnError = "raise"
    """"raise" stops at the first entry that fails. "placeholder" delivers it in its place, with its status."""
    timeout_s: float = 30.0
    """The longest time to wait for the next data, in seconds. The batch as a whole has no time limit."""
    ordered: bool = True
    """False delivers items as they arrive, each with its index, so that nothing waits for a slow node. This matters
    only in a cluster: a single store, embedded or on one node, delivers them in order anyway.
    """
    streaming: bool = True
    """False makes the node collect the whole response before it sends any of it."""
    assembly: Literal["auto", "target", "direct"] = "auto"
    """Where the parts that a cluster's nodes send are put together: "direct" in this process, with a session to each
    node; "target" on one of the nodes, with a single session. "auto" uses "direct" in clusters of up to 64 nodes, and
    in larger ones if the batch has enough entries for each node, but "target" for several entries of an erasure coded
    bucket. A single store needs neither.
    """
    colocation: Literal["none", "owner", "shard"] = "none"
    """Which node is the "target": with "none" each client chooses one, so that clients spread over the nodes; "owner"
    and "shard" choose the node that has most of the batch's entries.
    """
    verify_ranges: bool = True
    """Verify byte ranges against the stored block checksums, which reads whole blocks of 256 KiB. False returns ranges
    without a look at their bytes. Whole objects and whole members are always verified.
    """

    def __post_init__(self) -> None:
        choices = {
            "on_error": ("raise", "placeholder"),
            "assembly": ("auto", "target", "direct"),
            "colocation": ("none", "owner", "shard"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InvalidRequest(f"{name}={getattr(self, name)!r}: one of {', '.join(map(repr, allowed))}")
        for name in ("ordered", "streaming", "verify_ranges"):
            value = getattr(self, name)
            if value is not True and value is not False:
                if not isinstance(value, np.bool_):
                    raise TypeError(f"{name} is a {type(value).__name__}; need True or False")
                object.__setattr__(self, name, bool(value))
        # A plain float: gRPC does not accept numpy's types.
        object.__setattr__(self, "timeout_s", checked_timeout_s(self.timeout_s))


_DEFAULTS = BatchOptions()


def batch_options(
    function: str,
    options: Mapping[str, Any],
    elsewhere: Mapping[str, str] | None = None,
    *,
    parameters: Iterable[str] = (),
) -> BatchOptions:
    """Return the options with which `function` was called.

    Args:
        elsewhere: Names that are not options of `function`, and where they belong.
        parameters: The other keyword parameters of `function`, which are suggested for misspelled names too.

    Raises TypeError for an unknown option, with the nearest known name; InvalidRequest for an invalid value.
    """
    if not options:
        return _DEFAULTS
    try:
        return BatchOptions(**options)
    except TypeError:
        known = [field.name for field in fields(BatchOptions)]
        unknown = next((name for name in options if name not in known), None)
        if unknown is None:
            raise
    raise unknown_option(function, unknown, [*parameters, *known], elsewhere)


def require_many(what: str, values: object) -> None:
    """Require several values. Raises TypeError for a single name or entry, and for a value that is not iterable."""
    if isinstance(values, (str, bytes, Entry, ObjectInfo, MemberInfo)):
        raise TypeError(f"{what} is one {type(values).__name__}; pass a list of {what}")
    if not isinstance(values, Iterable) and not hasattr(values, "__getitem__"):
        raise TypeError(f"{what} is a {type(values).__name__}; pass a list of {what}")


def to_entries(entries: Iterable[EntryLike], bucket: str | None = None) -> list[Entry]:
    """Convert entries, parsing URLs, and taking names as those of `bucket`. Raises InvalidRequest, TypeError."""
    require_many("entries", entries)
    return [entry if type(entry) is Entry else to_entry(entry, bucket) for entry in entries]


def plain_names(entries: Iterable[EntryLike]) -> list[str] | None:
    """Return the entries if they are names only, which needs no Entry for each; None if they are not, or none."""
    if not isinstance(entries, list | tuple) or set(map(type, entries)) != {str}:
        return None
    names = cast("list[str]", list(entries))
    return None if SCHEME in "\n".join(names) else names


def requests_for_entries(
    entries: Sequence[EntryLike], options: BatchOptions
) -> tuple[list[Entry], list[pb.BatchRequest]]:
    """Return the entries, with URLs parsed, and the requests for them. Raises InvalidRequest, TypeError."""
    parsed = to_entries(entries)
    requests = []
    for first in range(0, len(parsed), MAX_ENTRIES_PER_REQUEST):
        part = parsed[first : first + MAX_ENTRIES_PER_REQUEST]
        request = _request(first, options)
        buckets, names, members, starts, lengths, versions, etls, args = zip(*map(_FIELDS, part), strict=True)
        _set_names(request, names)
        table = dict.fromkeys(buckets)
        for bucket in table:
            if not isinstance(bucket, str):
                raise InvalidRequest(f"Entry.bucket must be a str: {bucket!r} is a {type(bucket).__name__}")
        request.bucket.extend(table)
        if len(table) > 1:
            position = {bucket: at for at, bucket in enumerate(table)}
            request.bucket_index.extend([position[bucket] for bucket in buckets])
        if any(member is not None for member in members):
            _extend(request.member, "member", [member or "" for member in members])
        if any(starts) or any(length is not None for length in lengths):
            request.start.extend(map(_int64, starts))
            # -1 means "to the end" on the wire; a caller's own -1 must not.
            request.length.extend([-1 if it is None else -2 if it < 0 else _int64(it) for it in lengths])
        if any(version is not None for version in versions):
            _extend(request.version, "version", [version or "" for version in versions])
        if any(etl is not None for etl in etls) or any(arg is not None for arg in args):
            _set_transforms(request, part)
        requests.append(request)
    return parsed, requests


def request_for_transformed(bucket: str, name: str, etl: Etl, args: Mapping[str, Any] | None) -> pb.BatchRequest:
    """Build a request for a whole object, passed through transforms. Raises InvalidRequest, TypeError."""
    request = pb.BatchRequest(bucket=(bucket,), fail_fast=True, ordered=True, transform_index=(1,))
    _set_names(request, (name,))
    stages = request.transform.add().stage
    if type(etl) is str and etl and args is None:  # the simplest case, called thousands of times a second
        stages.add(name=etl)
        return request
    for stage in to_pipeline(etl, args).stages:
        stages.add(name=stage.name, args=args_text(stage.args))
    return request


def _set_transforms(request: pb.BatchRequest, entries: Sequence[Entry]) -> None:
    known: dict[tuple[tuple[str, str], ...], int] = {}
    for entry in entries:
        if entry.etl is None:
            if entry.args is not None:
                raise InvalidRequest(f"{entry.name!r}: args are the arguments of a transform: pass etl, too")
            request.transform_index.append(0)
            continue
        stages = tuple((stage.name, args_text(stage.args)) for stage in to_pipeline(entry.etl, entry.args).stages)
        at = known.get(stages)
        if at is None:
            call = pb.TransformCall(stage=[pb.TransformStage(name=name, args=args) for name, args in stages])
            request.transform.append(call)
            at = known[stages] = len(request.transform)
        request.transform_index.append(at)


def requests_for_names(
    bucket: str, names: Sequence[str], options: BatchOptions, versions: Sequence[str] = ()
) -> list[pb.BatchRequest]:
    """Build requests in the columnar short form: whole objects of one bucket, in these versions if there are any."""
    require_many("names", names)
    requests = []
    for first in range(0, len(names), MAX_ENTRIES_PER_REQUEST):
        request = _request(first, options)
        request.bucket.append(bucket)
        _set_names(request, names[first : first + MAX_ENTRIES_PER_REQUEST])
        _extend(request.version, "version", versions[first : first + MAX_ENTRIES_PER_REQUEST])
        requests.append(request)
    return requests


def _request(first: int, options: BatchOptions) -> pb.BatchRequest:
    return pb.BatchRequest(
        first_index=first,
        fail_fast=options.on_error == "raise",
        ordered=options.ordered,
        buffered=not options.streaming,
        verify_ranges=options.verify_ranges,
        request_id=os.urandom(8).hex(),
    )


def _set_names(request: pb.BatchRequest, names: Sequence[str]) -> None:
    _extend(request.name, "name", names)


def _extend(column: Any, what: str, values: Sequence[str]) -> None:
    """Add to a column of strings. Raises InvalidRequest with the first value that is not one."""
    try:
        column.extend(values)
    except (TypeError, UnicodeEncodeError, ValueError) as error:
        others = [value for value in values if not isinstance(value, str)]
        reason = f"{others[0]!r} is a {type(others[0]).__name__}" if others else str(error)
        raise InvalidRequest(f"a {what} must be a str with a UTF-8 form: {reason}").caused_by(error) from None


def _int64(value: int) -> int:
    # A value beyond the largest object is as far out of range as the largest number.
    return max(-(2**63), min(value, 2**63 - 1))


def transformed_of(requests: Sequence[pb.BatchRequest]) -> npt.NDArray[np.bool_] | None:
    """Return which entries of all requests, by their indexes, pass through transforms; None if none does."""
    if not any(request.transform for request in requests):
        return None
    return np.concatenate(
        [
            np.array(request.transform_index, np.bool_)
            if request.transform_index
            else np.zeros(len(request.name), np.bool_)
            for request in requests
        ]
    )
