"""Parts of pages that programs write: the rest of the page stays, and a page without a place for them is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.made_parts import part_of, with_part
from tests.docs.page_kit import ROOT

BEGIN, END = "<!-- made by a/b.py: begin -->\n", "<!-- made by a/b.py: end -->\n"


def test_a_program_writes_its_own_part_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    other = BEGIN.replace("a/b", "c/d") + "theirs\n" + END.replace("a/b", "c/d")
    page.write_text(f"# Page\n{other}{BEGIN}old\n{END}after\n")
    assert part_of(page, "a/b.py") == "old\n"
    assert with_part(page, "a/b.py", "new\nlines\n") == f"# Page\n{other}{BEGIN}new\nlines\n{END}after\n"


def test_a_page_without_one_place_for_the_part_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for text in ("", BEGIN, END + BEGIN, BEGIN + END + BEGIN + END, (BEGIN + END).replace("a/b", "a/c")):
        page.write_text(text)
        with pytest.raises(ValueError, match=r"page\.md: need the lines '<!-- made by a/b\.py: begin"):
            with_part(page, "a/b.py", "new\n")


def test_every_part_names_a_program_that_writes_it() -> None:
    found = 0
    for page in (ROOT / "docs").glob("*.md"):
        for program in set(re.findall(r"<!-- made by (.*): (?:begin|end) -->", page.read_text())):
            assert part_of(page, program) and program in (ROOT / program).read_text(), f"{page.name}: {program}"
            found += 1
    assert found >= 4
