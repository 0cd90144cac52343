"""Page of a benchmark whose contestants take turns: its rates and ratios, shown and kept beside its module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import click

from benchmarks.kit.harness import Claim, claims_table, conclude, judge, page, rates_table
from benchmarks.kit.plots import draw_rounds


def publish(
    title: str,
    story: str | None,
    setting: str,
    rates: Mapping[str, Sequence[float]],
    unit: str,
    claims: Sequence[Claim],
    *parts: str,
    table: Path | None,
    size_bytes: int | None = None,
    picture: bool = False,
) -> NoReturn:
    """Judge the rates, print the page, and exit with 1 when a claim was missed.

    Args:
        story: The benchmark's docstring.
        parts: What stands below the ratios.
        table: Where the page is kept, if anywhere.
        picture: Whether the page has a picture of the rates and ratios, with its name.
    """
    outcomes = judge(rates, claims)
    tables = (rates_table(rates, unit, size_bytes), claims_table(outcomes))
    if picture and table is not None:
        drawn = table.with_suffix(".png")
        draw_rounds(rates, outcomes, unit, drawn)
        parts = (*parts, f"![Rates, and the ratios of the rounds]({drawn.name})")
    text = page(title, story or "", setting, *tables, *parts)
    click.echo(text)
    conclude(text + "\n", table, reached=all(outcome.reached for outcome in outcomes))
