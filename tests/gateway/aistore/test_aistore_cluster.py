"""Health, map, settings, status and logs."""

from __future__ import annotations

import io
import tarfile

from tests.gateway.aistore.conftest import Ais


def test_health(ais: Ais) -> None:
    for path in ("health", "health?prr=true", "health?readiness=true"):
        answer = ais("GET", path)
        assert (answer.status, answer.body) == (200, b"")
        assert int(answer.headers["ais-node-uptime"]) > 0


def test_the_map(ais: Ais) -> None:
    found = ais("GET", "daemon", what="smap").json()
    assert found["version"] == "1" and found["uuid"]
    assert found["proxy_si"] in found["pmap"].values() and len(found["tmap"]) == 1
    for node in (*found["pmap"].values(), *found["tmap"].values()):
        assert node["public_net"]["direct_url"] == f"http://127.0.0.1:{ais.port}"
        assert node["flags"] == 0 and 0 <= node["id_digest"] < 1 << 64
    assert ais("GET", "daemon", what="smap").json() == found


def test_the_status_of_nodes(ais: Ais) -> None:
    smap = ais("GET", "daemon", what="smap").json()
    for name in (*smap["pmap"], *smap["tmap"]):
        status = ais("GET", "reverse/daemon", headers={"Ais-Node-Id": name}, what="node_status").json()
        assert status["snode"]["daemon_id"] == name
        assert status["cluster"]["flags"] == 6 and status["status"] == ""
        assert int(status["capacity"]["total_avail"]) > 0 and type(status["sys_info"]["mem_used"]) is int
        assert ais("GET", "reverse/daemon", headers={"Ais-Node-Id": name}, what="metrics").json() == {}
    answer = ais("GET", "reverse/daemon", headers={"Ais-Node-Id": "none"}, what="node_status")
    assert answer.status == 404 and "none" in answer.message()


def test_settings_and_backends(ais: Ais) -> None:
    config = ais("GET", "cluster", what="cluster_config").json()
    assert (config["rebalance"], config["auth"]) == ({"enabled": False}, {"enabled": True})
    # `ais` reads all of these without asking whether they are there.
    assert config.keys() >= {"mirror", "ec", "chunks", "checksum", "write_policy", "rate_limit", "lru"}
    assert ais("GET", "cluster", what="backends").json() == []


def test_logs(ais: Ais) -> None:
    header = {"Ais-Node-Id": "store"}
    text = ais("GET", "reverse/daemon", headers=header, what="log", severity="info")
    assert text.status == 200 and text.body
    assert ais("GET", "reverse/daemon", headers=header, what="log", severity="error").body == b""
    packed = ais("GET", "reverse/daemon", headers=header, what="log", severity="info", all="true").body
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        assert [archive.extractfile(one).read() for one in archive] == [text.body]  # type: ignore[union-attr]


def test_buckets_of_the_cluster(ais: Ais, bucket: str) -> None:
    found = ais("GET", "daemon", what="bmd").json()
    assert (found["version"], found["providers"]["ais"]["@#"][bucket]["provider"]) == ("1", "ais")
    assert found["uuid"] == ais("GET", "daemon", what="smap").json()["uuid"]
    assert ais("GET", "cluster", what="remote").json() == {"a": [], "ver": 0}


def test_drives(ais: Ais) -> None:
    target = {"Ais-Node-Id": "store"}
    status = ais("GET", "reverse/daemon", headers=target, what="node_status").json()["capacity"]
    disk = ais("GET", "reverse/daemon", headers=target, what="disk").json()
    assert disk["mountpaths"].keys() == status["mountpaths"].keys() and disk["AllDiskStats"] == {}
    assert int(disk["total_avail"]) > 0
    paths = ais("GET", "reverse/daemon", headers=target, what="mountpaths").json()
    assert paths == {"available": [*status["mountpaths"]], "waiting_dd": [], "disabled": []}
    assert len(paths["available"]) >= 1
    for what in ("disk", "mountpaths"):
        assert ais("GET", "reverse/daemon", headers={"Ais-Node-Id": "x"}, what=what).status == 404
