"""Parts of pages that programs write, between two comments that name the program.

The rest of such a page is written by hand.
"""

from __future__ import annotations

from pathlib import Path


def with_part(page: Path, program: str, part: str) -> str:
    """Return the text of a page with `part` between the comments of this program.

    Args:
        page: The page. It has the comments `<!-- made by PROGRAM: begin -->` and `end`, once.
        program: The path of the program, from the root of the repository.

    Raises ValueError for a page without such comments.
    """
    before, _, after = _split(page, program)
    return f"{before}{part}{after}"


def part_of(page: Path, program: str) -> str:
    """Return what stands between the comments of this program. Raises ValueError for a page without them."""
    return _split(page, program)[1]


def _split(page: Path, program: str) -> tuple[str, str, str]:
    begin, end = (f"<!-- made by {program}: {place} -->\n" for place in ("begin", "end"))
    text = page.read_text()
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"{page.name}: need the lines {begin!r} and {end!r} once, in this order")
    before, _, rest = text.partition(begin)
    part, _, after = rest.partition(end)
    return before + begin, part, end + after
