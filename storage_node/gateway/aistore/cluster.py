"""Calls about the cluster: its health and its map. To AIStore's clients, a gateway is a proxy with one target."""

from __future__ import annotations

import hashlib
import json
import time
from urllib.parse import urlsplit

from storage_node.gateway.aistore.request import Request, json_response
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
        "uuid": hashlib.sha256(json.dumps(request.client.url).encode()).hexdigest()[:10],
        "creation_time": "",
        "version": "1",
    }


def smap(request: Request) -> Response:
    """Answer a request for the map."""
    return json_response(smap_of(request))
