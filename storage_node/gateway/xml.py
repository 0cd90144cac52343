"""XML of requests and answers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from io import BytesIO
from xml.sax.saxutils import escape

from storage_node.gateway.errors import Refusal, S3Error
from storage_node.limits import bounded_xml
from storage_node.limits.bounded_xml import Element

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def parse(data: bytes, root: str) -> Element:
    """Parse a request whose outermost element is `root`. Raises S3Error with the code MalformedXML."""
    try:
        return bounded_xml.parse(BytesIO(data), root)
    except ValueError as error:
        raise S3Error("MalformedXML", str(error)) from None


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
