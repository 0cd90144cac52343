"""Real clients of the gateway, and an environment for each, below build/doors: of PyPI, or a program of Go.

What is there is kept, so that another run, also one after an interruption, makes only what is missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "doors"
PROGRAMS = FOLDER / "bin"
"""Programs that Go installs, if the PATH has none."""
SCRIPTS = Path(__file__).parent
_INSTALL_S = 1800.0
_VERSION_S = 60.0
_GO = ("go", "/usr/local/go/bin/go")
_BOTO3 = "boto3==1.44.8"
_EACH = "puts, lists, reads, ranges, uploads in parts, copies, deletions"
_MORE = f"{_EACH}, conditions, presigned addresses"


class Unavailable(Exception):
    """A client that cannot be installed here, with the reason."""


@dataclass(frozen=True, slots=True)
class RealClient:
    """A client, what it needs, and the program that uses it."""

    name: str
    version: str
    script: str
    """The program, in this folder or in `clients`."""
    requirements: tuple[str, ...] = ()
    """What its environment has, as pip names it."""
    program: str = ""
    """Its program, if that is no part of the environment: one of the PATH, in the same major version."""
    module: str = ""
    """A module of Go that has the program; "" if it can only be found on the PATH."""
    stores: tuple[str, ...] = ("embedded", "node")
    """The kinds of store behind the gateway that it is run against."""
    calls: str = _EACH
    """What is run."""
    environment: str = ""
    """The folder of its environment; by default its name."""

    @property
    def path(self) -> Path:
        """Return where the program is, or would be."""
        beside = SCRIPTS / self.script
        return beside if beside.exists() else SCRIPTS / "clients" / self.script

    @property
    def folder(self) -> Path:
        return FOLDER / (self.environment or self.name)


_ALL = ("embedded", "node", "cluster")
_AISTORE = ("aistore[pytorch]==2.0.0", "lhotse==1.33", "torch", "webdataset", "xxhash", "soundfile", _BOTO3)
CLIENTS = (
    RealClient("boto3", "1.44.8", "boto3_client.py", (_BOTO3,), stores=_ALL, calls=_MORE),
    RealClient("boto3-1.35", "1.35.99", "boto3_client.py", ("boto3==1.35.99",), calls=_MORE),
    RealClient("awscli", "1.46.3", "aws_cli.py", ("awscli==1.46.3",), calls=_MORE),
    RealClient("awscli-2", "2.36.7", "aws_cli.py", program="aws", calls=_MORE),
    RealClient("s3cmd", "2.4.0", "s3cmd_client.py", ("s3cmd==2.4.0",)),
    RealClient(
        *("rclone", "1.69.3", "rclone_client.py"),
        program="rclone",
        module="github.com/rclone/rclone",
        stores=_ALL,
    ),
    RealClient("s5cmd", "2.3.0", "s5cmd_client.py", program="s5cmd", module="github.com/peak/s5cmd/v2"),
    RealClient("s3fs", "2026.9.0", "s3fs_client.py", ("s3fs==2026.9.0",), calls=_MORE),
    RealClient(
        *("pyarrow", "26.0.1", "pyarrow_client.py", ("pyarrow==26.0.1",)),
        stores=_ALL,
        calls=f"{_EACH}, a data set of Parquet",
    ),
    RealClient("obstore", "0.12.1", "obstore_client.py", ("obstore==0.12.1", _BOTO3), calls=f"{_EACH}, conditions"),
    RealClient(
        *("duckdb", "1.5.5", "duckdb_client.py"),
        ("duckdb==1.5.5", "duckdb-extension-httpfs==1.5.5", "duckdb-extensions==1.5.5", _BOTO3),
        calls="200 tables of Parquet, one in parts, a filter that reads ranges, CSV",
    ),
    RealClient(
        *("s3torchconnector", "1.5.0", "s3torch_client.py", ("s3torchconnector==1.5.0", "torch", _BOTO3)),
        calls=f"{_EACH}, data sets, a checkpoint",
    ),
    RealClient("minio", "7.2.20", "minio_client.py", ("minio==7.2.20",), calls=_MORE),
)
AISTORE_CLIENTS = (
    RealClient(
        *("aistore", "2.0.0", "aistore_sdk.py", _AISTORE),
        stores=_ALL,
        calls="buckets, lists, objects, ranges, appends, uploads in parts, archives, properties",
        environment="aistore",
    ),
    RealClient(
        *("aistore batch", "2.0.0", "aistore_batch.py", _AISTORE),
        calls="GetBatch in all its forms, object groups, copies, jobs, data sets for PyTorch",
        environment="aistore",
    ),
    RealClient(
        *("lhotse", "1.33", "lhotse_stock.py", _AISTORE),
        calls="AISBatchLoader and AIStoreIOBackend over cuts of speech",
        environment="aistore",
    ),
    RealClient(
        *(
            "lhotse 2",
            "2.0.0a7",
            "lhotse_stock.py",
            ("lhotse==2.0.0a7", *(one for one in _AISTORE if one[:6] != "lhotse")),
        ),
        calls="AISBatchLoader and AIStoreIOBackend over cuts of speech",
        environment="lhotse2",
    ),
)
"""Clients of the gateway's AIStore interface."""


def make(client: RealClient) -> Path:
    """Return the interpreter of the client's environment, which is made if it is not there. Raises Unavailable."""
    if not client.path.exists():
        raise Unavailable(f"{client.script} is not in this tree")
    if not client.requirements:
        return Path(sys.executable)
    python, made = client.folder / "bin" / "python", client.folder / ".made"
    wanted = "\n".join(client.requirements)
    if not made.exists() or made.read_text() != wanted:
        uv = [str(Path(sys.executable).parent / "uv")]
        if not python.exists():
            install([*uv, "venv", "--quiet", "--python", sys.executable, str(client.folder)])
        install([*uv, "pip", "install", "--quiet", "--python", str(python), *client.requirements])
        made.write_text(wanted)
    return python


def program(client: RealClient) -> Path:
    """Return the client's program: one of the PATH, or one that Go installs. Raises Unavailable."""
    found = shutil.which(client.program)
    if found is not None and _version(found).split(".")[0] == client.version.split(".")[0]:
        return Path(found)
    if not client.module:
        raise Unavailable(f"the PATH has no {client.program} of version {client.version.split('.')[0]}")
    made, installed = PROGRAMS / f".{client.name}-{client.version}", PROGRAMS / client.program
    if not made.exists():
        go = next((found for one in _GO if (found := shutil.which(one))), None)
        if go is None:
            raise Unavailable(f"neither {client.program} nor Go, which could install it, is on the PATH")
        install([go, "install", f"{client.module}@v{client.version}"], {"GOBIN": str(PROGRAMS)})
        made.touch()
    return installed


def _version(found: str) -> str:
    """Return the version that a program tells, or "". Some take a command for it, and some an option."""
    for argument in ("version", "--version"):
        try:
            ended = subprocess.run([found, argument], capture_output=True, text=True, timeout=_VERSION_S)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        if ended.returncode == 0 and (told := re.search(r"\d+\.\d+[.\d]*", ended.stdout)):
            return told[0]
    return ""


def install(command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run a command that installs. Raises Unavailable with its last words."""
    variables = {**os.environ, **(environment or {})}
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, env=variables)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{' '.join(command[:2])} took more than {_INSTALL_S:.0f} s") from None
    if ended.returncode:
        said = " ".join((ended.stderr or ended.stdout).split())
        raise Unavailable(f"{' '.join(command)}: {said[-300:]}")
