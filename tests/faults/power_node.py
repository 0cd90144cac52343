"""Node on a machine whose power may fail: `python -m tests.faults.power_node START SHADOW TOP PYTHON -m MODULE ...`.

It takes START for the id of the kernel's start. With the library of power_kit preloaded and a SHADOW, what it syncs is
noted there, and what is below TOP when it begins counts as synced.
"""

from __future__ import annotations

import runpy
import sys

from storage_node.store.drive import clean_shutdown
from tests.faults import power_kit


def main() -> None:
    start, shadow, top, _, _, module, *arguments = sys.argv[1:]
    clean_shutdown.boot_id = start.encode
    if shadow:
        power_kit.begin(shadow, top)
        clean_shutdown.sync_file_system = lambda _: power_kit.sync_all(top)
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
