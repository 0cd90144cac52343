"""Write-back on the command line: set, shown, waited for."""

from __future__ import annotations

import json

from tests.cli.kit import Run


def test_it_is_set_shown_and_changed(run: Run, bucket_name: str) -> None:
    created = run("bucket", "create", bucket_name, "remote=s3://corpus/v1", "write=back")
    assert created.exit_code == 0, created.stderr
    assert json.loads(run("bucket", "show", bucket_name, "--json").stdout)["remote"]["write"] == "back"
    assert "back" in run("bucket", "show", bucket_name).stdout
    pending = run("remote", "pending", "--json")
    assert pending.exit_code == 0 and pending.stdout == ""
    assert "writes" in run("remote", "pending").stdout
    flushed = run("remote", "flush", bucket_name)
    assert flushed.exit_code == 0 and "everything is uploaded" in flushed.stderr
    changed = run("bucket", "set", bucket_name, "write=through")
    assert changed.exit_code == 0, changed.stderr
    assert json.loads(run("bucket", "show", bucket_name, "--json").stdout)["remote"]["write"] == "through"
    assert run("bucket", "set", bucket_name, "write=later").exit_code == 1
    assert run("bucket", "rm", bucket_name).exit_code == 0


def test_it_needs_a_remote_bucket_that_keeps_metadata(run: Run, bucket_name: str) -> None:
    assert run("bucket", "create", bucket_name, "write=back").exit_code == 2
    refused = run("bucket", "create", bucket_name, "remote=https://example.org/x", "write=back")
    assert refused.exit_code != 0 and "metadata" in refused.stderr
    assert run("remote", "flush", "no-such-bucket").exit_code == 1
