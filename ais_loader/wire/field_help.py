"""Descriptions of fields: the strings below a class's fields, which `help()` shows with the class.

Python does not keep these strings. They are read from the source when the docstring of a public data class is read, so
importing it costs nothing.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import fields
from typing import Any

_OURS = ("ais_loader", "storage_node")


def field_docs(owner: type) -> dict[str, str]:
    """Return the string below each field of a class and of its bases, by name. Raises OSError if there is no source."""
    found: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        if base.__module__.partition(".")[0] not in _OURS:
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for one, below in zip(body.body, [*body.body[1:], None], strict=True):
            names: list[str] = []
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                names = [one.target.id]
            elif isinstance(one, ast.Assign):
                names = [target.id for target in one.targets if isinstance(target, ast.Name)]
            text = below.value if isinstance(below, ast.Expr) else None
            for name in names:
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    found[name] = " ".join(inspect.cleandoc(text.value).split())
    return found


class DocWithFields:
    """A class's docstring that ends with the descriptions of its fields. It is put together on first access."""

    def __init__(self, plain: str) -> None:
        self.plain = plain
        self._whole: str | None = None

    def __get__(self, instance: object, owner: type) -> str:
        if self._whole is None:
            try:
                self._whole = self.plain + _section(owner)
            except (OSError, SyntaxError):  # installed without its source
                self._whole = self.plain
        return self._whole


def describe_fields(cls: Any) -> None:
    """Make the docstring of a public data class include its fields."""
    plain = vars(cls).get("__doc__")
    if isinstance(plain, str):
        cls.__doc__ = DocWithFields(inspect.cleandoc(plain))


def _section(owner: Any) -> str:
    docs = field_docs(owner)
    lines = ["", "", "Fields:"]
    for field in fields(owner):
        if not field.name.startswith("_"):
            lines.append(f"    {field.name}: {field.type}")
            lines += textwrap.wrap(docs.get(field.name, ""), 100, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines)
