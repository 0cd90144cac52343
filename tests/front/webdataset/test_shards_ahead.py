"""Which shards are begun before they are needed, and that what is held of them is bounded."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ais_loader import Bucket, errors
from ais_loader.integrations.webdataset.shard_stream import ShardStream
from ais_loader.integrations.webdataset.shards_ahead import ahead, take_ahead
from ais_loader.testing import eventually, seeded_bytes


class Begun:
    """A stand-in for a stream."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.closed = False

    def close(self) -> None:
        self.closed = True


def begin_all(begun: list[Begun]) -> Any:
    def begin(url: str) -> Begun:
        begun.append(Begun(url))
        return begun[-1]

    return begin


def test_at_most_so_many_are_begun_and_what_is_not_taken_is_given_up() -> None:
    begun: list[Begun] = []
    urls = [{"url": f"ais://b/{at % 3}.tar"} for at in range(6)]  # one comes again, as when they are resampled
    source = ahead(iter(urls), 3, begin_all(begun))
    for at in range(3):
        assert next(source) is urls[at]
        assert [stream.url for stream in begun] == [url["url"] for url in urls[: at + 3]]
        assert take_ahead(urls[at]["url"]) is begun[at]
    source.close()
    assert [stream.closed for stream in begun] == [False, False, False, True, True]
    assert all(take_ahead(url["url"]) is None for url in urls)


def test_nothing_is_drawn_ahead_of_a_file() -> None:
    """WebDataset's list of a folder moves a file when it is asked for the one behind it."""
    drawn: list[str] = []

    def files() -> Iterator[str]:
        for name in ("/data/a.tar", "/data/b.tar"):
            drawn.append(name)
            yield name

    source = ahead(files(), 4, begin_all([]))
    assert next(source) == "/data/a.tar" and drawn == ["/data/a.tar"]
    assert list(source) == ["/data/b.tar"]


def test_a_stream_that_nobody_reads_holds_its_window_and_ends_when_it_is_dropped(bucket: Bucket) -> None:
    data = seeded_bytes(24 << 20)
    bucket.put("large", data)
    stream = ShardStream(bucket.client, bucket.name, "large", window_bytes=4 << 20, timeout_s=30)
    assert stream.wait_open().size_bytes == len(data)
    reader, thread = stream._reader, stream._thread
    eventually(lambda: not thread.is_alive())  # it has enough
    assert reader is not None and 2 << 20 <= reader.tell() <= (2 << 20) + (4 << 20)
    assert stream.read(10) == data[:10] and stream.read(0) == b"" and stream.tell() == 10
    assert stream.read() == data[10:] and stream.read(1) == b""
    del stream
    again = ShardStream(bucket.client, bucket.name, "large", window_bytes=4 << 20, timeout_s=30)
    again.wait_open()
    thread = again._thread
    del again
    gc.collect()
    thread.join(30)
    assert thread not in threading.enumerate()


def test_each_read_of_a_stream_that_failed_raises_why(bucket: Bucket) -> None:
    stream = ShardStream(bucket.client, bucket.name, "none.tar", window_bytes=1 << 20, timeout_s=30)
    raised = []
    for _ in range(2):
        with pytest.raises(errors.ObjectNotFound, match=r"none\.tar") as caught:
            stream.read(1)
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        stream.read(1)


@pytest.mark.parametrize("size", [100_000, 3 << 20, -1])
def test_a_stream_raises_its_error_for_ever_and_never_goes_on_behind_what_it_lost(
    size: int, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has gone on when a read fails in its middle. The next read would miss what came before the error."""
    data = seeded_bytes(24 << 20)
    bucket.put("large", data)
    with ShardStream(bucket.client, bucket.name, "large", window_bytes=4 << 20, timeout_s=30) as stream:
        came = stream.read(5 << 20)
        reader, calls = stream._reader, iter(range(100))
        assert reader is not None and stream._reads_itself
        view1 = reader.view1

        def failing(wanted: int) -> memoryview:
            if next(calls) == 1:
                raise errors.NodeUnavailable("the node is away for a moment")
            return view1(wanted)

        monkeypatch.setattr(reader, "view1", failing)
        with pytest.raises(errors.NodeUnavailable, match="for a moment"):
            while part := stream.read(size):
                came += part
        assert came == data[: len(came)] and stream.tell() == len(came) < len(data)
        for _ in range(2):
            with pytest.raises(errors.NodeUnavailable, match="for a moment"):
                stream.read(9 << 20)
