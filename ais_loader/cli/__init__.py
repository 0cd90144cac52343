"""Command line `ais-loader`: one module per group of commands, none of them imported before it is needed."""

from __future__ import annotations

from ais_loader.cli.main import main

__all__ = ["main"]
