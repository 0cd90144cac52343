"""Stamp of a result, in its metadata: the source version that it was made of, and the transforms' versions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from ais_loader.wire.generated import ais_etl_pb2 as pb

SOURCE_KEY = "ais.etl-source"
"""BUCKET/NAME, or BUCKET@SNAPSHOT/NAME."""
VERSION_KEY = "ais.etl-source-version"
STAGES_KEY = "ais.etl-stages"
"""JSON: of each stage its name, its version (hex), and its arguments, or their digest where they are long."""
JOB_KEY = "ais.etl-job"
"""The job's uuid (hex); not of results of single copies."""
_ARGS_BYTES = 512
"""Longer arguments would take the room of the other metadata."""


def stages_text(stages: Sequence[pb.JobStage]) -> str:
    found = [[stage.name, stage.uuid.hex(), _short(stage.args)] for stage in stages]
    return json.dumps(found, ensure_ascii=True, separators=(",", ":"))


def _short(args: str) -> str:
    if len(args) <= _ARGS_BYTES and args.isascii() and args.isprintable():
        return args
    return "sha256:" + hashlib.sha256(args.encode()).hexdigest()


def stamp(source: str, version: str, stages: str, job_uuid: bytes = b"") -> dict[str, str]:
    """`source`: BUCKET/NAME; `stages`: see `stages_text`."""
    made = {SOURCE_KEY: source, VERSION_KEY: version, STAGES_KEY: stages}
    return made | {JOB_KEY: job_uuid.hex()} if job_uuid else made


def is_result(metadata: Mapping[str, str], source: str, version: str, stages: str) -> bool:
    """Whether an object is what would be made again. Whose job it was does not matter."""
    found = metadata.get(SOURCE_KEY), metadata.get(VERSION_KEY), metadata.get(STAGES_KEY)
    return found == (source, version, stages)
