"""Previews: kinds by name, and tables of first bytes."""

from __future__ import annotations

import json
from dataclasses import asdict

from ais_loader.ui.preview import MAX_CELLS, MAX_COLUMNS, MAX_ROWS, MAX_TABLE_BYTES, Table, kind_of, table_of, text_of
from tests.table import table


@table(
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
    separators = '{"a": "1\u2028\x85\u20292"}\r\n{"a": 3}\n'.encode()  # JSON has them in strings as they are
    assert table_of("a.jsonl", separators, whole=True) == Table(["a"], [["1\u2028\x85\u20292"], ["3"]])


def test_a_table_ends_after_some_rows_and_cells_after_some_characters() -> None:
    table = table_of("a.csv", b"a\n" + b"x" * 1000 + b"\n" + b"1\n" * 300, whole=True)
    assert table is not None and table.more and len(table.rows) == MAX_ROWS
    assert len(table.rows[0][0]) == 300


WIDE = {
    "names in every line.jsonl": b"".join(b'{"%d": 1}\n' % at for at in range(28_000)),
    "names in one line.jsonl": b"{"
    + b", ".join(b'"%d": 1' % at for at in range(28_000))
    + b"}\n"
    + b'{"x": 1}\n' * 300,
    "columns.csv": (b"," * 28_000 + b"\n") + b",\n" * 300,
    "control characters.csv": b"a,b\n" + (b"\1" * 290 + b",") * 3 + b"\n" + (b"\1" * 290 + b"\n") * 300,
    "few rows.csv": b",".join(b"c%d" % at for at in range(90)) + b"\n" + (b"," * 89 + b"\n") * 300,
}


@table("name", WIDE)
def test_a_table_is_bounded_in_rows_columns_cells_and_bytes(name: str) -> None:
    table = table_of(name, WIDE[name], whole=True)
    assert table is not None and table.more and table.rows
    assert len(table.columns) <= MAX_COLUMNS and len(table.rows) <= MAX_ROWS
    assert all(len(row) <= len(table.columns) for row in table.rows)
    assert len(table.columns) * len(table.rows) <= MAX_CELLS
    assert len(json.dumps(asdict(table))) <= 2 * MAX_TABLE_BYTES


def test_what_is_no_utf_8_is_shown_all_the_same() -> None:
    assert text_of(b"gr\xc3\xbc\xc3") == "grü�"
