"""Datasets of parts of objects over every transport: samples in shards, windows of tokens, and lines."""

from __future__ import annotations

import numpy as np
import pytest

from ais_loader import Bucket, Client, errors
from tests.tar_kit import packed_tar

TOKENS = np.arange(1000, dtype=np.uint16)
TEXT = b"".join(b"line %d\n" % at for at in range(100))


def test_samples_windows_and_lines(client: Client, bucket: Bucket) -> None:
    from ais_loader import Lines, MapDataset, TokenWindows

    for number in range(4):
        bucket.put(f"s-{number}.tar", packed_tar({f"{number}{at}.{ext}": ext.encode() for at in "ab" for ext in "xy"}))
        bucket.put(f"t-{number}.bin", (TOKENS + number).tobytes())
        bucket.put(f"l-{number}.txt", TEXT)
    samples = bucket.samples("s-")
    assert samples.keys() == [f"{number}{at}" for number in range(4) for at in "ab"]
    assert MapDataset(client, samples).__getitems__([7, 0]) == [{"x": b"x", "y": b"y"}] * 2
    windows = TokenWindows(client, bucket.entries("t-"), 100, dtype="uint16")
    assert [window[0] for window in windows.__getitems__([39, 0, 12])] == [903, 0, 201]
    for _ in range(2):  # the second one reads the indexes
        lines = Lines(client, bucket.entries("l-"))
        assert lines.__getitems__([399, 0, 150]) == [b"line 99", b"line 0", b"line 50"]
    bucket.put("l-1.txt", TEXT[1:])
    with pytest.raises(errors.ObjectNotFound):
        lines[150]
    assert Lines(client, bucket.entries("l-"))[100] == b"ine 0"
