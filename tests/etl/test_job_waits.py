"""Waiting for a job whose nodes do not answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from ais_loader.errors import LoaderError, NodeUnavailable, SilenceTimeout
from ais_loader.transforms import transform_job
from ais_loader.transforms.transform_job import TransformJob
from ais_loader.wire.generated import ais_etl_pb2 as pb


class Silent:
    """A transport over which no node answers."""

    tries = 0

    def watch_job(self, name: str) -> Iterator[pb.JobInfo]:
        self.tries += 1
        if self.tries == 1000:
            raise AssertionError("it is still waiting")
        raise NodeUnavailable("nobody answers")
        yield


def failure(timeout_s: float | None) -> LoaderError:
    job = pb.TransformJob(name="j", state=pb.TransformJob.RUNNING)
    with pytest.raises(LoaderError) as raised:
        TransformJob(cast(Any, Silent()), pb.JobInfo(job=job)).wait(timeout_s)
    return raised.value


def test_a_wait_ends_after_its_time_while_no_node_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transform_job, "_RETRY_S", 1e9)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    found = failure(0.0)
    assert isinstance(found, SilenceTimeout)
    assert str(found) == "no node says in time whether job 'j' has ended: nobody answers"


def test_without_a_limit_it_ends_when_no_node_has_answered_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transform_job, "_RETRY_S", 0.0)
    assert isinstance(failure(None), NodeUnavailable)
