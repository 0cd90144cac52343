"""The metric of certificates' ends."""

from __future__ import annotations

import re
import time
import urllib.request
from pathlib import Path

import pytest

from storage_node.security.identity.authority import CA_DAYS, CERTIFICATE_DAYS
from storage_node.security.identity.identity_folder import IdentityFolder
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig

pytestmark = pytest.mark.slow

DAY_S = 86400.0


def test_a_node_tells_when_its_certificate_and_the_ca_end(tmp_path: Path, identity: IdentityFolder) -> None:
    config = ServerConfig(port=0, metrics_port=0)
    with (
        NodeServer([tmp_path / "drive"], config, identity=identity.path) as node,
        urllib.request.urlopen(f"http://127.0.0.1:{node.metrics_port}/metrics", timeout=180) as response,
    ):
        text = response.read().decode()
    pattern = r'^ais_loader_certificate_expiry_timestamp_seconds{file="(\w+)"} (\S+)$'
    days = {name: (float(end_s) - time.time()) / DAY_S for name, end_s in re.findall(pattern, text, re.MULTILINE)}
    assert {name: round(left) for name, left in days.items()} == {"certificate": CERTIFICATE_DAYS, "ca": CA_DAYS}
