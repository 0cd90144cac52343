"""Grain integration: a dataset of this package as a random-access source of Grain."""

from __future__ import annotations

from .source import Source

__all__ = ["Source"]
