"""Command line `ais-loader`: one module per group of commands, none of them imported before it is needed."""

from __future__ import annotations

import sys

try:
    from ais_loader.cli.main import main
except KeyboardInterrupt:  # of somebody who saw the mistake at once: nothing has begun, and no traceback is of use
    sys.exit(130)

__all__ = ["main"]
