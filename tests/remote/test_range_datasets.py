"""Tokens and lines of remote objects: read by range, in the version that was described, and nothing is uploaded."""

from __future__ import annotations

import numpy as np
import pytest

from ais_loader import errors
from ais_loader.objects.bucket import Bucket
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import FaultProxy

TOKENS = np.arange(1000, dtype=np.uint16)
TEXT = b"".join(b"line %d\n" % at for at in range(500))


def test_tokens_stay_the_same_when_a_copy_is_evicted(cold: Bucket, remote_bucket: RemoteBucket) -> None:
    from ais_loader import TokenWindows

    remote_bucket.put("t.bin", TOKENS.tobytes())
    windows = TokenWindows(cold.client, [f"ais://{cold.name}/t.bin"], 100, dtype="uint16")
    assert windows[3].tolist() == TOKENS[300:400].tolist()
    cold.warm()
    stored = TokenWindows(cold.client, [f"ais://{cold.name}/t.bin"], 100, dtype="uint16")
    assert cold.evict().copies >= 1  # each owner of a cluster has one
    assert windows[9].tolist() == stored[9].tolist() == TOKENS[900:].tolist()
    remote_bucket.put("t.bin", TOKENS[::-1].tobytes())
    cold.evict()
    with pytest.raises(errors.ObjectNotFound):
        windows[3]


def test_lines_are_read_and_their_index_is_not_uploaded(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    from ais_loader import Lines

    remote_bucket.put("t.txt", TEXT)
    for _ in range(2):
        lines = Lines(cold.client, [f"ais://{cold.name}/t.txt"])
        cold.evict()
        assert lines.__getitems__([499, 7]) == [b"line 499", b"line 7"]
    assert proxy.count("PUT") == 0
    assert [info.name for info in cold.objects()] == ["t.txt"]
