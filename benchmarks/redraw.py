"""Pictures drawn again from the tables beside them, with nothing measured anew.

python -m benchmarks.redraw             # all of PICTURES, beside their tables

A table has of each contestant and of each ratio the median and the range over the rounds, and so has its picture.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Claim, Outcome
from benchmarks.plots import draw_rounds, draw_shares

HERE = Path(__file__).parent
PICTURES = ("lhotse_batches", "ray_data", "webdataset_shards")
SHARES = ("cut_batches",)


def main(names: list[str]) -> None:
    for name in names or [*PICTURES, *SHARES]:
        page = (HERE / f"{name}.md").read_text()
        if name in SHARES:
            draw_shares(*shares_of(page), HERE / f"{name}.png")
        else:
            rates, outcomes, unit = rounds_of(page)
            draw_rounds(rates, outcomes, unit, HERE / f"{name}.png")


def rounds_of(page: str) -> tuple[dict[str, list[float]], list[Outcome], str]:
    """Of a page with the harness' tables: least, median and most of each contestant and ratio, and the rates' unit."""
    (unit,) = re.findall(r"^\| what \| median ([^|]+) \| range \|", page, re.M)
    rates = {cells[0]: _three(cells[1], cells[2]) for cells in _rows(page, "| what | median")}
    rates = {name: three for name, three in rates.items() if three[0] < three[2]}  # without what is no measurement
    outcomes = []
    for subject, wanted, median, spread, _ in _rows(page, "| ratio | wanted"):
        claim = Claim(*subject.split(" ÷ "), float(wanted.removeprefix("≥")))
        outcomes.append(Outcome(claim, tuple(_three(median, spread))))
    return rates, outcomes, unit


def shares_of(page: str) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Of a page about shares of time: least, median and most of each contestant, and the limit, in percent."""
    rows = list(_rows(page, "| share of time"))
    return (
        {cells[0]: _three(cells[2], cells[3]) for cells in rows},
        {cells[0]: float(cells[1].strip("≥< %")) for cells in rows},
    )


def _rows(page: str, head: str) -> Iterator[list[str]]:
    """Cells of the table whose first line begins like that."""
    _, _, table = page.partition(head)
    for line in table.splitlines()[2:]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def _three(median: str, spread: str) -> list[float]:
    least, most = spread.split(" – ")
    return [float(text.strip("*% ").replace(",", "")) for text in (least, median, most)]


if __name__ == "__main__":
    main(sys.argv[1:])
