"""Jobs of access keys that share the token, or the lack of one, with which the gateway calls the store."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ais_loader.integrations.gateway.aistore import jobs, recent_jobs
from ais_loader.integrations.gateway.aistore.jobs import JobOutcome, Stopping
from ais_loader.integrations.gateway.clients import Account, Clients
from ais_loader.transforms.etl import Transforms
from ais_loader.transforms.transform_job import JobCounts
from tests.gateway.aistore.calls import action
from tests.gateway.aistore.conftest import Ais
from tests.gateway.gateway_thread import GatewayThread


@dataclass
class Owned:
    """A request of a key."""

    access_key: str


@dataclass
class FakeJob:
    """A job of a store."""

    name: str
    state: str = "running"
    problem: str = ""
    inspect: bool = False
    counts: JobCounts = field(default_factory=JobCounts)

    def stop(self) -> None:
        self.state = "stopped"


def test_keys_that_share_a_client_have_jobs_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this process, and of the store, whose names have a mark of their key."""
    monkeypatch.setattr(jobs, "_AT_ONCE_S", 0.0)
    keys = {name: Account(name, "secret") for name in ("a", "b")}
    stored = [FakeJob(jobs.new_store_job(Owned(key), "etl-bck")) for key in ("a", "b", "")]  # type: ignore[arg-type]
    monkeypatch.setattr(Transforms, "jobs", lambda _: stored)
    stopped = threading.Event()
    with closing(Clients(str(tmp_path / "store"), keys.values())) as clients, GatewayThread(clients, keys) as gateway:
        a, b = (Ais(gateway.port, f"Bearer {key}:secret") for key in keys)

        def endless(stopping: Stopping) -> JobOutcome:
            assert stopped.wait(180)
            stopping.check()
            return JobOutcome()

        response = jobs.answer_when_done(recent_jobs.recent_jobs(clients.of(keys["a"]), "a"), "copy-bck", endless)
        (copy,) = [
            job["uuid"] for job in a("GET", "cluster", {}, what="status_all").json() if job["kind"] == "copy-bck"
        ]
        own, others, unmarked = (job.name for job in stored)
        for ais, seen, hidden in ((a, {copy, own, unmarked}, others), (b, {others, unmarked}, own)):
            assert {job["uuid"] for job in ais("GET", "cluster", {}, what="status_all").json()} == seen
            assert {one.partition("[")[2][:-1] for one in ais("GET", "cluster", {}, what="running_all").json()} == seen
            for what in ("status", "qryxstats"):
                assert ais("GET", "cluster", {"ID": hidden}, what=what).status == 404
            assert ais("PUT", "cluster", action("stop", {"ID": hidden})).status == 400
        assert b("PUT", "cluster", action("stop", {"ID": copy})).status == 400
        for kind in ("copy-bck", "etl-bck"):
            assert b("PUT", "cluster", action("stop", {"Kind": kind})).status == 200
        assert [job.state for job in stored] == ["running", "stopped", "stopped"]
        stopped.set()
        pieces: Any = response.body
        assert b"".join(pieces).lstrip(b"0").count(b"-") == 4  # it ended without an error
        assert a("PUT", "cluster", action("stop", {"ID": own})).status == 200 and stored[0].state == "stopped"
