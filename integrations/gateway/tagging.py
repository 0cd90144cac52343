"""Tags of objects: at most ten pairs of texts, in the object's own metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from . import xml
from .reading import change_metadata
from .request import Request, Response, S3Error, name_of, query_pairs, xml_response

if TYPE_CHECKING:
    from ais_loader.values.entry import ObjectInfo

HEADER = "x-amz-tagging"
_KEY = "s3.tagging"
_MAX_TAGS, _MAX_KEY, _MAX_VALUE = 10, 128, 256


def _text(tags: Sequence[tuple[str, str]]) -> str:
    """Return tags as they are kept. Raises S3Error unless they keep to S3's limits."""
    if len(tags) > _MAX_TAGS or len(dict(tags)) != len(tags):
        raise S3Error("InvalidTag", f"need at most {_MAX_TAGS} tags, whose keys differ")
    for key, value in tags:
        if not 1 <= len(key) <= _MAX_KEY or len(value) > _MAX_VALUE or key.startswith("aws:"):
            raise S3Error("InvalidTag", f"a key has 1 to {_MAX_KEY} characters, a value at most {_MAX_VALUE}")
        if xml.is_beyond_xml(key + value):
            raise S3Error("InvalidTag", "a tag has characters that XML cannot carry, in which tags are listed")
    return urlencode(sorted(tags))


def pairs(text: str) -> list[tuple[str, str]]:
    """Return tags from the text that is kept."""
    return query_pairs(text)


def text_of_header(value: str) -> str:
    """Return the tags in a header as they are kept. Raises S3Error."""
    return _text(query_pairs(value))


def text_of_document(data: bytes) -> str:
    """Return the tags in a document as they are kept. Raises S3Error."""
    sets = xml.parse(data, "Tagging").all("TagSet")
    if len(sets) != 1:
        raise S3Error("MalformedXML", "need one TagSet")
    return _text([(row.find("Key") or "", row.find("Value") or "") for row in sets[0].all("Tag")])


def of_copy(
    request: Request, source: ObjectInfo, metadata: dict[str, str] | None, given: dict[str, str]
) -> dict[str, str] | None:
    """Return the metadata of a copy with the tags that its headers ask for. Raises S3Error.

    Args:
        metadata: Those that replace the source's; None for the source's own.
        given: Those in the headers of the request.
    """
    directive = request.headers.get(f"{HEADER}-directive", "COPY").upper()
    if directive not in ("COPY", "REPLACE"):
        raise S3Error("InvalidArgument", f"{HEADER}-directive: need COPY or REPLACE")
    if directive == "COPY" and metadata is None:
        return None
    tags = source.metadata.get(_KEY, "") if directive == "COPY" else given.get(_KEY, "")
    made = dict(source.metadata if metadata is None else metadata)
    made.pop(_KEY, None)
    return made | ({_KEY: tags} if tags else {})


def get_tags(request: Request) -> Response:
    """Answer GetObjectTagging. Raises S3Error."""
    info = request.client.bucket(request.bucket).head(name_of(request.key))
    rows = [xml.nest("Tag", [xml.tags(Key=key, Value=value)]) for key, value in pairs(info.metadata.get(_KEY, ""))]
    return xml_response(xml.document("Tagging", [xml.nest("TagSet", rows)]))


def put_tags(request: Request) -> Response:
    """Answer PutObjectTagging. Raises S3Error."""
    assert request.body is not None
    _keep(request, text_of_document(request.body.read()))
    return Response()


def delete_tags(request: Request) -> Response:
    """Answer DeleteObjectTagging. Raises S3Error."""
    _keep(request, "")
    return Response(204)


def _keep(request: Request, text: str) -> None:
    def changed(info: ObjectInfo) -> dict[str, str]:
        kept = {key: value for key, value in info.metadata.items() if key != _KEY}
        return kept | ({_KEY: text} if text else {})

    change_metadata(request.client.bucket(request.bucket), name_of(request.key), changed)
