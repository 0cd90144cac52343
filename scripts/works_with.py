"""Sections of the libraries that work with a store, in docs/works-with.md: runs a program of each, and writes them.

    make works-with

A row is a program of tests/front/clients/programs. Its docstring says what it does and what differs, PACKAGES which
packages it is about, and the comment `# change` marks the lines that a program for files does not have. They are
written only if every program has over the store what it has over files. Versions are those that
tests/front/requirements-clients.txt pins. A test compares the page with the programs.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

from scripts.made_parts import with_part

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "front" / "clients"
PROGRAMS = sorted((FOLDER / "programs").glob("*.py"))
PAGE = ROOT / "docs" / "works-with.md"
REQUIREMENTS = ROOT / "tests" / "front" / "requirements-clients.txt"
NOT_RUN: dict[str, str] = {}
"""Libraries that were asked for and could not be run, with the reason."""


@dataclass(frozen=True, slots=True)
class Row:
    """A program of the page, as it describes itself."""

    title: str
    what: str
    differs: str
    packages: tuple[str, ...]
    changes: tuple[str, ...]
    path: str

    @classmethod
    def of(cls, program: Path) -> Row:
        """Parse a program. Raises ValueError for one that lacks a part."""
        text = program.read_text()
        tree = ast.parse(text)
        first, _, rest = (ast.get_docstring(tree) or "").partition("\n\n")
        title, colon, what = " ".join(first.split()).partition(": ")
        packages = next(
            (
                ast.literal_eval(node.value)
                for node in tree.body
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PACKAGES"
            ),
            (),
        )
        changes = tuple(re.findall(r"^\s*(.*\S)  # change$", text, re.MULTILINE))
        if not colon or not packages or not changes:
            raise ValueError(f"{program.name}: need a docstring `TITLE: what`, PACKAGES, and lines marked `# change`")
        differs = " ".join(rest.split()).removeprefix("Differs: ")
        return cls(title, what, differs, packages, changes, str(program.relative_to(ROOT)))


def pins() -> dict[str, str]:
    """Return the pinned version of each package."""
    return dict(re.findall(r"^([\w-]+)(?:\[.*\])?==(\S+)$", REQUIREMENTS.read_text(), re.MULTILINE))


def render() -> str:
    """Return the page with a section for each program. Raises KeyError for a package that is not pinned."""
    versions = pins()
    parts = []
    for row in map(Row.of, PROGRAMS):
        named = ", ".join(f"{package} {versions[package]}" for package in row.packages)
        lines = "line" if len(row.changes) == 1 else "lines"
        told = (
            f"{row.what[0].upper()}{row.what[1:]} Tested with {named}: {len(row.changes)} {lines} of change in "
            f"`{row.path}`."
        )
        parts.append(f"### {row.title}\n\n{_filled(told)}\n\n```text\n" + "\n".join(row.changes) + "\n```\n")
        if row.differs:
            parts.append(f"{_filled(row.differs)}\n")
    if NOT_RUN:
        rows = "\n".join(f"- {name}: {why}" for name, why in NOT_RUN.items())
        parts.append(f"### Not run\n\n{rows}\n")
    return with_part(PAGE, "scripts/works_with.py", "\n".join(parts))


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def environment() -> dict[str, str]:
    """Return variables for programs that need FFmpeg's libraries: where none are installed, those that PyAV brings."""
    import av

    brought = Path(av.__file__).parents[1] / "av.libs"
    if not brought.is_dir():
        return {}
    links = Path(tempfile.gettempdir()) / f"ais-loader-ffmpeg-{os.getuid()}-{av.__version__}"
    links.mkdir(mode=0o700, exist_ok=True)
    for library in brought.glob("lib*.so.*"):
        found = re.match(r"(lib[a-z]+)-[0-9a-f]+(\.so\.\d+)", library.name)
        if found and not (link := links / (found[1] + found[2])).exists():
            link.symlink_to(library)
    return {
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [os.environ.get("LD_LIBRARY_PATH"), str(links), str(brought)]))
    }


def main() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "--timeout", "300", str(FOLDER / "test_programs.py")],
        env={**os.environ, "AIS_LOADER_FRONT": "clients"},
        cwd=ROOT,
    )
    if done.returncode:
        sys.exit("the page is left as it was: a program has something else over the store than over files")
    PAGE.write_text(render())


if __name__ == "__main__":
    main()
