"""XML of requests and answers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from io import BytesIO
from urllib.parse import quote
from xml.sax.saxutils import escape

from storage_node.limits import bounded_xml
from storage_node.limits.bounded_xml import Element

from .request import Refusal, S3Error

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def parse(data: bytes, root: str) -> Element:
    """Parse a request whose outermost element is `root`. Raises S3Error with the code MalformedXML."""
    try:
        return bounded_xml.parse(BytesIO(data), root)
    except ValueError as error:
        raise S3Error("MalformedXML", str(error)) from None


def is_beyond_xml(text: str) -> bool:
    """Whether a text has characters for which XML 1.0 has no form, such as most control characters."""
    return _NOT_XML.search(text) is not None


def url_encoded(key: str) -> str:
    """Return a key as answers with `encoding-type=url` have it."""
    return quote(key, safe="/-_.~*")


def key_tags(key: str) -> str:
    """Return an element with a key. One that XML cannot carry is encoded, with an element that says so."""
    return tags(Key=url_encoded(key), EncodingType="url") if is_beyond_xml(key) else tag("Key", key)


def tag(name: str, value: object) -> str:
    """Return an element with text. Characters that XML cannot carry become question marks, as in messages."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
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
