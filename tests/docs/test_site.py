"""The site as `make docs` builds it: every link leads somewhere, it can be searched, and its notebook runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from scripts import build_docs
from tests.docs.page_kit import ROOT, make_data
from tests.free_ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*Check CHANGES for Sphinx API")]
TUTORIAL = ROOT / "docs" / "tutorial.md"


def test_every_page_is_in_the_site_and_links_to_pages_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site"
    assert build_docs.main(site) == 0, capsys.readouterr().err
    for page in build_docs.pages():
        assert (site / page.with_suffix(".html")).is_file()
    assert "get_batch" in (site / "docs" / "reference.html").read_text()
    assert "get_batch" in (site / "searchindex.js").read_text()
    home = (site / "docs" / "training.html").read_text()
    assert 'href="tutorial.html"' in home
    listed = (site / "llms.txt").read_text()
    assert listed.startswith("# ")
    assert "- [Tutorial](docs/tutorial.md)" in listed
    assert (site / "docs" / "tutorial.md").read_text() == TUTORIAL.read_text()
    assert "# Training" in (site / "llms-full.txt").read_text()
    assert json.loads((site / "docs" / "tutorial.ipynb").read_text())["nbformat"] == 4


def test_a_link_that_leads_nowhere_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_docs, "reference", lambda: "# API reference\n\n[gone](gone.md)\n")
    assert build_docs.main(tmp_path / "site") == 1
    assert "reference.md:3: WARNING" in capsys.readouterr().err


def test_the_tutorial_runs_as_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_data(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    port = free_port()
    book = build_docs.notebook(TUTORIAL)
    for cell in book.cells:
        cell.source = cell.source.replace("ais-loader serve", f"ais-loader serve --port {port}").replace(
            "7480", str(port)
        )
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = [
        output.text for cell in book.cells for output in cell.get("outputs", ()) if output.get("name") == "stdout"
    ]
    assert printed[0] == "40 stored, 0 skipped\n40 skipped the second time\n"
    nbformat.validate(book)
