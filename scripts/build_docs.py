"""The site: every page of the repository, the API reference, and the tutorial as a notebook.

    python -m scripts.build_docs build/docs

Sphinx renders it, with the pages of docs/README.md beside each page. The pages link to each other as on a forge, so
Sphinx gets a copy of the tree with pages and what they link to alone. Needs no network. A link that leads nowhere is an
error.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import nbformat
from sphinx.application import Sphinx

from ais_loader.version import __version__
from scripts.write_reference import reference

ROOT = Path(__file__).resolve().parent.parent
URL = ""
"""Where the site is served, for llms.txt; empty for addresses relative to it."""
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.M | re.S)
ENTRY = re.compile(r"\[([^\]]+)\]\(([^)\s#]+\.md)\)")
OPTIONS: dict[str, Any] = {
    "project": "ais-loader",
    "release": __version__,
    "root_doc": "README",
    "extensions": ["myst_parser", "sphinx_copybutton"],
    "source_suffix": {".md": "markdown"},
    "myst_heading_anchors": 4,
    "myst_links_external_new_tab": True,
    "suppress_warnings": ["myst.header"],
    "html_theme": "furo",
    "html_title": f"ais-loader {__version__}",
    "html_copy_source": False,
    "html_show_copyright": False,
    "html_show_sphinx": False,
    "copybutton_prompt_text": "$ ",
}


def pages() -> list[Path]:
    """Return the Markdown pages of the repository, as paths from its root."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    found = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return [Path(name) for name in sorted(found) if (ROOT / name).exists() and not name.startswith(".")]


def sections() -> dict[str, list[tuple[str, Path]]]:
    """Return title and path of the pages that docs/README.md lists, by its headings."""
    text = (ROOT / "docs" / "README.md").read_text()
    return {
        heading: [(title, (ROOT / "docs" / path).resolve().relative_to(ROOT)) for title, path in ENTRY.findall(body)]
        for heading, body in SECTION.findall(text)
    }


def stage(source: Path) -> None:
    """Copy all pages, and the files that they show or offer, to a folder. Add what is generated."""
    for page in pages():
        text = (ROOT / page).read_text()
        for target in LINK.findall(text):
            path = ((ROOT / page).parent / unquote(urlsplit(target).path)).resolve()
            if not urlsplit(target).scheme and path.suffix != ".md" and path.is_file():
                _copy(path, source / path.relative_to(ROOT))
        (source / page).parent.mkdir(parents=True, exist_ok=True)
        (source / page).write_text(_linked_to_folders(text, page))
    (source / "docs" / "reference.md").write_text(reference())
    nbformat.write(notebook(ROOT / "docs" / "tutorial.md"), source / "docs" / "tutorial.ipynb")
    listed = sections()
    known = {page for entries in listed.values() for _, page in entries}
    others = sorted(page for page in pages() if page not in known and page.as_posix() != "README.md")
    listed["Measured"] = [("", page) for page in others if page.parts[0] == "benchmarks"]
    listed["More"] = [("", page) for page in others if page.parts[0] != "benchmarks"]
    listed["Reference"].insert(0, ("API reference", Path("docs", "reference.md")))
    with (source / "README.md").open("a") as file:
        file.writelines(_toctree(caption, [page for _, page in entries]) for caption, entries in listed.items())


def _copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, to)


def _linked_to_folders(text: str, page: Path) -> str:
    """Take the links to folders, which a forge shows and a site has not, out of a page."""

    def plain(found: re.Match[str]) -> str:
        target = urlsplit(found[2])
        is_folder = not target.scheme and target.path and ((ROOT / page).parent / target.path).is_dir()
        return found[1] if is_folder else found[0]

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", plain, text)


def _toctree(caption: str, listed: list[Path]) -> str:
    names = dict.fromkeys(page.with_suffix("").as_posix() for page in listed)
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```", ""])


def notebook(page: Path) -> nbformat.NotebookNode:
    """Return a page as a notebook: its Python is code, its commands run in a shell, and what they print is left out."""
    cells = []
    parts = re.split(r"^```(\w+)\n(.*?)^```\n", page.read_text(), flags=re.M | re.S)
    for text, kind, code in zip(parts[::3], [*parts[1::3], ""], [*parts[2::3], ""], strict=True):
        if text.strip():
            cells.append(nbformat.v4.new_markdown_cell(text.strip()))
        if kind == "python" and "__main__" in code:
            cells.append(nbformat.v4.new_code_cell(f"%%writefile program.py\n{code.rstrip()}"))
            cells.append(nbformat.v4.new_code_cell("!python program.py"))
        elif kind == "python":
            cells.append(nbformat.v4.new_code_cell(code.rstrip()))
        elif kind == "console":
            commands = [line.removeprefix("$ ") for line in code.splitlines() if line.startswith("$ ")]
            magic = "%%bash --bg" if any(line.startswith("ais-loader serve") for line in commands) else "%%bash"
            cells.append(nbformat.v4.new_code_cell("\n".join([magic, *commands])))
    return nbformat.v4.new_notebook(cells=cells, metadata={"language_info": {"name": "python"}})


def write_llms(source: Path, out: Path) -> None:
    """Write llms.txt, the list of the pages, and llms-full.txt, their text. Source: https://llmstxt.org."""
    intro = (source / "README.md").read_text().partition("\n## ")[0].partition("```")[0].strip()
    lines, full = [intro, ""], [(source / "README.md").read_text()]
    for heading, entries in sections().items():
        lines += [f"## {heading}", ""]
        for title, page in entries:
            _copy(source / page, out / page)
            lines.append(f"- [{title}]({URL}{page.as_posix()})")
            full.append((source / page).read_text())
        lines.append("")
    (out / "llms.txt").write_text("\n".join(lines))
    (out / "llms-full.txt").write_text("\n\n".join(full))


def main(out: Path) -> int:
    shutil.rmtree(out, ignore_errors=True)
    source, cache = out.with_name(f"{out.name}-source"), out.with_name(f"{out.name}-cache")
    shutil.rmtree(source, ignore_errors=True)
    stage(source)
    site = Sphinx(
        source, None, out, cache, "html", OPTIONS, status=None, warning=sys.stderr, freshenv=True, keep_going=True
    )
    site.build()
    _copy(source / "docs" / "tutorial.ipynb", out / "docs" / "tutorial.ipynb")
    (out / "index.html").write_text('<!doctype html><meta http-equiv="refresh" content="0; url=README.html">\n')
    write_llms(source, out)
    shutil.rmtree(source)
    if site.statuscode or site._warncount:
        return 1
    print(f"{out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
