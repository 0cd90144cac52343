"""No file names the host of a package registry: which index an installation uses is the user's choice."""

from __future__ import annotations

import re

from tests.docs.page_kit import ROOT

# Brackets, so that this file does not name them either.
HOSTS = re.compile(
    r"py[p]i\.org|pythonhoste[d]\.org|anacond[a]\.org|registry\.npmj[s]\.org|crate[s]\.io", re.IGNORECASE
)
FOLDERS = (
    "ais_loader",
    "storage_node",
    "integrations",
    "protos",
    "docs",
    "scripts",
    "examples",
    "benchmarks",
    "tests",
    ".ci",
    ".github",
    "deploy",
)
TEXT = {
    ".py",
    ".md",
    ".cfg",
    ".toml",
    ".txt",
    ".c",
    ".h",
    ".proto",
    ".json",
    ".jsonl",
    ".yml",
    ".yaml",
    ".service",
    ".sh",
    ".html",
    ".js",
    ".in",
    "",
}


def test_no_file_names_the_host_of_a_package_registry() -> None:
    loose = (path for path in ROOT.iterdir() if path.is_file())
    nested = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file())
    texts = [path for path in (*loose, *nested) if path.suffix in TEXT]
    assert len(texts) > 500
    naming = [str(path.relative_to(ROOT)) for path in texts if HOSTS.search(path.read_text(errors="replace"))]
    assert naming == []
