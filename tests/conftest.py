"""Fixtures that every folder of tests may use: see ais_loader/testing/fixtures.py."""

from __future__ import annotations

pytest_plugins = ["ais_loader.testing.fixtures"]
