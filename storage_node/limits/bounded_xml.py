"""XML that others send: parsed in pieces, with limits on its size, depth and elements, and without document types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol
from xml.parsers import expat

MAX_BYTES = 4 << 20
"""Largest document: 1,000 rows of a listing, each with the longest name."""
_MAX_DEPTH = 8
_MAX_ELEMENTS = 100_000
_PIECE_BYTES = 256 << 10
"""The parser begins an unfinished token again with each piece, so pieces must not be small."""


class XmlError(ValueError):
    """The document is not well-formed, is beyond the limits, or has another root."""


class XmlSource(Protocol):
    """Binary file that a document is read from."""

    def read(self, size: int, /) -> bytes: ...


class Element:
    """An element without its namespace."""

    __slots__ = ("_texts", "attributes", "children", "name")

    def __init__(self, name: str, attributes: Mapping[str, str]) -> None:
        self.name, self.attributes = name, attributes
        self.children: list[Element] = []
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """The element's own text."""
        return "".join(self._texts)

    def child(self, name: str) -> Element | None:
        """Return the first child of this name; None if there is none."""
        return next((child for child in self.children if child.name == name), None)

    def find(self, name: str) -> str | None:
        """Return the text of the first child of this name; None if there is none."""
        found = self.child(name)
        return None if found is None else found.text

    def all(self, name: str) -> list[Element]:
        """Return the children of this name."""
        return [child for child in self.children if child.name == name]


def parse(source: XmlSource, root: str, rows: Mapping[str, Callable[[Element], object]] | None = None) -> Element:
    """Parse a document, and return its outermost element, which must be `root`.

    Args:
        rows: receivers of elements by name, which get each one at its end. It is not kept in the document.

    Raises XmlError, and what `source` and the receivers raise.
    """
    top = Element("", {})
    stack, count = [top], 0

    def begin(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if len(stack) > _MAX_DEPTH or count > _MAX_ELEMENTS:
            raise XmlError("the document has too many elements")
        name = name.rpartition("\n")[2]
        if len(stack) == 1 and name != root:
            raise XmlError(f"the document's root must be {root}")
        child = Element(name, attributes)
        stack[-1].children.append(child)
        stack.append(child)

    def end(_: str) -> None:
        element = stack.pop()
        if rows and (receive := rows.get(element.name)) is not None:
            stack[-1].children.pop()
            receive(element)

    def text(data: str) -> None:
        stack[-1]._texts.append(data)

    def refuse(*_: object) -> int:
        raise XmlError("document types and entities are not allowed")

    parser = expat.ParserCreate(namespace_separator="\n")
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = begin, end, text
    parser.StartDoctypeDeclHandler, parser.ExternalEntityRefHandler = refuse, refuse
    left = MAX_BYTES
    try:
        while piece := source.read(_PIECE_BYTES):
            left -= len(piece)
            if left < 0:
                raise XmlError(f"the document has more than {MAX_BYTES:,} bytes")
            parser.Parse(piece, False)
        parser.Parse(b"", True)
    except (expat.ExpatError, LookupError) as error:
        raise XmlError(f"the document is not well-formed: {error}") from None
    return top.children[0]
