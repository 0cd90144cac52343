"""The Canary-style example on a cluster that `ais-loader cluster up` has started, by itself and as a Ray job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from canary_kit import ROOT, RUN_S, SPEECH, cuts_and_losses, finished, killed_at_the_end, steps_done

import ais_loader
from ais_loader.testing import eventually, throwaway_folder
from examples.canary.corpus import put_corpus
from storage_node.ops import ray_head

STEPS = ("--steps", 40, "--checkpoint-every", 3)


@dataclass(frozen=True)
class Cluster:
    """Three nodes on a Ray of their own, as an operator of this machine has them."""

    root: Path
    url: str
    environment: dict[str, str]
    """With what `ray job submit` needs."""

    def run(self, *arguments: str) -> Any:
        return json.loads(_of_operator(self.root, self.environment, *arguments))

    def pids(self) -> dict[str, int]:
        """Of nodes that serve, by name."""
        nodes = self.run("status")["nodes"]
        return {node["name"]: node["pid"] for node in nodes if node["state"] == "serving"}

    def submit(self, *options: object, wait: bool = True) -> tuple[int, str]:
        """Exit code and output, the job's with it, of the command in docs/lhotse.md."""
        command = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--working-dir", "."]
        done = subprocess.run(
            [
                *command,
                *(() if wait else ("--no-wait",)),
                *("--", "python", "-m", "examples.canary.train", "--url", self.url),
                *map(str, options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_S,
            env=self.environment,
            cwd=ROOT,
        )
        return done.returncode, done.stdout


def _of_operator(root: Path, environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ais_loader.cli", "cluster", *arguments, "--root", str(root), "--json"],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with throwaway_folder() as folder:
        root = folder / "root"
        (folder / "home").mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "AIS_LOADER_"))}
        environment = kept | {"HOME": str(folder / "home"), "RAY_USAGE_STATS_ENABLED": "0"}
        try:
            said = json.loads(_of_operator(root, environment, "up", "--nodes", "3"))
            yield Cluster(root, said["url"], environment | said["ray"]["environment"])
            _of_operator(root, environment, "down")
        finally:
            ray_head.end(root)


@pytest.fixture(scope="module")
def whole() -> Iterator[Path]:
    """What a run that nobody kills leaves, of an embedded store."""
    with throwaway_folder() as folder:
        with ais_loader.connect(folder / "store") as client:
            put_corpus(client, SPEECH)
        done = finished("--stored", "--url", folder / "store", *STEPS, "--output", folder / "whole")
        assert done.returncode == 0, done.stdout + done.stderr
        yield folder / "whole"


def test_a_node_is_killed_then_the_trainer_and_the_batches_are_the_same(
    cluster: Cluster, whole: Path, tmp_path: Path
) -> None:
    options = ("--url", cluster.url, "--copies", 2, *STEPS)
    victim = cluster.pids()["node-2"]
    with killed_at_the_end(tmp_path, *options) as until:
        until(4)
        os.kill(victim, signal.SIGKILL)
        until(10)  # other nodes have copies of all
    again = finished(*options, "--output", tmp_path)
    assert "goes on after step" in again.stdout and again.returncode == 0, again.stdout + again.stderr
    assert cuts_and_losses(tmp_path) == cuts_and_losses(whole)
    eventually(lambda: cluster.pids().get("node-2", victim) != victim)


def test_as_a_ray_job_the_loss_falls_and_a_killed_job_goes_on_with_the_same_batches(
    cluster: Cluster, whole: Path, tmp_path: Path
) -> None:
    options = ("--copies", 2, *STEPS, "--output", tmp_path)
    code, said = cluster.submit(*options, wait=False)
    assert code == 0, said
    eventually(lambda: steps_done(tmp_path) >= 8, timeout_s=RUN_S)
    [trainer] = training_into(tmp_path)
    os.kill(trainer, signal.SIGKILL)
    code, said = cluster.submit(*options)
    assert code == 0 and "goes on after step" in said and "succeeded" in said, said
    assert cuts_and_losses(tmp_path) == cuts_and_losses(whole)
    losses = [loss for _, _, loss in cuts_and_losses(tmp_path)]
    assert sum(losses[-4:]) < 0.85 * sum(losses[:4])
    assert (tmp_path / "canary.png").read_bytes().startswith(b"\x89PNG")


def training_into(output: Path) -> list[int]:
    """Processes that train into this folder, without the shell that Ray starts them from."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                arguments = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if arguments[1:3] == [b"-m", b"examples.canary.train"] and str(output).encode() in arguments:
                found.append(int(process.name))
    return found
