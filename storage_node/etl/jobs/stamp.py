"""Stamp of a result, in its metadata: the version of its source, and the versions of the transforms."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from ais_loader.wire.generated import ais_etl_pb2 as pb
from ais_loader.wire.object_info import Stored
from ais_loader.wire.reserved import ETAG_VERSION, REMOTE_ETAG

SOURCE_KEY = "ais.etl-source"
"""BUCKET/NAME, or BUCKET@SNAPSHOT/NAME."""
VERSION_KEY = "ais.etl-source-version"
STAGES_KEY = "ais.etl-stages"
"""JSON: the name, version (hex) and arguments of each stage; a digest replaces long arguments."""
JOB_KEY = "ais.etl-job"
"""Uuid of the job (hex); absent from results of single copies."""
_ARGS_BYTES = 512
"""Longer arguments would take too much of the space for metadata."""


def stages_text(stages: Sequence[pb.JobStage]) -> str:
    found = [[stage.name, stage.uuid.hex(), _short(stage.args)] for stage in stages]
    return json.dumps(found, ensure_ascii=True, separators=(",", ":"))


def _short(args: str) -> str:
    if len(args) <= _ARGS_BYTES and args.isascii() and args.isprintable():
        return args
    return "sha256:" + hashlib.sha256(args.encode()).hexdigest()


def stamp(source: str, version: str, stages: str, job_uuid: bytes = b"") -> dict[str, str]:
    """Return the metadata of a result. `source`: BUCKET/NAME; `stages`: see `stages_text`."""
    metadata = {SOURCE_KEY: source, VERSION_KEY: version, STAGES_KEY: stages}
    return metadata | {JOB_KEY: job_uuid.hex()} if job_uuid else metadata


def source_version(source: Stored) -> str:
    """Return the version of a source in a stamp: a copy's is its remote object's, which outlives the copy."""
    etag = source.metadata.get(REMOTE_ETAG)
    return f"{ETAG_VERSION}{etag}" if etag else source.version


def is_result(metadata: Mapping[str, str], source: str, version: str, stages: str) -> bool:
    """Return whether an object equals the result that would be made now. The job that made it does not matter."""
    found = metadata.get(SOURCE_KEY), metadata.get(VERSION_KEY), metadata.get(STAGES_KEY)
    return found == (source, version, stages)
