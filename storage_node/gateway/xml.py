"""XML of requests and answers. Requests may have no document type, no entities, and a limited depth and size."""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.parsers import expat
from xml.sax.saxutils import escape

from storage_node.gateway.errors import Refusal, S3Error

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_MAX_DEPTH = 8
_MAX_ELEMENTS = 100_000
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


class Element:
    """An element of a request, without its namespace."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = ""
        self.children: list[Element] = []

    def find(self, name: str) -> str | None:
        """Return the text of the first child of this name; None if there is none."""
        return next((child.text for child in self.children if child.name == name), None)

    def all(self, name: str) -> list[Element]:
        """Return the children of this name."""
        return [child for child in self.children if child.name == name]


def parse(data: bytes, root: str) -> Element:
    """Parse a request whose outermost element is `root`. Raises S3Error with the code MalformedXML."""
    top = Element("")
    stack, count = [top], 0

    def begin(name: str, _: object) -> None:
        nonlocal count
        count += 1
        if len(stack) > _MAX_DEPTH or count > _MAX_ELEMENTS:
            raise S3Error("MalformedXML", "the document has too many elements")
        child = Element(name.rpartition("\n")[2])
        stack[-1].children.append(child)
        stack.append(child)

    def end(_: str) -> None:
        stack.pop()

    def text(data: str) -> None:
        stack[-1].text += data

    def refuse(*_: object) -> int:
        raise S3Error("MalformedXML", "document types and entities are not allowed")

    parser = expat.ParserCreate(namespace_separator="\n")
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = begin, end, text
    parser.StartDoctypeDeclHandler, parser.ExternalEntityRefHandler = refuse, refuse
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise S3Error("MalformedXML", f"the document is not well-formed: {error}") from None
    if len(top.children) != 1 or top.children[0].name != root:
        raise S3Error("MalformedXML", f"the document's root must be {root}")
    return top.children[0]


def tag(name: str, value: object) -> str:
    """Return an element with text."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    # XML 1.0 has no form for most control characters; clients that have such keys ask for encoding-type=url.
    return f"<{name}>{_NOT_XML.sub('?', escape(text)).replace(chr(13), '&#13;')}</{name}>"


def tags(**values: object) -> str:
    """Return elements with text, in this order, without those that are None."""
    return "".join(tag(name, value) for name, value in values.items() if value is not None)


def nest(name: str, parts: Iterable[str]) -> str:
    """Return an element of elements."""
    return f"<{name}>{''.join(parts)}</{name}>"


def document(name: str, parts: Iterable[str]) -> bytes:
    """Return an answer."""
    body = "".join(parts)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} xmlns="{NAMESPACE}">{body}</{name}>'.encode()


def error_document(error: Refusal, resource: str, request_id: str) -> bytes:
    """Return the body of a refusal."""
    parts = tags(Code=error.code, Message=error.message, **error.details, Resource=resource, RequestId=request_id)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{parts}</Error>'.encode("utf-8", "replace")
