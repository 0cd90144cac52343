"""Calls about the cluster: health, map and nodes. To AIStore's clients, a gateway is a proxy with one target."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..request import Response
from .buckets import props_of
from .request import AISError, AisRequest, json_response, provider_of, text_response

PROXY, TARGET = "gateway", "store"
"""Ids of the nodes that the map shows."""
_AIS_API = "5.0.0"
"""The version of AIStore whose API this is. `ais` compares it with its own."""
_STARTED_NS = time.monotonic_ns()


def health(request: AisRequest) -> Response:
    """Answer a health check: a gateway that answers is ready."""
    up_ns = str(time.monotonic_ns() - _STARTED_NS)
    return Response(headers={"ais-cluster-uptime": up_ns, "ais-node-uptime": up_ns})


def node(request: AisRequest, kind: str) -> dict[str, object]:
    """Return a node of the map: both have the address at which the client has reached the gateway."""
    try:
        address = urlsplit(request.base_url)
        port = address.port or (443 if address.scheme == "https" else 80)
    except ValueError:
        raise AISError(400, f"Host {request.headers.get('host', '')[:80]!r}: need NAME or NAME:PORT") from None
    net = {
        "node_ip_addr": address.hostname or "",
        "daemon_port": str(port),
        "direct_url": request.base_url,
    }
    name = PROXY if kind == "proxy" else TARGET
    digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    nets = {"public_net": net, "intra_control_net": net, "intra_data_net": net}
    return {"daemon_id": name, "daemon_type": kind, **nets, "flags": 0, "id_digest": digest}


def smap_of(request: AisRequest) -> dict[str, object]:
    """Return the map of the cluster, the same from all gateways but for the address."""
    proxy = node(request, "proxy")
    return {
        "pmap": {PROXY: proxy},
        "tmap": {TARGET: node(request, "target")},
        "proxy_si": proxy,
        "uuid": _store_id(request),
        "creation_time": "",
        "version": "1",
    }


def _store_id(request: AisRequest) -> str:
    return hashlib.sha256(request.client.url.encode()).hexdigest()[:10]


def smap(request: AisRequest) -> Response:
    """Answer a request for the map."""
    return json_response(smap_of(request))


def cluster_config(request: AisRequest) -> Response:
    """Answer a request for the settings of the cluster, with those that clients read."""
    # Colours in which `ais` shows how much is used.
    space = {"cleanupwm": 80, "lowwm": 90, "highwm": 95, "out_of_space": 98}
    sections: dict[str, object] = {name: {} for name in ("chunks", "ec", "lru", "mirror", "rate_limit", "write_policy")}
    shown = {"checksum": {"type": "crc32c"}, "rebalance": {"enabled": False}, "auth": {"enabled": request.needs_token}}
    return json_response({**sections, **shown, "space": space})


def none(_: AisRequest) -> Response:
    """Answer a request for a list of what is not here: AIStore's backends, and downloads or sorts as jobs."""
    return json_response([])


def _node_asked(request: AisRequest) -> str:
    name = request.headers.get("ais-node-id", "")
    if name not in (PROXY, TARGET):
        raise AISError(404, f"node {name[:80]!r} does not exist")
    return name


def node_status(request: AisRequest) -> Response:
    """Answer a request for the status of a node. Raises AISError."""
    name = _node_asked(request)
    kind = "proxy" if name == PROXY else "target"
    status = {
        "status": "",
        "deployment": "ais-loader",
        "ais_version": _AIS_API,
        "build_time": _version(),
        "k8s_pod_name": "",
        "snode": node(request, kind),
        "tracker": {},
        "capacity": _capacity(request),
        "cluster": {"flags": 6},  # the node and the cluster have started
        "sys_info": _system(),
        "smap_version": "1",
    }
    return json_response(status)


def _capacity(request: AisRequest) -> dict[str, Any]:
    """Return the drives and their sum."""
    drives = request.client.describe().get("drives")
    rows = [row for row in drives if isinstance(row, dict)] if isinstance(drives, list) else []
    paths = {str(row.get("uuid", at)): _mountpath(at, row) for at, row in enumerate(rows)}
    percents = [row["pct_used"] for row in paths.values()] or [0]
    return {
        "mountpaths": paths,
        "total_used": str(sum(int(row["used"]) for row in paths.values())),
        "total_avail": str(sum(int(row["avail"]) for row in paths.values())),
        "pct_max": max(percents),
        "pct_avg": sum(percents) // len(percents),
        "pct_min": min(percents),
    }


def mountpaths(request: AisRequest) -> Response:
    """Answer a request for the drives of a node. The drives of all nodes of the store are those of the one target."""
    paths = _capacity(request)["mountpaths"] if _node_asked(request) == TARGET else {}
    return json_response({"available": [*paths], "waiting_dd": [], "disabled": []})


def disks(request: AisRequest) -> Response:
    """Answer a request for the use of a node's disks: their capacity. Rates of reads and writes are not known here."""
    capacity = _capacity(request) if _node_asked(request) == TARGET else {}
    return json_response({"AllDiskStats": {}, **capacity})


def bucket_metadata(request: AisRequest) -> Response:
    """Answer a request for the properties of all buckets."""
    providers: dict[str, dict[str, dict[str, object]]] = {}
    for info in request.client.buckets():
        providers.setdefault(provider_of(info), {}).setdefault("@#", {})[info.name] = props_of(info)
    return json_response({"providers": providers, "uuid": _store_id(request), "version": "1"})


def remote_clusters(request: AisRequest) -> Response:
    """Answer a request for attached clusters of AIStore: there are none."""
    return json_response({"a": [], "ver": 0})


def _mountpath(number: int, drive: Mapping[str, Any]) -> dict[str, Any]:
    """Return a drive as a mountpath, which is AIStore's word for it."""
    total, free = int(drive.get("size_bytes") or 0), int(drive.get("free_bytes") or 0)
    percent = 100 * (total - free) // total if total else 0
    place = {"Fs": "", "FsType": "", "FsID": f"{number + 1},0"}
    return {"used": str(total - free), "avail": str(free), "pct_used": percent, "disks": [], "fs": place}


def _version() -> str:
    try:
        return f"ais-loader {version('ais-loader')}"
    except PackageNotFoundError:
        return "ais-loader"


def _system() -> dict[str, Any]:
    """Return the memory of this process and the load of its machine; 0 for what cannot be known here."""
    used, total, free = 0, 0, 0
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        used = int(Path("/proc/self/statm").read_text().split()[1]) * page
        rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (int(rows[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, KeyError):
        pass
    return {
        "mem_used": used,
        "mem_avail": free,
        "pct_mem_used": round(100 * used / total, 2) if total else 0,
        "pct_cpu_used": 0,
        "load_avg": dict(zip(("one", "five", "fifteen"), os.getloadavg(), strict=True)),
    }


def metric_names(request: AisRequest) -> Response:
    """Answer a request for a node's metrics: none, as the nodes of the store export their own. Raises AISError."""
    _node_asked(request)
    return json_response({})


def node_log(request: AisRequest) -> Response:
    """Answer a request for the log of a node. It is not kept: a gateway logs to its standard error. Raises AISError."""
    text = f"{_node_asked(request)}: the gateway and the nodes of the store log to their standard error\n"
    if request.query.get("severity") not in (None, "", "info"):
        text = ""
    if request.query.get("all") != "true":
        return text_response(text)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo("gateway.log")
        member.size = len(text.encode())
        tar.addfile(member, io.BytesIO(text.encode()))
    return Response(headers={"content-type": "application/gzip"}, body=gzip.compress(packed.getvalue(), mtime=0))
