"""The files of deploy/: their fields are those of their kinds, and their commands run, unprivileged, in empty folders.

No container runs here. A command runs as a user of the container would: as another user than root, without
capabilities, without a home, and in a folder that it cannot write to; only what the file mounts is there for it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from ais_loader import connect
from ais_loader.testing import eventually
from storage_node.cli.cluster import cluster
from tests.docs.page_kit import blocks
from tests.node.node_kit import kept_port
from tests.packaging.deploy_schemas import COMPOSE, KINDS, META, fields
from tests.packaging.packaging_kit import ROOT
from tests.patience import PATIENT_CLIENT

pytestmark = pytest.mark.slow

DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
NODE_FILE, RAY_FILE = (DEPLOY / "kubernetes" / name for name in ("node.yaml", "raycluster.yaml"))


def documents(path: Path) -> dict[str, Any]:
    return {found["kind"]: found for found in yaml.safe_load_all(path.read_text())}


def instructions() -> dict[str, str]:
    """The last instruction of each kind in the Containerfile."""
    return dict(re.findall(r"^([A-Z]+) (.*)$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE))


def words(instruction: str) -> list[str]:
    found = json.loads(instruction[instruction.index("[") :])
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("path", [NODE_FILE, RAY_FILE], ids=lambda path: path.name)
def test_a_kubernetes_file_has_only_fields_that_its_kinds_have(path: Path) -> None:
    for kind, found in documents(path).items():
        spec = KINDS[found["apiVersion"], kind]
        schema = fields({"apiVersion": {}, "kind": {}, "metadata": META, "spec": spec})
        jsonschema.validate(found, schema)


def test_the_compose_file_has_only_fields_of_its_specification() -> None:
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    jsonschema.validate(found, COMPOSE)
    (service,) = found["services"].values()
    assert {volume.partition(":")[0] for volume in service["volumes"]} == set(found["volumes"])
    assert instructions()["VOLUME"] in [volume.partition(":")[2] for volume in service["volumes"]]
    exposed = instructions()["EXPOSE"].split()
    assert [port.rpartition(":")[2] for port in service["ports"]] == exposed
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).samefile(DEPLOY / "Containerfile")


def test_what_kubernetes_selects_and_names_is_there() -> None:
    found = {kind: one["spec"] for kind, one in documents(NODE_FILE).items()}
    template = found["StatefulSet"]["template"]
    labels = template["metadata"]["labels"]
    for selector in (
        found["StatefulSet"]["selector"]["matchLabels"],
        found["Service"]["selector"],
        found["PodDisruptionBudget"]["selector"]["matchLabels"],
    ):
        assert selector == labels
    service = documents(NODE_FILE)["Service"]["metadata"]
    assert found["ServiceMonitor"]["selector"]["matchLabels"] == service["labels"]
    assert found["StatefulSet"]["serviceName"] == service["name"]
    (container,) = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["name"]: port["port"] for port in found["Service"]["ports"]} == ports
    assert {one["port"] for one in found["ServiceMonitor"]["endpoints"]} <= set(ports)
    assert {container[probe]["tcpSocket"]["port"] for probe in ("readinessProbe", "livenessProbe")} == {"grpc"}
    volumes = {volume["name"] for volume in template["spec"]["volumes"]}
    claims = {claim["metadata"]["name"] for claim in found["StatefulSet"]["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes | claims
    user = instructions()["USER"]
    security = template["spec"]["securityContext"]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == user


def unprivileged(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Words before a command that take its privileges away, and its environment."""
    before: list[str] = []
    if os.geteuid() == 0:
        before = ["unshare", "--user", "--map-user=10001", "--map-group=10001"]
        if subprocess.run([*before, "true"], capture_output=True, timeout=180).returncode != 0:
            pytest.skip("this machine has no user namespaces")
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return before, {"PATH": path, "HOME": "/nowhere", "TMPDIR": str(folder / "tmp"), "LANG": "C.UTF-8"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folders that a container has: where it starts, which it cannot write to, its /tmp, and its drive."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "disk1").mkdir(mode=0o700)
    (tmp_path / "root").mkdir(mode=0o555)
    return tmp_path


def here(command: list[str], folder: Path, ports: dict[str, int]) -> list[str]:
    """A command with the folders and ports of this test."""
    found = [word.replace("/data/disk", f"{folder}/disk") for word in command]
    for port, free in ports.items():
        found = [re.sub(rf"\b{port}\b", str(free), word) for word in found]
    return found


@contextmanager
def served(command: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A node by this command line, which ends by SIGTERM and then has exit code 0."""
    before, environment = unprivileged(folder)
    with (folder / "log").open("w") as log:
        node = subprocess.Popen(
            [*before, *command], cwd=folder / "root", env=environment, stdout=log, stderr=log, text=True
        )
    try:
        eventually(lambda: "serving" in (folder / "log").read_text() or node.poll() is not None)
        assert node.poll() is None, (folder / "log").read_text()
        yield node
        node.send_signal(signal.SIGTERM)
        assert node.wait(180) == 0, (folder / "log").read_text()
    finally:
        node.kill()
        node.wait(180)


def assert_serves(command: list[str], health: list[str], folder: Path, ports: dict[str, int]) -> None:
    """Whether it stores and reads, its health command tells, and its metrics are there, if it has any."""
    with served(here(command, folder, ports), folder) as node:
        before, environment = unprivileged(folder)
        with connect(f"grpc://127.0.0.1:{ports['7480']}", options=PATIENT_CLIENT) as client:
            client.create_bucket("b").put("a", b"bytes")
            assert client.bucket("b").get("a") == b"bytes"
        asked = here(health, folder, ports)

        def told() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*before, *asked], env=environment, cwd=folder / "root", capture_output=True, text=True, timeout=180
            )

        eventually(lambda: told().returncode == 0)  # it waits for a busy node for seconds only
        if "9480" in ports:
            with urllib.request.urlopen(f"http://127.0.0.1:{ports['9480']}/metrics", timeout=180) as answer:
                assert b"ais_loader_" in answer.read()
        assert node.poll() is None
    ended = told()
    assert ended.returncode == 1, ended


@pytest.fixture
def two_ports() -> Iterator[dict[str, int]]:
    with kept_port() as port, kept_port() as metrics_port:
        yield {"7480": port, "9480": metrics_port}


def test_the_command_of_the_image_serves_and_its_health_command_tells(folder: Path, two_ports: dict[str, int]) -> None:
    found = instructions()
    command = words(found["ENTRYPOINT"]) + words(found["CMD"])
    assert command[command.index("--drive") + 1] == found["VOLUME"]
    assert found["STOPSIGNAL"] == "SIGTERM"
    assert_serves(command, words(found["HEALTHCHECK"]), folder, two_ports)


def test_the_command_of_the_pod_serves_and_its_probe_tells(folder: Path, two_ports: dict[str, int]) -> None:
    (container,) = documents(NODE_FILE)["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    command = [*words(instructions()["ENTRYPOINT"]), *container["args"]]
    drive, mounts = command[command.index("--drive") + 1], [one["mountPath"] for one in container["volumeMounts"]]
    assert any(Path(drive).is_relative_to(mount) for mount in mounts)
    assert_serves(command, container["startupProbe"]["exec"]["command"], folder, two_ports)


def test_the_unit_of_systemd_is_that_of_the_page_and_its_command_serves(
    folder: Path, two_ports: dict[str, int]
) -> None:
    unit = (DEPLOY / "ais-loader.service").read_text()
    page = (ROOT / "docs" / "operations.md").read_text()
    assert unit in [block.text for block in blocks(page)]
    (line,) = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)
    (folder / "ais-loader.toml").write_text('durability = "power"\n')
    (folder / "disk2").mkdir(mode=0o700)
    command = shlex.split(line.replace("/etc/", f"{folder}/").replace("/opt/ais-loader/bin/", ""))
    health = ["ais-loader", "doctor", "grpc://127.0.0.1:7480"]
    assert_serves([*command, "--port", "7480"], health, folder, {"7480": two_ports["7480"]})


def test_the_commands_of_the_page_for_kuberay_are_ones_that_cluster_accepts() -> None:
    """tests/security/test_secure_cluster.py runs nodes on a Ray that somebody else has started."""
    (group,) = documents(RAY_FILE)["RayCluster"]["spec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    roots = {mount["mountPath"] for mount in container["volumeMounts"]}
    lines = (ROOT / "docs" / "deploy.md").read_text().splitlines()
    found = [shlex.split(line.partition(" -- ais-loader cluster ")[2]) for line in lines if " -- ais-loader " in line]
    assert {words[0] for words in found} == {"up", "status"}
    for name, *rest in found:
        values = cluster.commands[name].make_context(name, rest).params
        assert str(values["root"]) in roots


STAND_IN = """#!/bin/bash
# Runs the command once, as on a job's only host.
while [[ "$1" == --* ]]; do shift; done
exec "$@"
"""
TRAINING = """
import sys, time
from pathlib import Path
import ais_loader
if __name__ == "__main__":
    with ais_loader.connect() as client:
        client.create_bucket("b").put("a", b"bytes")
        assert [item.tobytes() for item in client.get_batch(["ais://b/a"])] == [b"bytes"]
        (pid,) = Path(sys.argv[1]).parent.glob("scratch/ais-loader-7/node/pid")
        Path(sys.argv[1]).write_text(pid.read_text())
        time.sleep(float(sys.argv[2]))
        sys.exit(int(sys.argv[3]))
"""


@pytest.mark.parametrize(("seconds", "code"), [(0, 0), (0, 3), (400, 143)], ids=["ends", "fails", "is stopped"])
def test_a_slurm_job_leaves_nothing_behind(seconds: int, code: int, folder: Path) -> None:
    before, environment = unprivileged(folder)
    (folder / "bin").mkdir()
    (folder / "bin" / "srun").write_text(STAND_IN)
    (folder / "bin" / "srun").chmod(0o755)
    (folder / "scratch").mkdir()
    (folder / "train.py").write_text(TRAINING)
    environment["PATH"] = f"{folder / 'bin'}{os.pathsep}{environment['PATH']}"
    environment |= {"SLURM_JOB_ID": "7", "AIS_LOADER_SCRATCH": str(folder / "scratch")}
    bash = shutil.which("bash")
    assert bash
    command = [*before, bash, str(DEPLOY / "slurm.sh"), str(folder / "train.py"), str(folder / "pid"), str(seconds)]
    job = subprocess.Popen([*command, str(code)], cwd=folder, env=environment, start_new_session=True)
    try:
        eventually(lambda: ((folder / "pid").exists() and (folder / "pid").read_text()) or job.poll() is not None)
        if seconds:
            job.send_signal(signal.SIGTERM)
        assert job.wait(180) == code
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait(180)
    pid = int((folder / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert list((folder / "scratch").iterdir()) == []
