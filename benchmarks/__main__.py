"""List of the benchmarks: `python -m benchmarks`. With a word, those that have it in their name."""

from __future__ import annotations

import ast
from pathlib import Path

import click

HERE = Path(__file__).parent


def listed() -> list[tuple[str, str]]:
    """Name and summary of everything that `python -m` can run here, without importing it."""
    found = []
    for path in sorted(HERE.glob("*/*.py")):
        source = path.read_text()
        if path.name == "__main__.py" or 'if __name__ == "__main__":' in source:
            parts = path.relative_to(HERE.parent).with_suffix("").parts
            summary = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0]
            found.append((".".join(part for part in parts if part != "__main__"), " ".join(summary.split())))
    return found


@click.command(help=__doc__)
@click.argument("word", default="")
def main(word: str) -> None:
    for name, summary in listed():
        if word in name:
            click.echo(f"python -m {name}\n    {summary}")


if __name__ == "__main__":
    main()
