"""Pages for people against the tree: what they name is there, and what they link to."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.table import table

ROOT = Path(__file__).resolve().parents[2]
BASES = ("", "ais_loader/", "storage_node/")
"""Where a path in a page may begin."""
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*/?")
MODULE = re.compile(r"(?:ais_loader|storage_node)(?:\.\w+)+")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)
SOURCES = {".py", ".pyi", ".proto", ".c", ".h"}


def tracked() -> set[str]:
    """Files and folders of the repository."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    files = [file for file in files if (ROOT / file).exists()]
    return {*files, *(f"{folder}/" for file in files for folder in map(str, Path(file).parents) if folder != ".")}


TREE = tracked()
PAGES = [ROOT / path for path in sorted(TREE) if path.endswith(".md")]
ROOMS = {path.removeprefix(base).split("/")[0] for base in BASES for path in TREE if path.startswith(base)}
FILE_NAMES = {Path(path).name for path in TREE if not path.endswith("/")}


def named_paths(text: str) -> Iterator[str]:
    """What is written as code and can only mean a file, or a folder, of the repository."""
    for code in CODE.findall(FENCE.sub("", text)):
        for word in code.split():
            if not PATH.fullmatch(word) or word.startswith(".venv/"):
                continue
            if Path(word).suffix in SOURCES or ("/" in word.rstrip("/") and word.split("/")[0] in ROOMS):
                yield word


def is_there(path: str) -> bool:
    if "/" not in path:
        return path in FILE_NAMES
    return any({base + path, f"{base}{path.rstrip('/')}/"} & TREE for base in BASES)


@table("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_folder_that_a_page_names_is_in_the_repository(page: Path) -> None:
    missing = sorted({path for path in named_paths(page.read_text()) if not is_there(path)})
    assert not missing


def is_importable(name: str) -> bool:
    """Whether a dotted name is a module, or something in one: as far as the files say, nothing is imported."""
    name = name.replace("ais_loader.integrations", "integrations")  # where setup.cfg has it from
    path, *rest = name.split(".")
    for at, part in enumerate(rest):
        path = f"{path}/{part}"
        if f"{path}.py" in TREE:
            return all(attribute in (ROOT / f"{path}.py").read_text() for attribute in rest[at + 1 :])
        if f"{path}/" not in TREE:
            return part.startswith("__") or part in (ROOT / Path(path).parent / "__init__.py").read_text()
    return True


@table("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_that_a_page_names_is_in_the_repository(page: Path) -> None:
    names = {word for word in re.split(r"\.?[^\w.]+", page.read_text()) if MODULE.fullmatch(word)}
    assert not sorted(name for name in names if not is_importable(name))


@table("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_of_a_page_leads_to_a_file(page: Path) -> None:
    targets = {link.partition("#")[0] for link in LINK.findall(FENCE.sub("", page.read_text())) if "://" not in link}
    assert not sorted(target for target in targets if target and not (page.parent / target).exists())


def test_every_page_that_code_and_messages_name_is_in_the_repository() -> None:
    words = ["git", "grep", "--untracked", "-hoPI", r"(?<![\w/.])docs/[\w/-]+\.md\b"]
    named = set(subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split())
    assert len(named) > 20
    assert sorted(named - TREE) == []


def test_a_name_that_is_gone_is_noticed() -> None:
    assert list(named_paths("`storage_node/gone.py`, `gone.py` and `store/read/`, not `a.wav` nor `en/a.wav`")) == [
        "storage_node/gone.py",
        "gone.py",
        "store/read/",
    ]
    assert not is_there("storage_node/gone.py") and not is_there("gone.py") and not is_there("store/gone/")
    assert not is_importable("storage_node.gone") and not is_importable("storage_node.settings.config.Gone")
    assert is_importable("storage_node.settings.config.ServerConfig") and is_importable("ais_loader.connect")
    assert is_there("store/read/") and is_there("storage_node/store/read/batch.py") and is_there("setup.py")


def test_every_type_of_the_glossary_is_defined_in_the_file_that_it_names() -> None:
    named = re.findall(r"`([A-Z]\w+)` in `([\w/]+\.py)`", (ROOT / "docs/glossary.md").read_text())
    assert len(named) >= 5
    assert [name for name, path in named if not re.search(rf"^class {name}\b", (ROOT / path).read_text(), re.M)] == []


QUOTED = re.compile(r"`(tests/[\w/]+\.py)`[^`]*```python\n(.*?)```", re.S)


def test_what_contributors_are_shown_stands_in_the_tests_that_it_is_from() -> None:
    quotes = QUOTED.findall((ROOT / "CONTRIBUTING.md").read_text())
    assert len(quotes) >= 3
    for test, code in quotes:
        there = {line.partition("#")[0].strip() for line in (ROOT / test).read_text().splitlines()}
        assert [line for line in code.splitlines() if line.partition("#")[0].strip() not in there] == []
