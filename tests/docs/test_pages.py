"""Every code block of README.md and docs/*.md: of a known kind, well-formed, and run as a reader would run it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.page_kit import LANGUAGES, ROOT, Block, blocks, commands, indented_code, run_page
from tests.table import table

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MOST_NOT_RUN = 31
"""Blocks that cannot be run in a test. Fewer is better; one more needs a reason better than those that are there."""
BLOCKS = [(page, block) for page in PAGES for block in blocks(page.read_text())]
RUN = [page for page in PAGES if any(at == page and not block.not_run for at, block in BLOCKS)]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@table("page", PAGES, ids=name)
def test_all_code_of_a_page_is_in_blocks_of_a_known_kind(page: Path) -> None:
    text = page.read_text()
    assert indented_code(text) == []
    assert re.findall(r"<!-- (?!not run: |made by ).*", text) == [], "a set-up is for readers, too: show it"
    assert [block.line for block in blocks(text) if block.language not in LANGUAGES] == []


def test_python_compiles_and_console_blocks_have_commands() -> None:
    for page, block in BLOCKS:
        if block.language == "python":
            compile(block.text, f"{name(page)}:{block.line}", "exec")
        elif block.language == "console":
            assert commands(block.text), f"{name(page)}:{block.line}"
        elif block.language == "yaml":
            assert block.not_run, f"{name(page)}:{block.line}: nothing runs it"


def test_pages_install_from_a_checkout_until_there_is_a_release() -> None:
    assert [
        name(page) for page in PAGES if re.search(r"pip install '?ais-loader|`ais-loader\[", page.read_text())
    ] == []


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    left_out = [f"{name(page)}:{block.line}: {block.not_run}" for page, block in BLOCKS if block.not_run]
    assert len(left_out) <= MOST_NOT_RUN, "\n".join(left_out)
    assert len(BLOCKS) - len(left_out) >= 50
    assert [one for one in left_out if len(one.partition(": ")[2]) < 10] == []


def test_the_loaders_of_the_training_page_are_short() -> None:
    page = ROOT / "docs" / "training.md"
    scripts = [block.text for at, block in BLOCKS if at == page and "BatchLoader(" in block.text]
    assert len(scripts) >= 5
    assert max(sum(bool(line.strip()) for line in script.splitlines()) for script in scripts) <= 15


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", RUN, ids=name)
def test_the_blocks_of_a_page_run_and_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)


PAGE = """
# A page

```python
print(1 + 1)
```
```text
{answer}
```

<!-- not run: it would never end -->
```console
$ sleep inf
```
"""


def test_blocks_are_found_with_what_is_said_about_them() -> None:
    assert blocks(PAGE.format(answer=2)) == [
        Block("python", "print(1 + 1)\n", 5, answer="2\n"),
        Block("console", "$ sleep inf\n", 13, not_run="it would never end"),
    ]
    assert commands("$ a \\\n  b\nsaid\n$ c\n") == [("a \\\n  b", "said\n"), ("c", "")]
    assert indented_code("one\n\n    $ two\n") == ["    $ two"]


@pytest.mark.slow
def test_a_block_that_prints_something_else_or_fails_is_noticed(tmp_path: Path) -> None:
    for number, (text, said) in enumerate(
        {
            PAGE.format(answer=2): "",
            PAGE.format(answer=3): "the page shows",
            "```python\n1 / 0\n```\n": "ZeroDivisionError",
            "```console\n$ echo a\nb\n```\n": "this came\na",
            "```console\n$ false\n```\n": "ended with code 1",
            '```toml\nmemory_byte = "1 GiB"\n```\n': "memory_byte: no such setting",
        }.items()
    ):
        page = ROOT / "tests" / "docs" / "made_up.md"
        (scratch := tmp_path / str(number)).mkdir()
        told = run_text(text, page, scratch)
        assert said in told if said else not told, told


def run_text(text: str, page: Path, scratch: Path) -> str:
    """What is said of a page of this text; "" if it runs."""
    try:
        run_page(page, scratch, text=text)
    except AssertionError as error:
        return str(error)
    return ""
