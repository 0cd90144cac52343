"""Warming and eviction by prefix, pattern and list: what is stored costs no request, and progress counts bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from ais_loader import errors
from ais_loader.cli import main
from ais_loader.objects.bucket import Bucket
from ais_loader.testing import eventually
from ais_loader.values.changes import Progress
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import Fault, FaultProxy
from tests.remote.test_remote_buckets import data_of, filled

NODES = pytest.mark.parametrize("url", ["grpc"], indirect=True)


def stored(bucket: Bucket) -> list[str]:
    return [info.name for info in bucket.objects() if info.is_stored]


@pytest.fixture
def run(url: str) -> Callable[..., Result]:
    def call(*arguments: str, stdin: bytes = b"") -> Result:
        result = CliRunner(env={"AIS_LOADER_URL": url}).invoke(main, list(arguments), input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        return result

    return call


@pytest.mark.slow
def test_patterns_choose_what_is_warmed_and_evicted(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = filled(remote_bucket, 20) + filled(remote_bucket, 20, prefix="de/")
    done = cold.warm(pattern=["*5.bin", "de/00*"])
    wanted = sorted(name for name in names if name.endswith("5.bin") or name.startswith("de/00"))
    assert stored(cold) == wanted
    assert (done.warmed, done.skipped) == (len(wanted), 0)
    assert done.size_bytes == sum(len(data_of(int(name[3:6]))) for name in wanted)
    requested = proxy.count("GET", "*")
    again = cold.warm(prefix="de/", pattern="*5.bin")
    assert (again.warmed, again.skipped) == (0, 2)
    proxy.forget()
    freed = cold.evict(prefix="de/", pattern="*5.bin")
    assert proxy.count() == 0 < requested  # a listing of the remote storage is not needed
    assert freed.copies >= 2
    assert stored(cold) == [name for name in wanted if not (name.startswith("de/") and name.endswith("5.bin"))]


def test_progress_counts_objects_and_bytes(cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy) -> None:
    names = filled(remote_bucket, 12)
    sizes = [len(data_of(at)) for at in range(12)]
    seen: list[Progress] = []
    cold.warm(prefix="en/00", progress=seen.append)
    assert [now.size_bytes for now in seen] == [sum(sizes[: at + 1]) for at in range(10)]
    requested = proxy.count("GET", "*")
    seen.clear()
    done = cold.warm(iter(names), progress=seen.append)
    assert (done.warmed, done.size_bytes) == (12, sum(sizes))
    assert [now.done for now in seen] == list(range(1, 13)) and seen[-1].size_bytes == sum(sizes)
    assert proxy.count("GET", "*") == requested + 2 and proxy.count("HEAD", "*") == 0


@pytest.mark.slow
def test_an_interrupted_warm_is_continued_where_it_was(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = filled(remote_bucket, 20)
    with proxy.on("GET", remote_bucket.path(names[7]), Fault(status=403)), pytest.raises(errors.RemoteDenied):
        cold.warm(names[:10])
    cold.warm(names[:7])
    proxy.forget()
    eventually(lambda: cold.warm(prefix="en/", on_error="return").complete)  # a failure is remembered for a second
    assert not any(proxy.count("GET", remote_bucket.path(name)) for name in names[:7])
    assert stored(cold) == names


def test_names_go_without_prefix_and_pattern(cold: Bucket) -> None:
    for call in (cold.warm, cold.evict):
        with pytest.raises(errors.InvalidRequest, match="names"):
            call(["a"], pattern="*.bin")
        with pytest.raises(errors.InvalidRequest, match="names"):
            call(["a"], prefix="en/")
        with pytest.raises(errors.InvalidRequest, match="empty"):
            call(pattern=[""])


@pytest.mark.slow
@NODES
def test_the_command_takes_patterns_and_lists(
    cold: Bucket, remote_bucket: RemoteBucket, run: Callable[..., Result]
) -> None:
    names = filled(remote_bucket, 20)
    done = run("warm", f"{cold.name}/en", "--pattern", "*1.bin", "--pattern", "en/00*")
    wanted = sorted({names[11], *names[:10]})
    size_bytes = sum(len(data_of(int(name[3:6]))) for name in wanted)
    assert (done.exit_code, stored(cold)) == (0, wanted)
    assert f"11 objects warmed, {size_bytes / 1024:.1f} KiB, 0 were stored already" in done.stderr
    listed = "".join(f"{cold.name}/{name}\n" for name in names[15:]).encode()
    done = run("warm", "--list", "-", stdin=listed)
    assert done.exit_code == 0 and "5 objects warmed" in done.stderr
    assert stored(cold) == sorted([*wanted, *names[15:]])
    assert run("evict", "--list", "-", stdin=listed).exit_code == 0
    assert stored(cold) == wanted
    evicted = run("evict", cold.name, "--pattern", "*1.bin")
    assert evicted.exit_code == 0 and "2 stored objects removed" in evicted.stderr
    assert stored(cold) == [name for name in wanted if not name.endswith("1.bin")]
    refused = run("warm", "--list", "-", "--pattern", "*", stdin=listed)
    assert refused.exit_code == 2 and "--pattern" in refused.stderr
