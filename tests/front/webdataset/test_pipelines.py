"""WebDataset's pipelines and writers over `ais://`, with nothing in them changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds

from ais_loader import Bucket, connect, errors
from ais_loader.integrations.webdataset import ShardSamples, install, uninstall
from ais_loader.testing import NodeProcess, seeded_bytes, throwaway_folder
from tests.tar_kit import packed_tar

DEADLINE_S = 180


def plain(urls: Any, **options: Any) -> Any:
    return wds.WebDataset(urls, shardshuffle=False, **options)


def without_places(samples: Any) -> list[dict[str, Any]]:
    return [{name: sample[name] for name in sample if name not in ("__url__", "__local_path__")} for sample in samples]


def of_files(folder: Path) -> list[dict[str, Any]]:
    return without_places(plain([str(path) for path in sorted(folder.glob("*.tar"))]))


def test_shards_of_the_store_yield_what_files_do(shards: list[str], tmp_path: Path, bucket: Bucket) -> None:
    expected = of_files(tmp_path)
    assert len(expected) == 40
    braces = f"ais://{bucket.name}/s-{{0..3}}.tar"
    samples = list(plain(braces))
    assert without_places(samples) == expected
    assert [sample["__url__"] for sample in samples[::10]] == shards
    pipeline = wds.DataPipeline(wds.SimpleShardList(braces), wds.split_by_worker, wds.tarfile_to_samples())
    assert without_places(pipeline) == expected


@pytest.mark.parametrize(
    "how", ["fork", pytest.param("spawn", marks=pytest.mark.slow), pytest.param("forkserver", marks=pytest.mark.slow)]
)
def test_two_workers_read_all_of_it_however_they_are_started(how: str, shards: list[str], tmp_path: Path) -> None:
    loader = wds.WebLoader(
        plain(shards), batch_size=None, num_workers=2, multiprocessing_context=how, timeout=DEADLINE_S
    )
    samples = without_places(loader)
    assert sorted(samples, key=lambda sample: sample["__key__"][-3:]) == sorted(
        of_files(tmp_path), key=lambda sample: sample["__key__"][-3:]
    )


def test_resampled_shards_come_again_and_again(shards: list[str], tmp_path: Path) -> None:
    known = {sample["__key__"]: sample for sample in of_files(tmp_path)}
    samples = list(islice(wds.WebDataset(shards, resampled=True), 95))
    assert len(samples) == 95
    assert all(known[sample["__key__"]] == without_places([sample])[0] for sample in samples)


def test_what_the_writers_write_is_an_object_when_it_is_closed(bucket: Bucket, installed: None) -> None:
    with wds.ShardWriter(f"ais://{bucket.name}/w #%%20?-%02d.tar", maxcount=2, verbose=0) as writer:
        for at in range(5):
            writer.write({"__key__": f"{at}", "txt": f"text {at}", "cls": at})
    names = [info.name for info in bucket.objects()]
    assert names == [f"w #%20?-{number:02d}.tar" for number in range(3)]  # literal
    samples = list(plain([f"ais://{bucket.name}/{name}" for name in names]).decode())
    assert [(sample["txt"], sample["cls"]) for sample in samples] == [(f"text {at}", at) for at in range(5)]
    with wds.TarWriter(f"ais://{bucket.name}/one.tar.gz") as one:
        one.write({"__key__": "k", "txt": "packed"})
    assert [sample["txt"] for sample in plain(f"ais://{bucket.name}/one.tar.gz")] == [b"packed"]
    given_up = wds.gopen(f"ais://{bucket.name}/half.tar", "wb")
    given_up.write(b"half")
    del given_up
    with pytest.raises(errors.ObjectNotFound):
        bucket.head("half.tar")


def test_what_is_missing_is_told_or_passed_over_as_the_handler_says(shards: list[str], bucket: Bucket) -> None:
    urls = [shards[0], f"ais://{bucket.name}/none.tar", "ais://no-such-bucket/s.tar", shards[1]]
    samples = []
    with pytest.raises(errors.ObjectNotFound, match=r"none\.tar"):
        for sample in plain(urls):
            samples.append(sample)
    assert len(samples) == 10
    assert len(list(plain(urls, handler=wds.ignore_and_continue))) == 20
    with pytest.raises(errors.BucketNotFound), wds.TarWriter("ais://no-such-bucket/s.tar") as writer:
        writer.write({"__key__": "k", "txt": "lost"})


@pytest.mark.parametrize(("cut_bytes", "reason"), [(0, "no end-of-archive mark"), (200, "ends within a header")])
def test_a_shard_that_is_cut_off_at_a_header_is_an_error_where_a_file_just_ends(
    cut_bytes: int, reason: str, bucket: Bucket, installed: None, tmp_path: Path
) -> None:
    whole = packed_tar({f"{at:02d}.txt": seeded_bytes(1000, seed=at) for at in range(20)})
    cut = whole[: 10 * (512 + 1024) + cut_bytes]
    (tmp_path / "cut.tar").write_bytes(cut)
    assert len(list(plain(str(tmp_path / "cut.tar")))) == 10  # of 20, without a word: so it is without us
    bucket.put("cut.tar", cut)
    url = f"ais://{bucket.name}/cut.tar"
    with pytest.raises(errors.ArchiveDamaged, match=rf"(?s)cut\.tar is not a complete archive.*{reason}"):
        list(plain(url))
    with pytest.raises(errors.ArchiveDamaged, match=rf"(?s)cut\.tar is not a complete archive.*{reason}"):
        ShardSamples(url, store=bucket.client)
    if not cut_bytes:
        install(bucket.client.url, require_end=False)
        assert len(list(plain(url))) == len(ShardSamples(url, store=bucket.client, require_end=False)) == 10


def test_a_shard_that_is_replaced_while_it_is_read_is_an_error_and_never_a_mix(bucket: Bucket, url: str) -> None:
    old = packed_tar({f"{at:02d}.bin": seeded_bytes(1 << 20, seed=at) for at in range(24)})
    bucket.put("s.tar", old)
    install(url, read_ahead_bytes=1 << 20)
    try:
        samples = iter(plain(f"ais://{bucket.name}/s.tar"))
        came = [next(samples)["bin"]]
        bucket.put("s.tar", packed_tar({f"{at:02d}.bin": b"new" for at in range(24)}))
        with pytest.raises(errors.ObjectNotFound, match=r"s\.tar"):
            came.extend(sample["bin"] for sample in samples)
        assert came == [seeded_bytes(1 << 20, seed=at) for at in range(len(came))]
    finally:
        uninstall()


@pytest.mark.slow
def test_a_node_that_is_killed_in_mid_shard_and_returns_loses_no_sample() -> None:
    data = {f"{at:02d}.bin": seeded_bytes(1 << 20, seed=at) for at in range(40)}
    with throwaway_folder() as folder, NodeProcess(folder / "drive") as node, connect(node.url) as client:
        client.create_bucket("b").put("s.tar", packed_tar(data))
        install(node.url, read_ahead_bytes=1 << 20)
        try:
            samples = iter(plain("ais://b/s.tar"))
            came = [next(samples)["bin"]]
            node.kill()
            node.start()
            came.extend(sample["bin"] for sample in samples)
            assert came == list(data.values())
        finally:
            uninstall()


@pytest.mark.slow
def test_a_worker_that_is_killed_is_an_error_of_the_trainer(shards: list[str]) -> None:
    loader = wds.WebLoader(plain(shards).map(killed_at_the_third), batch_size=None, num_workers=1, timeout=DEADLINE_S)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(loader)


def killed_at_the_third(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["__key__"].endswith("02"):
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


SCRIPT = """
import sys
import webdataset as wds

print(*(sample["txt"].decode() for sample in wds.WebDataset(sys.argv[1], shardshuffle=False)))
"""


def test_a_rewritten_url_needs_no_line_in_the_script(shards: list[str], url: str, bucket: Bucket) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, f"ais://{bucket.name}/s-{{1..2}}.tar"],
        env=os.environ
        | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "AIS_LOADER_URL": url,
            "GOPEN_REWRITE": "ais://=pipe:ais-loader get ",
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == " ".join(f"text {shard} {at}" for shard in (1, 2) for at in range(10))


def test_no_name_is_ever_a_command(bucket: Bucket, installed: None, tmp_path: Path) -> None:
    """As it would be behind GOPEN_REWRITE, which hands its URLs to a shell."""
    name = f"$(touch {str(tmp_path).replace('/', '_')}) ; touch hurt & #`id`.tar"
    bucket.put(name, packed_tar({"k.txt": b"text"}))
    assert [sample["txt"] for sample in plain([f"ais://{bucket.name}/{name}"])] == [b"text"]
    assert not Path("hurt").exists()


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(errors.InvalidRequest, match="read_ahead_bytes=0"):
        install(read_ahead_bytes=0)
    with pytest.raises(errors.InvalidRequest, match="timeout_s=0"):
        install(timeout_s=0)


def test_after_uninstalling_the_table_is_as_it_was(url: str) -> None:
    before = wds.gopen_schemes["ais"], wds.cache.StreamingOpen.__call__, wds.tariterators.url_opener
    install(url)
    install(url)
    assert wds.gopen_schemes["ais"] is not before[0]
    uninstall()
    assert (wds.gopen_schemes["ais"], wds.cache.StreamingOpen.__call__, wds.tariterators.url_opener) == before


def test_workers_that_are_forked_in_the_middle_of_an_iteration_read_shards_of_their_own(
    shards: list[str], tmp_path: Path
) -> None:
    samples = iter(plain(shards))
    came = [next(samples)]  # the next shards are begun
    loader = wds.WebLoader(
        plain(shards), batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=DEADLINE_S
    )
    assert without_places(loader) == of_files(tmp_path)
    assert without_places([*came, *samples]) == of_files(tmp_path)
