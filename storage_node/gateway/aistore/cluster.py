"""Calls about the cluster: health, map and nodes. To AIStore's clients, a gateway is a proxy with one target."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import urlsplit

from storage_node.gateway.aistore.errors import AISError
from storage_node.gateway.aistore.request import Request, json_response, text_response
from storage_node.gateway.request import Response

PROXY, TARGET = "gateway", "store"
"""Ids of the nodes that the map shows."""
_STARTED_NS = time.monotonic_ns()


def health(request: Request) -> Response:
    """Answer a check of health: a gateway that answers is ready."""
    up_ns = str(time.monotonic_ns() - _STARTED_NS)
    return Response(headers={"ais-cluster-uptime": up_ns, "ais-node-uptime": up_ns})


def node(request: Request, kind: str) -> dict[str, object]:
    """Return a node of the map: both have the address at which the client has reached the gateway."""
    address = urlsplit(request.base_url)
    net = {
        "node_ip_addr": address.hostname or "",
        "daemon_port": str(address.port or (443 if address.scheme == "https" else 80)),
        "direct_url": request.base_url,
    }
    name = PROXY if kind == "proxy" else TARGET
    digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    nets = {"public_net": net, "intra_control_net": net, "intra_data_net": net}
    return {"daemon_id": name, "daemon_type": kind, **nets, "flags": 0, "id_digest": digest}


def smap_of(request: Request) -> dict[str, object]:
    """Return the map of the cluster, the same from all gateways but for the address."""
    proxy = node(request, "proxy")
    return {
        "pmap": {PROXY: proxy},
        "tmap": {TARGET: node(request, "target")},
        "proxy_si": proxy,
        "uuid": hashlib.sha256(request.client.url.encode()).hexdigest()[:10],
        "creation_time": "",
        "version": "1",
    }


def smap(request: Request) -> Response:
    """Answer a request for the map."""
    return json_response(smap_of(request))


def cluster_config(request: Request) -> Response:
    """Answer a request for the settings of the cluster: those that clients look at."""
    return json_response({"rebalance": {"enabled": False}, "auth": {"enabled": request.needs_token}})


def backends(request: Request) -> Response:
    """Answer a request for the kinds of remote storage that buckets can be in."""
    return json_response([])


def _node_asked(request: Request) -> str:
    name = request.headers.get("ais-node-id", "")
    if name not in (PROXY, TARGET):
        raise AISError(404, f"node {name[:80]!r} does not exist")
    return name


def node_status(request: Request) -> Response:
    """Answer a request for the status of a node. Raises AISError."""
    name = _node_asked(request)
    described = request.client.describe()
    drives = described.get("drives")
    rows = [row for row in drives if isinstance(row, dict)] if isinstance(drives, list) else []
    total = sum(_number(row.get("size_bytes")) for row in rows)
    free = sum(_number(row.get("free_bytes")) for row in rows)
    used_percent = 100 * (total - free) // total if total else 0
    kind = "proxy" if name == PROXY else "target"
    status = {
        "status": "",
        "deployment": "ais-loader",
        "ais_version": _version(),
        "build_time": "",
        "k8s_pod_name": "",
        "snode": node(request, kind),
        "tracker": {},
        "capacity": {
            "total_used": str(total - free),
            "total_avail": str(free),
            "pct_max": used_percent,
            "pct_avg": used_percent,
            "pct_min": used_percent,
        },
        "cluster": {"flags": 6},  # the node and the cluster have started
        "sys_info": _system(),
        "smap_version": "1",
    }
    return json_response(status)


def _number(value: object) -> int:
    return int(value) if isinstance(value, (int, float)) else 0


def _version() -> str:
    try:
        return f"ais-loader {version('ais-loader')}"
    except PackageNotFoundError:
        return "ais-loader"


def _system() -> dict[str, Any]:
    """Return the load of the gateway's machine."""
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
    return {
        "mem_used": str(total - free),
        "mem_avail": str(free),
        "pct_mem_used": round(100 * (total - free) / total, 2) if total else 0,
        "pct_cpu_used": 0,
        "load_avg": dict(zip(("one", "five", "fifteen"), os.getloadavg(), strict=True)),
    }


def node_log(request: Request) -> Response:
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
