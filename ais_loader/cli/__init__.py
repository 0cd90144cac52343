"""Command line `ais-loader`: one module per group of commands; none is imported before it is needed."""

from __future__ import annotations

import sys

try:
    from ais_loader.cli.main import main
except KeyboardInterrupt:  # an interrupt during the start: nothing has begun, and a traceback is of no use
    sys.exit(130)

__all__ = ["main"]
