"""Requests with transforms: their validation, and the request for their inputs. Pure functions."""

from __future__ import annotations

import json

from ais_loader.errors import InvalidRequest
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.read.frame_plan import check_columns

MAX_STAGES, MAX_ARGS_BYTES, MAX_CALLS = 16, 64 << 10, 256


def check_calls(request: pb.BatchRequest) -> None:
    """Check the transforms of a request. Raises InvalidRequest."""
    if len(request.transform) > MAX_CALLS:
        raise InvalidRequest(f"{len(request.transform)} transforms in one request, at most {MAX_CALLS}")
    check_columns(request, len(request.name))
    for call in request.transform:
        if not 0 < len(call.stage) <= MAX_STAGES:
            raise InvalidRequest(f"a pipeline of {len(call.stage)} stages: need 1 to {MAX_STAGES}")
        for stage in call.stage:
            if len(stage.args) > MAX_ARGS_BYTES:
                raise InvalidRequest(
                    f"{stage.name}: {len(stage.args):,} characters of args, at most {MAX_ARGS_BYTES:,}"
                )
            try:
                if stage.args:
                    json.loads(stage.args)
            except ValueError as error:
                raise InvalidRequest(f"{stage.name}: args are no JSON: {error}") from error


def inputs_of(request: pb.BatchRequest) -> pb.BatchRequest:
    """Return the request for the inputs, as they are stored."""
    plain = pb.BatchRequest()
    plain.CopyFrom(request)
    del plain.transform[:], plain.transform_index[:]
    plain.ClearField("resume_offset")
    plain.ClearField("resume_checksum")
    transformed = bool(request.transform_index and request.transform_index[0])
    if request.resume_version and not transformed and not (request.version and request.version[0]):
        # An entry without transform is resumed in the version of its first part; a result starts over if the object has
        # changed.
        if not plain.version:
            plain.version.extend([""] * len(plain.name))
        plain.version[0] = request.resume_version
    plain.ClearField("resume_version")
    return plain
