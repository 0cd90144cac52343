"""A public name does not go unannounced: docs/stability.md."""

from __future__ import annotations

import ast
import re
import subprocess

import ais_loader
from tests.docs.page_kit import ROOT
from tests.packaging.packaging_kit import last_release


def public_names(source: str) -> set[str]:
    """`__all__` of a module, and names of the error classes in it."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names |= set(ast.literal_eval(node.value))
    return names


def unannounced(gone: set[str], changelog: str) -> set[str]:
    """Names that are not under Removed, or were not under Deprecated in a section below that."""
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]

    def listed(name: str, kind: str) -> list[int]:
        texts = [re.search(rf"^### {kind}$(.*?)(?=^### |\Z)", one, re.MULTILINE | re.DOTALL) for one in sections]
        return [at for at, text in enumerate(texts) if text and re.search(rf"`[^`]*\b{name}\b[^`]*`", text[1])]

    return {
        name
        for name in gone
        if not any(later < earlier for later in listed(name, "Removed") for earlier in listed(name, "Deprecated"))
    }


def test_each_public_name_that_has_gone_since_the_last_release_was_announced() -> None:
    gone: set[str] = set()
    for path in ("ais_loader/__init__.py", "ais_loader/errors.py"):
        command = ["git", "show", f"{last_release()}:{path}"]
        before = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=True).stdout
        assert len(public_names(before)) > 20
        gone |= public_names(before) - public_names((ROOT / path).read_text())
    assert unannounced(gone, (ROOT / "CHANGELOG.md").read_text()) == set()
    assert set(ais_loader.__all__) <= public_names((ROOT / "ais_loader" / "__init__.py").read_text())


def test_a_name_is_announced_by_a_deprecation_before_its_removal() -> None:
    before = "## [0.2.0]\n### Deprecated\n- `old()`: use `new()`.\n### Fixed\n- `other` works.\n"
    assert unannounced({"old"}, "## [Unreleased]\n### Removed\n- `old`.\n" + before) == set()
    assert unannounced({"old"}, "## [Unreleased]\n" + before) == {"old"}
    assert unannounced({"old"}, "## [Unreleased]\n### Removed\n- `old`.\n### Deprecated\n- `old`.\n") == {"old"}
    assert unannounced({"other"}, "## [Unreleased]\n### Removed\n- `other`.\n" + before) == {"other"}
