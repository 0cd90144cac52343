"""The page of the libraries that work with a store says what their programs are, and is written from them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.made_parts import part_of
from scripts.works_with import PAGE, PROGRAMS, Row, render


def test_the_page_is_what_the_programs_say() -> None:
    assert PAGE.read_text() == render(), "run `make works-with`"


def test_every_program_is_a_section_and_shows_its_lines() -> None:
    assert len(PROGRAMS) >= 16
    sections = re.split("^### ", part_of(PAGE, "scripts/works_with.py"), flags=re.MULTILINE)[1:]
    rows = [Row.of(program) for program in PROGRAMS]
    assert [section.partition("\n")[0] for section in sections] == [row.title for row in rows]
    for section, row in zip(sections, rows, strict=True):
        assert all(f"\n{line}\n" in section for line in row.changes)


def test_a_program_without_its_parts_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "nothing.py").write_text('"""Nothing."""\n')
    with pytest.raises(ValueError, match=r"nothing\.py: need a docstring"):
        Row.of(tmp_path / "nothing.py")
