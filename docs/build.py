"""The documentation as HTML: the API reference from docstrings, and every Markdown page of the repository.

    python -m docs.build build/docs

Needs no network. Whatever the generator warns of is an error, and so is a link of a page that leads nowhere.
"""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urljoin, urlsplit

import pdoc
import pdoc.doc
import pdoc.render
from pdoc.render_helpers import to_html

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = Path(__file__).resolve().parent / "templates"
API: dict[str, list[str]] = {
    "ais_loader": [],
    "ais_loader.errors": [],
    "ais_loader.objects.archive": ["BatchArchive"],
    "ais_loader.decoders": [],
    "ais_loader.values.entry_table": ["EntryTable"],
    "ais_loader.training.plan": ["Plan"],
    "ais_loader.values.summary": ["PrefixSummary"],
    "ais_loader.transport.base": ["BucketInfo"],
    "ais_loader.integrations.fsspec": [],
    "ais_loader.testing": [],
    "storage_node.settings.config": ["ServerConfig"],
    "storage_node.server": ["NodeServer"],
    "storage_node.settings.sources": ["WrongSetting", "configured", "read_assignments", "read_file"],
}
"""Documented modules, and what is public of those that do not say so by `__all__`."""
ORDER = ("README.md", "docs/architecture.md", "docs/glossary.md", "docs/decisions", "docs", "storage_node", "C", "")
"""In which the pages are listed, by what their paths begin with."""


class Links(HTMLParser):
    """What a page refers to, and what in it can be referred to."""

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
    """Markdown of the repository, by paths from its root."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    found = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()

    def place(name: str) -> tuple[int, str]:
        return next(at for at, start in enumerate(ORDER) if name.startswith(start)), name

    return [Path(name) for name in sorted(found, key=place) if (ROOT / name).exists()]


def title(page: Path) -> str:
    first = (ROOT / page).read_text().partition("\n")[0]
    return first.removeprefix("#").strip()


def adopt(public: type) -> None:
    """Show what a class has from classes of ours that are not public as its own."""
    for base in public.__mro__[1:]:
        if base.__module__.partition(".")[0] in ("ais_loader", "storage_node"):
            for name, member in vars(base).items():
                if not name.startswith("_") and name not in vars(public):
                    setattr(public, name, member)


def public_names(module: ModuleType) -> list[str]:
    """Of one that has no list of them, its own classes."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return API[module.__name__] or vars(module).get("__all__") or [name for name in own if name[0].isupper()]


def write_api(out: Path) -> None:
    for module in map(importlib.import_module, API):
        names = public_names(module)
        vars(module)["__all__"] = names
        for attribute in names:  # those that are imported when they are asked for are in no module's namespace before
            value = getattr(module, attribute)
            setattr(module, attribute, value)
            if isinstance(value, type):
                adopt(value)
    # The errors come with the package, which has them in its list.
    pdoc.pdoc(*(name for name in API if name != "ais_loader.errors"), output_directory=out / "api")


def write_pages(out: Path) -> None:
    listed = [(page, title(page)) for page in pages()]
    template = pdoc.render.env.get_template("page.html.jinja2")
    for page, heading in listed:
        body = to_html((ROOT / page).read_text())
        for target in Links(body).targets:
            path = urlsplit(target).path
            source = (ROOT / page).parent / unquote(path)
            if path and not urlsplit(target).scheme and source.suffix != ".md" and source.is_file():
                copy = out / source.resolve().relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)
        body = re.sub(r'(href="(?![a-z]+:)[^"#]*)\.md(?=["#])', r"\1.html", body)
        up = "../" * (len(page.parts) - 1)
        html = template.render(title=heading, body=body, pages=listed, modules=API, up=up)
        path_out = (out / page).with_suffix(".html")
        path_out.parent.mkdir(parents=True, exist_ok=True)
        path_out.write_text(html)
    (out / "index.html").write_text('<!doctype html><meta http-equiv="refresh" content="0; url=README.html">\n')


def broken_links(out: Path) -> list[str]:
    """Links of pages that lead to nothing below `out`; those of the reference are the generator's."""
    read = {path.relative_to(out).as_posix(): Links(path.read_text()) for path in out.rglob("*.html")}
    broken = []
    for name, links in sorted(read.items()):
        for target in links.targets:
            if urlsplit(target).scheme or name.startswith("api/"):
                continue
            to, _, anchor = urljoin(name, target).partition("#")
            to = unquote(to) or name
            if not (out / to).is_file() or (anchor and to in read and unquote(anchor) not in read[to].anchors):
                broken.append(f"{name}: {target}")
    return broken


def main(out: Path) -> int:
    warnings.simplefilter("error")
    shutil.rmtree(out, ignore_errors=True)
    pdoc.render.configure(docformat="google", template_directory=TEMPLATES, footer_text="ais-loader")
    write_api(out)
    write_pages(out)
    if broken := broken_links(out):
        print("links that lead nowhere:", *broken, sep="\n  ", file=sys.stderr)
        return 1
    print(f"{out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
