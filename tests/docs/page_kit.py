"""Code blocks of the pages, and a process that runs them as a reader would: in order, in a folder of small data.

What a fence's language means here:

- `python`: run in the namespace of the blocks before it. A whole program (with `if __name__ == "__main__":`) is written
  to a file and run by itself, and so is one whose first line is a file's name (`# train.py`).
- `console`: lines that begin with `$ ` are run by bash; lines below them, if any, are the answer, in which `...`
  stands for anything. `ais-loader serve`, `gateway` and `ui` run until the page is over.
- `text` right below one of these is what it printed.
- `toml` must be settings that a node takes.

A comment `<!-- not run: REASON -->` right before a block says why it is not run. Nothing runs that a reader cannot see:
what a block needs is a block before it, folded into `<details>` where it is long.

A page names folders and addresses as readers have them; here `/data/`, `/nfs/` and so on are below the scratch folder,
and 7480 is a free port, as is 9000, that of a gateway.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import PIL.Image

from tests.free_ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGE_TIMEOUT_S = 800
LANGUAGES = {"python", "console", "text", "toml", "yaml"}
_FENCE = re.compile(r"^(?P<fence>```|~~~)(?P<language>[\w-]*)\n(?P<text>.*?)^(?P=fence)$", re.M | re.S)
_NOT_RUN = re.compile(r"<!-- not run: (?P<reason>[^>]+?) -->\n\Z")
_FOLDERS = re.compile(r"(?:(?<![\w./:-])|(?<=node://))/(data|disk1|disk2|nfs|mnt)\b")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page. `line` is that of its first line of text, from 1."""

    language: str
    text: str
    line: int
    not_run: str = ""
    answer: str | None = None
    """What it prints, where the page says so: the `text` block right below it."""


def blocks(page: str) -> list[Block]:
    """The blocks of a page's Markdown, in order; a `text` block below another one is that one's answer."""
    found: list[Block] = []
    end = 0
    for fence in _FENCE.finditer(page):
        before = page[end : fence.start()]
        reason = _NOT_RUN.search(before)
        block = Block(
            fence["language"],
            fence["text"],
            page[: fence.start("text")].count("\n") + 1,
            reason["reason"] if reason else "",
        )
        if block.language == "text" and found and not before.strip():
            found[-1] = replace(found[-1], answer=block.text)
        else:
            found.append(block)
        end = fence.end()
    return found


def indented_code(page: str) -> list[str]:
    """Lines that Markdown takes for code although no fence says of which kind."""
    outside = _FENCE.sub("", page).splitlines()
    return [
        line
        for above, line in itertools.pairwise(outside)
        if not above.strip() and line.startswith("    ") and line.strip()
    ]


def commands(text: str) -> list[tuple[str, str]]:
    """Commands of a console block, each with the answer shown below it, "" if none is."""
    found: list[tuple[str, str]] = []
    lines = iter(text.splitlines(keepends=True))
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\\n"):
                command += next(lines)
            found.append((command.rstrip("\n"), ""))
        elif not found:
            raise ValueError(f"a console block begins with a command, `$ ...`, not with {line!r}")
        else:
            found[-1] = (found[-1][0], found[-1][1] + line)
    return found


_WHOLE_LINES = """
import sys
if sys.stdout is not None and sys.stdout.write_through:
    sys.stdout = open(sys.stdout.fileno(), "w", buffering=1, closefd=False)
"""
"""torchrun starts each rank with -u: a line is then a write for each argument of `print`, between those of others."""


def make_data(folder: Path) -> None:
    """What the pages' programs are about: pictures and recordings, in folders by label, and a place for stores."""
    (folder / "data").mkdir()
    for label, colour in (("cat", "red"), ("dog", "blue")):
        (folder / "pictures" / label).mkdir(parents=True)
        for number in range(20):
            picture = PIL.Image.new("RGB", (40 + number, 30), colour)
            picture.save(folder / "pictures" / label / f"{number}.jpg")
    for language in ("en", "es"):
        shutil.copytree(ROOT / "tests/data/speech" / language, folder / "speech" / language)


def run_page(page: Path, scratch: Path, text: str | None = None, python: str = sys.executable) -> None:
    """Run the blocks of a page, or of `text` in its place, in an empty folder.

    `python` is the interpreter of an environment in which this library is installed. Raises AssertionError with what
    the first one that failed has said.
    """
    make_data(scratch)
    port = str(free_port())

    def here(said: str) -> str:
        said = _FOLDERS.sub(rf"{scratch}/\1", said)
        return re.sub(r"\b(?:127\.0\.0\.1|10\.0\.0\.5|localhost):(?:7480|9000)\b", f"127.0.0.1:{port}", said)

    found = blocks(page.read_text() if text is None else text)
    steps = [_step(block, port, here) for block in found if not block.not_run and block.language != "yaml"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIS_LOADER_")}
    (home := scratch / "home").mkdir()
    (home / "sitecustomize.py").write_text(_WHOLE_LINES)
    environment |= {
        "HOME": str(home),
        "PYTHONPATH": str(home),
        "PATH": f"{Path(python).parent}{os.pathsep}{environment['PATH']}",
        "COLUMNS": "120",
    }
    done = subprocess.run(
        [python, Path(__file__).with_name("run_blocks.py"), page.name],
        input=json.dumps(steps),
        cwd=scratch,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PAGE_TIMEOUT_S,
    )
    assert done.returncode == 0, f"{page.relative_to(ROOT)}\n{done.stdout}"


def _step(block: Block, port: str, here: Callable[[str], str]) -> dict[str, object]:
    """A block as run_blocks.py takes it."""
    return {
        "language": block.language,
        "line": block.line,
        "port": port,
        "text": here(block.text),
        "commands": commands(here(block.text)) if block.language == "console" else [],
        "answer": None if block.answer is None else here(block.answer),
    }
