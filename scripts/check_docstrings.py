"""Check of docstrings: none opens with a word that postpones its subject.

    python -m scripts.check_docstrings

A docstring is a sentence with a subject and a verb, or a noun phrase. "What is stored of it" and "Of the last pass"
make the reader guess the subject; "The stored bytes" and "Number of names in the last pass" do not.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("ais_loader", "storage_node", "integrations", "examples", "benchmarks", "scripts")
OPENINGS = frozenset({"As", "By", "Of", "That", "What", "Whoever", "Whom", "Whose"})


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the strings that stand alone as statements: docstrings, and descriptions of attributes below them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def wrong_openings(name: str, source: str) -> Iterator[str]:
    """Yield a line for each docstring of a module's source that opens with one of OPENINGS."""
    for found in docstrings(ast.parse(source)):
        first, *_ = str(found.value).split() or [""]
        if first.rstrip(",:;.'") in OPENINGS:
            yield f"{name}:{found.lineno}: a docstring opens with {first!r}; name its subject first"


def main() -> int:
    modules = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if "_pb2" not in path.name]
    wrong = [line for path in modules for line in wrong_openings(str(path.relative_to(ROOT)), path.read_text())]
    print("\n".join(wrong) or f"the docstrings of {len(modules)} modules name their subjects")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
