"""The table of layers in docs/architecture.md, compared with the floors of tests/test_layers.py and the folders."""

from __future__ import annotations

import itertools
import re

from tests.docs.page_kit import ROOT
from tests.test_layers import FLOORS, MODULES

NODE = "storage_node"


def rows() -> dict[str, str]:
    """Return the purpose of each row by the modules or packages that its first cell names, from the top."""
    table = (ROOT / "docs/architecture.md").read_text().partition(f"| `{NODE}` | purpose |")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:3] == "| `"]
    return {" ".join(re.findall(r"`([\w/.]+)`", first)): purpose for first, purpose, *_ in cells}


def dotted(path: str) -> str:
    return f"{NODE}." + path.removesuffix(".py").rstrip("/").replace("/", ".")


def row_of(name: str) -> str:
    """Return the row that describes this module or package: the one with the longest name that it begins with."""
    named = {dotted(path): row for row in rows() for path in row.split()}
    while name and name not in named:
        name = name.rpartition(".")[0]
    return named.get(name, "")


def test_every_floor_of_the_node_is_in_a_row() -> None:
    own = [name for name in FLOORS[NODE] if name.startswith(f"{NODE}.")]
    assert [name for name in own if not row_of(name)] == []
    assert [path for row in rows() for path in row.split() if dotted(path) not in MODULES] == []


def test_rows_stand_in_the_order_of_the_floors() -> None:
    floors: dict[str, list[int]] = {row: [] for row in rows()}
    for name, number in FLOORS[NODE].items():
        if name.startswith(f"{NODE}."):
            floors[row_of(name)].append(number)
    ranges = [(max(numbers), min(numbers), row) for row, numbers in floors.items() if numbers]
    wrong = [
        f"{upper} stands above {lower}, and is below it"
        for (_, lowest, upper), (highest, _, lower) in itertools.pairwise(ranges)
        if lowest < highest
    ]
    assert wrong == []


def test_every_folder_of_a_room_is_named_in_its_row() -> None:
    purposes = rows()
    folders = {path.parent for path in (ROOT / NODE).glob("*/*/*.py")}
    assert len(folders) > 20
    unnamed = []
    for folder in sorted(folders):
        row = row_of(dotted(f"{folder.parent.name}/{folder.name}"))
        if f"{folder.parent.name}/{folder.name}/" not in row.split() and f"`{folder.name}/`" not in purposes[row]:
            unnamed.append(f"{folder.parent.name}/{folder.name}/")
    assert unnamed == []
