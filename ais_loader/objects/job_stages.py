"""Stages of a job, from what a caller says of its transforms: a name, a stage with arguments, or several in a row."""

from __future__ import annotations

from ais_loader.values.pipeline import Etl, args_text, to_pipeline
from ais_loader.wire.generated import ais_etl_pb2 as pb


def job_stages(etl: Etl) -> list[pb.JobStage]:
    """Raises InvalidRequest, TypeError."""
    return [pb.JobStage(name=stage.name, args=args_text(stage.args)) for stage in to_pipeline(etl).stages]
