"""Part of one node in a job: its counts and failures for one division of the sources."""

from __future__ import annotations

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.etl.jobs.shares import Division

MAX_FAILURES = 10_000
"""Maximum number of stored failures; further ones are only counted."""


class Part:
    """Counts and failures of a node. They are reset at every pass over the sources, which then counts all of the node's
    sources in that division."""

    def __init__(self, node_uuid: bytes) -> None:
        self._node_uuid = node_uuid
        self.division = Division()
        self.finished = False
        self.counts = pb.JobCounts()
        self.failures: list[pb.JobFailure] = []

    def begin(self, division: Division) -> None:
        self.division, self.finished = division, False
        self.counts = pb.JobCounts(busy_s=self.counts.busy_s)
        self.failures = []

    def failed(self, name: str, version: str, error: LoaderError) -> None:
        self.counts.failed += 1
        if len(self.failures) < MAX_FAILURES:
            message = str(error).encode("utf-8", "backslashreplace").decode()
            self.failures.append(
                pb.JobFailure(object=name, version=version, error={"kind": error.kind, "message": message})
            )

    def message(self) -> pb.NodeJob:
        return pb.NodeJob(
            node_uuid=self._node_uuid,
            layout=self.division.layout,
            without=self.division.without,
            finished=self.finished,
            counts=self.counts,
            answers=True,
        )
