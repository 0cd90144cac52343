"""Faulty drive, which can be broken and mended while a process uses it.

    shim = EioShim(tmp_path, drive)                                     # skips where there is no C compiler
    with NodeProcess([drive, other], environment=shim.environment) as node:
        shim.break_drive()                                              # from now on EIO, below `drive` alone
        ...
        shim.mend_drive()

`environment` goes into any process started for the purpose: a node (`NodeProcess`, or one of `ClusterProcesses` by its
own environment), `CrashServer(env=...)`, `subprocess`. It takes effect when the process starts and cannot be taken into
one that runs. See eio_shim.c for what fails and what does not.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.faults.power_kit import find_compiler

_SOURCE = Path(__file__).with_name("eio_shim.c")


class EioShim:
    def __init__(self, scratch: Path, drive: Path) -> None:
        """`drive`: the folder that is to fail; it need not be there yet. `scratch`: a folder outside of it."""
        compiler = find_compiler()
        if compiler is None:
            pytest.skip("no C compiler")
        library = scratch / "eio_shim.so"
        if not library.exists():
            subprocess.run(
                [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-o", str(library), str(_SOURCE), "-ldl"],
                check=True,
            )
        self._flag = scratch / f"{drive.name}.broken"
        self.environment = {
            "LD_PRELOAD": str(library),
            "EIO_SHIM_FLAG": str(self._flag),
            "EIO_SHIM_FOLDER": str(drive.resolve()),
        }
        """On top of that of this process."""

    def break_drive(self, what: str = "read write") -> None:
        """`what`: "read", "write", or both."""
        staged = self._flag.with_suffix(".new")
        staged.write_text(what)
        os.rename(staged, self._flag)

    def mend_drive(self) -> None:
        self._flag.unlink(missing_ok=True)
