"""The changelog: a section for each release, newest first, below one for what is not released."""

from __future__ import annotations

import re
from datetime import date

from ais_loader.version import __version__
from tests.docs.page_kit import ROOT

KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
TEXT = (ROOT / "CHANGELOG.md").read_text()
SECTIONS = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
RELEASES = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d\d-\d\d)", section) for section in SECTIONS[1:]]


def test_the_newest_release_is_the_version_of_the_package() -> None:
    assert SECTIONS[0] == "[Unreleased]"
    assert SECTIONS[1].startswith(f"[{__version__}] - "), "ais_loader/version.py and CHANGELOG.md differ"


def test_releases_are_dated_newest_first_and_linked() -> None:
    found = [(tuple(map(int, release.groups()[:3])), date.fromisoformat(release[4])) for release in RELEASES if release]
    assert len(found) == len(SECTIONS) - 1
    assert found == sorted(found, reverse=True)
    for name in re.findall(r"^## \[(.*?)\]", TEXT, re.MULTILINE):
        assert re.search(rf"^\[{re.escape(name)}\]: ", TEXT, re.MULTILINE), name


def test_subsections_are_those_of_the_format() -> None:
    for section in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert len(kinds) == len(set(kinds)) and set(kinds) <= {*KINDS}, section.partition("\n")[0]
