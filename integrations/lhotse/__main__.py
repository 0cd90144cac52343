"""`python -m ais_loader.integrations.lhotse TRAIN.py …` runs an unmodified training script, with Lhotse and NeMo over
a store.

`-m MODULE …` runs a module instead, as in Python. AIS_LOADER_URL names the store. `torchrun -m
ais_loader.integrations.lhotse TRAIN.py …` does the same in each of its processes.
"""

from __future__ import annotations

import os
import runpy
import sys

from .install import install

USAGE = "usage: python -m ais_loader.integrations.lhotse TRAIN.py [ARGUMENT ...], or -m MODULE [ARGUMENT ...]"


def main() -> None:
    """Run the script, and end as it does."""
    arguments = sys.argv[1:]
    as_module = arguments[:1] == ["-m"]
    if as_module:
        del arguments[0]
    if not arguments or arguments[0].startswith("-"):
        sys.exit(USAGE)
    install()
    sys.argv = arguments
    if as_module:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
