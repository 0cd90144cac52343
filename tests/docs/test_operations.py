"""The service unit of docs/operations.md: systemd accepts it, and its command line is one that `serve` accepts."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from storage_node.cli.serve import serve
from tests.docs.page_kit import ROOT, blocks

(UNIT,) = (block.text for block in blocks((ROOT / "docs/operations.md").read_text()) if "[Unit]" in block.text)
(COMMAND,) = re.findall("^ExecStart=(.*)$", UNIT, re.M)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    (stand_in := tmp_path / "ais-loader").write_text("#!/bin/sh\n")
    stand_in.chmod(0o755)
    unit = tmp_path / "ais-loader.service"
    unit.write_text(UNIT.replace(shlex.split(COMMAND)[0], str(stand_in)))
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=180)
    complaints = [line for line in verified.stderr.splitlines() if unit.name in line]
    assert (verified.returncode, complaints) == (0, [])


def test_the_units_command_line_is_one_that_serve_accepts(tmp_path: Path) -> None:
    (config := tmp_path / "ais-loader.toml").write_text('durability = "power"\n')
    _, command, *words = shlex.split(COMMAND.replace("/etc/ais-loader.toml", str(config)))
    assert command == "serve"
    values = serve.make_context("serve", words).params
    assert [str(path) for path in values["drives"]] == ["/data/disk1", "/data/disk2"]
