"""Previews: kinds by name, and tables of first bytes."""

from __future__ import annotations

import pytest

from ais_loader.ui.preview import MAX_ROWS, Table, kind_of, table_of, text_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a/b.JPG", "image"),
        ("a.b.flac", "audio"),
        ("rows.csv", "table"),
        ("page.svg", "text"),
        ("shard-1.tar.zst", "archive"),
        ("folder.png/noending", "none"),
        ("model.bin", "none"),
    ],
)
def test_a_kind_is_by_the_ending_of_the_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_a_table_leaves_out_a_line_that_is_cut() -> None:
    assert table_of("a.csv", b"a,b\n1,2\n3,", whole=False) == Table(["a", "b"], [["1", "2"]], True)
    assert table_of("a.tsv", b"a\tb\n1\t2\n3\t", whole=True) == Table(["a", "b"], [["1", "2"], ["3", ""]])
    assert table_of("a.csv", b"", whole=True) is None


def test_lines_of_json_have_all_their_names_as_columns() -> None:
    lines = b'{"a": 1}\n\n{"b": [2], "a": null}\n"x"\n'
    assert table_of("a.jsonl", lines, whole=True) == Table(
        ["a", "b", "value"], [["1", "", ""], ["null", "[2]", ""], ["", "", "x"]]
    )
    assert table_of("a.jsonl", b'{"a": 1}\nno json\n', whole=True) is None


def test_a_table_ends_after_some_rows_and_cells_after_some_characters() -> None:
    table = table_of("a.csv", b"a\n" + b"x" * 1000 + b"\n" + b"1\n" * 300, whole=True)
    assert table is not None and table.more and len(table.rows) == MAX_ROWS
    assert len(table.rows[0][0]) == 300


def test_what_is_no_utf_8_is_shown_all_the_same() -> None:
    assert text_of(b"gr\xc3\xbc\xc3") == "grü�"
