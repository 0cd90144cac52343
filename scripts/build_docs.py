"""Every Markdown page of the repository as HTML.

    python -m scripts.build_docs build/docs

Needs no network. A link of a page that leads nowhere is an error.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from string import Template
from urllib.parse import unquote, urljoin, urlsplit

import markdown2

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ["code-friendly", "cuddled-lists", "fenced-code-blocks", "header-ids", "markdown-in-html", "tables"]
PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>$title</title>
<style>
body { margin: 0 auto; max-width: 60rem; padding: 1rem; font-family: sans-serif; line-height: 1.5 }
pre { overflow-x: auto; padding: 0.5rem; background: #f4f4f4 }
table { margin: 1rem 0; border-collapse: collapse }
td, th { padding: 0.2rem 0.5rem; border: 1px solid #ccc }
img { max-width: 100% }
</style>
<nav><details><summary>Pages</summary><ul>$pages</ul></details></nav>
<main>$body</main>
</html>
""")
ORDER = ("README.md", "docs/architecture.md", "docs/glossary.md", "docs/decisions", "docs", "storage_node", "C", "")
"""The order in which pages are listed, by the beginnings of their paths."""


class Links(HTMLParser):
    """The links of a page, and the anchors that links can lead to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name == "id":
                self.anchors.add(value)
            elif value and (tag, name) in {("a", "href"), ("img", "src")}:
                self.targets.append(value)


def pages() -> list[Path]:
    """Return the Markdown pages of the repository, as paths from its root."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    found = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()

    def place(name: str) -> tuple[int, str]:
        return next(at for at, start in enumerate(ORDER) if name.startswith(start)), name

    return [Path(name) for name in sorted(found, key=place) if (ROOT / name).exists()]


def title(page: Path) -> str:
    first = (ROOT / page).read_text().partition("\n")[0]
    return first.removeprefix("#").strip()


def write_pages(out: Path) -> None:
    listed = [(page, title(page)) for page in pages()]
    for page, heading in listed:
        body = markdown2.markdown((ROOT / page).read_text(), extras=EXTRAS)
        for target in Links(body).targets:
            path = urlsplit(target).path
            source = (ROOT / page).parent / unquote(path)
            if path and not urlsplit(target).scheme and source.suffix != ".md" and source.is_file():
                copy = out / source.resolve().relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)
        body = re.sub(r'(href="(?![a-z]+:)[^"#]*)\.md(?=["#])', r"\1.html", body)
        up = "../" * (len(page.parts) - 1)
        items = [f'<li><a href="{up}{one.with_suffix(".html").as_posix()}">{escape(name)}</a>' for one, name in listed]
        html = PAGE.substitute(title=escape(heading), body=body, pages="".join(items))
        path_out = (out / page).with_suffix(".html")
        path_out.parent.mkdir(parents=True, exist_ok=True)
        path_out.write_text(html)
    (out / "index.html").write_text('<!doctype html><meta http-equiv="refresh" content="0; url=README.html">\n')


def broken_links(out: Path) -> list[str]:
    """Return the links of pages that lead to nothing below `out`."""
    read = {path.relative_to(out).as_posix(): Links(path.read_text()) for path in out.rglob("*.html")}
    broken = []
    for name, links in sorted(read.items()):
        for target in links.targets:
            if urlsplit(target).scheme:
                continue
            to, _, anchor = urljoin(name, target).partition("#")
            to = unquote(to) or name
            if not (out / to).is_file() or (anchor and to in read and unquote(anchor) not in read[to].anchors):
                broken.append(f"{name}: {target}")
    return broken


def main(out: Path) -> int:
    shutil.rmtree(out, ignore_errors=True)
    write_pages(out)
    if broken := broken_links(out):
        print("links that lead nowhere:", *broken, sep="\n  ", file=sys.stderr)
        return 1
    print(f"{out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
