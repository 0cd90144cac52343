"""Transforms of one node of a cluster: those in the map, with the node's settings, threads and spool."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.cluster.caller import read_secret
from storage_node.etl.http_side import HttpSide
from storage_node.etl.spool import Spool
from storage_node.etl.stage_context import StageContext
from storage_node.etl.stages import NodeTransforms
from storage_node.node import Node

SPOOL_FOLDER = "spool"
"""Of a drive."""


def spool_of(node: Node) -> Spool:
    """On the first of its drives that works."""
    roots = [drive.root for drive in node.store.drives if drive is not None]
    return Spool((roots[0] if roots else Path(tempfile.gettempdir())) / SPOOL_FOLDER)


def transforms_of(node: Node) -> NodeTransforms:
    """To be made, followed and closed on the node's event loop."""

    def known(name: str) -> pb.Transform | None:
        view = node.membership.view if node.membership is not None else None
        return None if view is None else next((one for one in view.map.transform if one.name == name), None)

    secret = read_secret(node.config.peer_secret_file)
    config = node.config
    http_side = HttpSide(
        host=config.etl_http_host,
        port=config.etl_http_port,
        advertise=config.etl_http_advertise,
        peer_secret=secret or "",
    )
    return NodeTransforms(known, StageContext(node.config, spool_of(node), node.read, http_side))
