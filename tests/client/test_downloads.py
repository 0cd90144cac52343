"""Downloads that are taken up again: in the version that was begun, or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from ais_loader import errors
from ais_loader.transport.grpc.download import download
from ais_loader.wire.generated import ais_objects_pb2 as pb

DATA = b"0123456789"
GONE = errors.ObjectNotFound("b/x: version 1.1.1 is gone, the store has 1.2.1")


class Node:
    """Answers each call in turn with messages, the last of which may be an error."""

    def __init__(self, *answers: Sequence[pb.GetResponse | Exception]) -> None:
        self._answers = iter(answers)
        self.asked: list[tuple[str, int]] = []

    def __call__(self, request: pb.GetRequest) -> Node:
        self.asked.append((request.version, request.start))
        self._answer = next(self._answers)
        return self

    def __iter__(self) -> Iterator[pb.GetResponse]:
        for message in self._answer:
            if isinstance(message, Exception):
                raise message
            yield message

    def cancel(self) -> None:
        pass


def header(version: str, length: int = len(DATA)) -> pb.GetResponse:
    return pb.GetResponse(header=pb.GetHeader(info=pb.ObjectInfo(version=version), length=length))


def data(some: bytes) -> pb.GetResponse:
    return pb.GetResponse(data=some)


def downloaded(node: Node, version: str = "") -> bytes:
    def translate(error: Exception, _: int) -> errors.LoaderError:
        assert isinstance(error, errors.LoaderError)
        return error

    request = pb.GetRequest(bucket="b", name="x", version=version)
    return b"".join(download(request, node, translate, timeout_s=180.0, retry_s=180.0))


LOST = errors.NodeUnavailable("the connection was lost")


def test_it_goes_on_from_its_last_byte_in_its_version() -> None:
    node = Node([header("1.1.1"), data(DATA[:4]), LOST], [header("1.1.1", 6), data(DATA[4:])])
    assert downloaded(node) == DATA
    assert node.asked == [("", 0), ("1.1.1", 4)]


def test_what_was_replaced_before_its_first_byte_came_is_begun_anew() -> None:
    node = Node([header("1.1.1"), LOST], [GONE], [header("1.2.1", 3), data(b"new")])
    assert downloaded(node) == b"new"
    assert node.asked == [("", 0), ("1.1.1", 0), ("", 0)]


def test_what_was_replaced_in_the_middle_is_not_said_to_be_missing() -> None:
    with pytest.raises(
        errors.NodeUnavailable,
        match=r"a node was lost after 4 bytes of a version that is gone since: .* the store has 1\.2\.1",
    ):
        downloaded(Node([header("1.1.1"), data(DATA[:4]), LOST], [GONE]))


@pytest.mark.parametrize("had", [b"", DATA[:4]])
def test_what_was_deleted_or_was_asked_for_by_its_version_is_missing(had: bytes) -> None:
    begun = [header("1.1.1"), *([data(had)] if had else []), LOST]
    with pytest.raises(errors.ObjectDeleted):
        downloaded(Node(begun, [errors.ObjectDeleted("deleted")]))
    with pytest.raises(errors.ObjectNotFound, match="is gone"):
        downloaded(Node(begun, [GONE]), version="1.1.1")
