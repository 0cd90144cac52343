"""Stages of a job, built from a caller's transforms: a name, a stage with arguments, or several in a row."""

from __future__ import annotations

from ais_loader.values.pipeline import Etl, args_text, to_pipeline
from ais_loader.wire.generated import ais_etl_pb2 as pb


def job_stages(etl: Etl) -> list[pb.JobStage]:
    """Convert transforms to stages. Raises InvalidRequest, TypeError."""
    return [pb.JobStage(name=stage.name, args=args_text(stage.args)) for stage in to_pipeline(etl).stages]
