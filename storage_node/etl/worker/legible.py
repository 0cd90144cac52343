"""Sanitizer for texts of transforms and of their servers, for messages (which are UTF-8) and terminals."""

from __future__ import annotations


def legible(text: str) -> str:
    """Replace invalid characters and terminal control characters with escapes. Line breaks and tabs stay."""
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)
