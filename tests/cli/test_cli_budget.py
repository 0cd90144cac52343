"""Budgets of remote buckets on the command line: sizes with units, set at the start and later."""

from __future__ import annotations

import json

import pytest

from ais_loader.errors import InvalidRequest
from ais_loader.values.size_of_text import size_of_text
from tests.cli.kit import Run
from tests.table import table


def test_a_budget_is_set_shown_and_changed(run: Run, bucket_name: str) -> None:
    created = run("bucket", "create", bucket_name, "remote=s3://corpus/v1", "cache_bytes=1.5GiB")
    assert created.exit_code == 0, created.stderr
    shown = json.loads(run("bucket", "show", bucket_name, "--json").stdout)
    assert shown["remote"]["cache_bytes"] == 3 << 29
    changed = run("bucket", "set", bucket_name, "cache_bytes=200GB")
    assert ["cache_bytes", "200000000000"] in [line.split()[:2] for line in changed.stdout.splitlines()]
    shown = json.loads(run("bucket", "show", bucket_name, "--json").stdout)
    assert (shown["remote"]["url"], shown["remote"]["cache_bytes"]) == ("s3://corpus/v1", 200 * 10**9)
    assert "cache_bytes" not in run("bucket", "set", bucket_name, "cache_bytes=0").stdout
    assert run("bucket", "set", bucket_name, "cache_bytes=much").exit_code == 1
    assert run("bucket", "rm", bucket_name).exit_code == 0


def test_a_budget_needs_a_remote_bucket(run: Run, bucket_name: str) -> None:
    refused = run("bucket", "create", bucket_name, "cache_bytes=1GB")
    assert refused.exit_code == 2 and "remote=URL" in refused.stderr


@table(
    ("text", "size_bytes"),
    [("0", 0), ("4096", 4096), ("10KiB", 10240), (" 1.5 mib ", 3 << 19), ("2TB", 2 * 10**12), ("1PiB", 1 << 50)],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert size_of_text(text) == size_bytes


@table("text", ["", "-1", "GB", "1 2", "1XB", "1e3", "9" * 40])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is no size"):
        size_of_text(text)
