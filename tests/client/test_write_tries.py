"""Which tries of a write are in doubt: those alone that may have been done are sent again as repeats."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from ais_loader import ClusterOptions, connect, errors
from ais_loader.transport.base import PutSpec
from ais_loader.transport.grpc.put import PutGroupStream, small_object, spec_of
from ais_loader.transport.retry import WriteTries
from ais_loader.wire.generated import ais_objects_pb2 as pb
from tests.table import table


def unreached() -> errors.NodeUnavailable:
    error = errors.NodeUnavailable("refused")
    error.reached = False
    return error


def test_every_write_has_an_id_of_its_own_and_keeps_it() -> None:
    one, other = WriteTries(), WriteTries()
    assert len(one.write_id) == 16 and one.write_id == one.write_id != other.write_id
    assert WriteTries(b"i" * 16).write_id == b"i" * 16


@table(
    ("error", "all_sent", "doubt"),
    [
        (errors.NodeUnavailable("gone"), True, True),
        (errors.SilenceTimeout("silent"), True, True),
        (errors.NodeUnavailable("gone"), False, False),
        (unreached(), True, False),
        (errors.StaleMap("another owner"), True, False),
        (errors.VersionConflict("another version"), True, False),
        (errors.DriveFull("full"), True, False),
    ],
)
def test_a_try_is_in_doubt_when_all_was_sent_and_nobody_answered(
    error: errors.LoaderError, all_sent: bool, doubt: bool
) -> None:
    tries = WriteTries()
    tries.begin(all_sent=False)
    assert tries.repeat_ms == 0
    if all_sent:
        tries.sent()
    tries.failed(error)
    assert (tries.in_doubt, tries.repeat_ms > 0) == (doubt, doubt)


def test_doubt_is_counted_from_the_first_try_in_doubt() -> None:
    tries = WriteTries(doubtful_since_s=time.monotonic() - 5.0)
    tries.begin()
    tries.failed(errors.NodeUnavailable("gone"))
    assert 5000 <= tries.repeat_ms < 60_000


@pytest.mark.parametrize(("doubt", "kind"), [(False, errors.NodeUnavailable), (True, errors.OutcomeUnknown)])
def test_only_what_may_have_been_done_ends_as_unknown(doubt: bool, kind: type[errors.LoaderError]) -> None:
    tries = WriteTries(doubtful_since_s=time.monotonic() if doubt else None)
    with pytest.raises(errors.NodeUnavailable) as caught, tries.raise_if_unknown():
        with pytest.raises(errors.NodeUnavailable) as inner, tries.raise_if_unknown():
            raise errors.NodeUnavailable("gone")
        assert type(inner.value) is errors.NodeUnavailable  # whoever is outside tries again
        raise inner.value
    assert type(caught.value) is kind and "gone" in str(caught.value)


@table("doubt", [False, True])
@table("refusal", [errors.DriveFull, errors.DriveFailed, errors.Overloaded, errors.CorruptObject])
def test_the_refusal_of_a_repeat_says_nothing_of_the_tries_before(
    refusal: type[errors.LoaderError], doubt: bool
) -> None:
    tries = WriteTries(doubtful_since_s=time.monotonic() if doubt else None)
    with pytest.raises(errors.LoaderError, match="no room") as caught, tries.raise_if_unknown():
        raise tries.judged(refusal("no room"))
    assert type(caught.value) is (errors.OutcomeUnknown if doubt else refusal)


@pytest.mark.parametrize("doubt", [False, True])
def test_a_drive_that_cannot_take_a_repeat_is_tried_again(doubt: bool) -> None:
    tries = WriteTries(doubtful_since_s=time.monotonic() if doubt else None)
    assert tries.judged(errors.DriveFull("no room")).retryable is doubt


@table("answer", [errors.VersionConflict, errors.ObjectNotFound, errors.SilenceTimeout])
def test_what_is_said_of_all_tries_is_told_as_it_is(answer: type[errors.LoaderError]) -> None:
    tries = WriteTries(doubtful_since_s=time.monotonic())
    with pytest.raises(answer) as caught, tries.raise_if_unknown():
        raise tries.judged(answer("so it is"))
    assert type(caught.value) is answer


# -- groups


class Answers:
    """A stream whose node takes so many groups, and then breaks or answers."""

    def __init__(self, requests: Iterator[pb.PutManyRequest], takes: int, error: errors.LoaderError | None) -> None:
        self.taken = [next(requests) for _ in range(takes)]
        self._left = list(self.taken)
        self._error = error

    def __next__(self) -> pb.PutManyResponse:
        if self._error is not None:
            raise self._error
        group = self._left.pop(0).object
        return pb.PutManyResponse(
            result=[pb.PutResult(info=pb.ObjectInfo(bucket="b", name=small.name)) for small in group]
        )

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("error", "doubt"), [(errors.NodeUnavailable("gone"), True), (unreached(), False)])
def test_groups_that_left_are_repeats_and_others_are_not(error: errors.NodeUnavailable, doubt: bool) -> None:
    streams: list[Answers] = []

    def open_stream(requests: Iterator[pb.PutManyRequest]) -> Answers:
        last = bool(streams)
        streams.append(Answers(requests, 2 if last else 1, None if last else error))
        return streams[-1]

    sender = PutGroupStream(open_stream, retry_s=10.0)
    specs = [PutSpec(bucket="b", name=name, metadata={}) for name in ("one", "two")]
    for spec in specs:
        assert list(sender.send([small_object(spec, b"data")])) == []
    assert [info.name for info in sender.flush() if not isinstance(info, errors.LoaderError)] == ["one", "two"]
    first, second = (request.object[0].condition for request in streams[1].taken)
    assert (first.write_id, second.write_id) == tuple(spec.tries.write_id for spec in specs)
    assert (first.repeat_ms > 0, second.repeat_ms) == (doubt, 0)
    again = spec_of(streams[1].taken[0].object[0], time.monotonic())
    assert (again.tries.write_id, again.tries.in_doubt) == (specs[0].tries.write_id, True)


# -- nobody there


@table(
    "call",
    [
        lambda bucket: bucket.put("a", b"1"),
        lambda bucket: bucket.put_many([("a", b"1")]),
        lambda bucket: bucket.delete("a"),
        lambda bucket: bucket.copy("a", "b"),
    ],
)
def test_what_never_left_is_no_unknown_outcome(call: Callable[[object], object]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    options = ClusterOptions(retry_s=0.0)
    with (
        connect(f"grpc://127.0.0.1:{port}", options=options) as client,
        pytest.raises(errors.NodeUnavailable) as caught,
    ):
        call(client.bucket("b"))
    assert not isinstance(caught.value, errors.OutcomeUnknown)
