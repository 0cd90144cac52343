"""Text of transforms and of their servers, as it may stand in messages, which are UTF-8, and on terminals."""

from __future__ import annotations


def legible(text: str) -> str:
    """With escapes in the place of what is no character, and of what steers a terminal; lines and tabs stay."""
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)
