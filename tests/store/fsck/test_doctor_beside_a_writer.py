"""A doctor at the side of a working store: it reports nothing that is only in motion, and keeps its hands off."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ais_loader.errors import LoaderError, StoreLocked
from storage_node.store.drive import transactions
from storage_node.store.format import BLOCK_BYTES
from storage_node.store.fsck.fsck import check, repair
from storage_node.store.store import Store
from tests.store.segment_kit import put_group
from tests.store.store_kit import BUCKET, assert_sound, drive_of, put, store_at


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with store_at(tmp_path / "drive") as store:
        for number in range(30):
            put(store, f"{number}", b"%d" % number * 100)
        put(store, "large", bytes(3 * BLOCK_BYTES))
    return tmp_path / "drive"


@pytest.mark.slow
def test_a_check_beside_a_writer_reports_nothing_that_is_only_in_motion(root: Path) -> None:
    with Store.open([root]) as store:
        stop, failures = threading.Event(), []

        def churn(seed: int) -> None:
            number = 0
            try:
                while not stop.is_set():
                    number += 1
                    put(store, f"{seed}/{number % 7}", bytes(number % 500))
                    if number % 5 == 0:
                        store.delete(BUCKET, f"{seed}/{number % 7}")
                    if number % 10 == 0:
                        put_group(store, {f"{seed}/{number % 3}/{at}": bytes(number % 500) for at in range(20)})
                        store.delete_many(BUCKET, [f"{seed}/{number % 3}/{at}" for at in range(20) if at % 7])
                    if number % 20 == 0:
                        drive_of(store).reap(everything=True)
                        drive_of(store).compact_segments()
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        reports = [check([root], checksums=bool(number % 2)) for number in range(6)]
        stop.set()
        for thread in threads:
            thread.join(timeout=180)
        assert not failures
        for report in reports:
            assert [finding.kind for finding in report.findings] == ["in-motion"], report.findings
            assert report.in_motion and report.healthy and report.drives[0].held_by == "this process"
        put(store, "still", b"writable")
    assert_sound(root)


def test_an_upload_under_way_is_not_a_leftover(root: Path) -> None:
    with Store.open([root]) as store:
        upload = store.stage(BUCKET, "a", [b"x"], {})
        assert [finding.kind for finding in check([root]).findings] == ["in-motion"]
        upload.commit()


def test_a_repair_needs_the_store_for_itself(root: Path) -> None:
    with Store.open([root]) as store:
        with pytest.raises(StoreLocked):
            repair([root])
        put(store, "a", b"1")


def test_a_group_whose_file_has_its_name_and_waits_for_its_commit_is_only_in_motion(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = []

    def look(point: str) -> None:
        if point == "put.published":
            reports.append(check([root]))

    monkeypatch.setattr(transactions, "failpoint", look)
    with Store.open([root]) as store:
        group = [store.stage(BUCKET, f"group/{at}", [b"x" * at], {}, grouped=True) for at in range(5)]
        assert not [result for result in store.commit_many(group) if isinstance(result, LoaderError)]
    (report,) = reports
    assert [finding.kind for finding in report.findings] == ["in-motion"], report.findings
