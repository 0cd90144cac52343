"""The API reference and the table of settings against the code that they are made from."""

from __future__ import annotations

import dataclasses
import re

import ais_loader
from ais_loader import BatchOptions, Bucket, Client
from scripts import write_reference

ANEW = "run `python -m scripts.write_reference`"


def test_the_reference_documents_every_class_with_its_methods() -> None:
    text = write_reference.reference()
    for heading in ("### `?Client`?", "#### `?Client.get_batch`?", "### `?BatchLoader`?", ".*ObjectNotFound"):
        assert re.search(f"^{heading}", text, re.M), heading


def test_the_table_of_settings_is_what_the_code_says() -> None:
    assert write_reference.SETTINGS.read_text() == write_reference.settings(), ANEW
    rows = [row.split(" | ") for row in write_reference.settings_table().splitlines() if row.startswith("| `")]
    assert [row[0] for row in rows if len(row[-1]) < 8] == [], "a setting without a docstring"


def test_the_reference_has_every_public_name_once() -> None:
    named = [name for names in write_reference.GROUPS.values() for name in names]
    assert sorted([*named, *write_reference.ELSEWHERE]) == sorted(ais_loader.__all__)


def test_help_of_get_batch_has_every_option_of_a_batch() -> None:
    for field in dataclasses.fields(BatchOptions):
        assert f"{field.name}:" in (Client.get_batch.__doc__ or "")
        assert field.name in (Bucket.get_batch.__doc__ or "")


def test_sections_of_a_docstring_become_lists() -> None:
    doc = """Does it.

    Args:
        name: what
            it is called.
        size_bytes: how much.

    Raises InvalidName.
    """
    assert write_reference.prose(doc).splitlines() == [
        "Does it.",
        "",
        "**Args**",
        "",
        "- `name`: what",
        "  it is called.",
        "- `size_bytes`: how much.",
        "",
        "Raises InvalidName.",
    ]
