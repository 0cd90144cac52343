"""`ais-loader deny`: what it takes down, what it reports of copies and of runs, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

from ais_loader import BatchLoader, Entry, MapDataset, ShufflePlan, connect
from ais_loader.training.certificate import certificate
from ais_loader.training.ledger import leaves
from storage_node.security.audit.reads import digest_of
from tests.cli.kit import Run, Stored
from tests.security.audit_kit import log_in

OBJECTS = {f"s/{number}": f"sample {number}".encode() for number in range(6)}

LOADER = """
from ais_loader import BatchLoader, Entry, MapDataset, ShufflePlan, connect
client = connect({url!r}, mode="r")
dataset = MapDataset(client, {entries})
loader = BatchLoader(dataset, ShufflePlan(6, batch_size=2, seed=1), rank=0, world_size=1)
"""


def test_a_takedown_is_reported_with_copies_and_runs(run: Run, url: str, bucket_name: str, tmp_path: Path) -> None:
    with connect(url) as client:
        bucket = client.create_bucket(bucket_name)
        bucket.put_many(OBJECTS.items())
        entries = [Entry(bucket_name, name, version=bucket.head(name).version) for name in OBJECTS]
        loader = BatchLoader(MapDataset(client, entries), ShufflePlan(6, batch_size=2, seed=1), rank=0, world_size=1)
        assert len(list(loader)) == 3
        state = loader.state_dict()
        made = certificate(state, leaves(loader, state), [], lambda data: b"signature")
        digest = bucket.head("s/4").digest
    (tmp_path / "certificate").write_text(json.dumps(made))
    (tmp_path / "state").write_text(json.dumps(state))
    shown = ", ".join(f"Entry({bucket_name!r}, {entry.name!r}, version={entry.version!r})" for entry in entries)
    (tmp_path / "loader.py").write_text(LOADER.format(url=url, entries=f"[{shown}]"))
    (tmp_path / "names").write_text(f"# names\n{bucket_name}/s/2\n")
    with log_in(tmp_path / "audit") as log:
        for name in ("s/1", "s/5"):
            fields = {"event": "read", "tenant": "t", "buckets": [bucket_name], "entries": 1, "outcome": "complete"}
            log.append(lambda name=name, fields=fields: fields | {"digest": digest_of([(bucket_name, name, "")])})  # type: ignore[misc]
    done = run(
        *("deny", bucket_name, "s/1", "--from", tmp_path / "names", "--digest", digest),
        *("--reason", "court order 9", "--json"),
        *("--audit", tmp_path / "audit", "--certificate", tmp_path / "certificate"),
        *("--state", tmp_path / "state", "--loader", f"{tmp_path}/loader.py:loader"),
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [(one["name"], one["reason"], one["digest"]) for one in found["names"]] == [
        ("s/1", "court order 9", ""),
        ("s/2", "court order 9", ""),
        ("s/4", "court order 9", digest),
    ]
    assert all(copy["purged_ns"] for one in found["names"] for copy in one["copies"])
    assert {copy["kind"] for one in found["names"] for copy in one["copies"]} <= {"file", "segment"}
    assert [one["tenant"] for one in found["reads"] if one.get("audit") == "s/1"] == ["t"]
    assert {one.get("audit") for one in found["reads"]} == {"s/1", None}
    plan = ShufflePlan(6, batch_size=2, seed=1)
    steps = {f"s/{number}": step for step in range(3) for number in plan.batch(0, step).tolist()}
    for source in ("certificate", "state"):
        told = {one["name"]: one["step"] for one in found["reads"] if source in one}
        assert told == {name: steps[name] for name in ("s/1", "s/2", "s/4")}
    listed = run("deny", bucket_name)
    assert listed.exit_code == 0
    assert "s/1  denied" in listed.stdout and "court order 9" in listed.stdout and f"digest {digest}" in listed.stdout
    assert sorted(Stored(url, bucket_name).names()) == ["s/0", "s/3", "s/5"]
    refused = run("get", f"{bucket_name}/s/1")
    assert refused.exit_code == 1 and "court order 9" in refused.output
    allowed = run("deny", bucket_name, "s/1", "s/3", "--digest", digest, "--allow")
    assert (allowed.exit_code, allowed.output.strip()) == (0, "allowed 2 objects")


def test_wrong_takedowns_are_refused(run: Run, url: str, bucket_name: str, tmp_path: Path) -> None:
    with connect(url) as client:
        client.create_bucket(bucket_name).put("a", b"1")
    (tmp_path / "names").write_text("other/a\n")
    for arguments, message in (
        ((bucket_name, "a"), "need --reason"),
        ((f"{bucket_name}/a", "--reason", "r"), "need a bucket"),
        ((bucket_name, "a", "--reason", "x" * 300), "256 bytes"),
        ((bucket_name, "--digest", "abc", "--reason", "r"), "digest 'abc'"),
        ((bucket_name, "--from", str(tmp_path / "names"), "--reason", "r"), "need whole objects of bucket"),
        (("nothing", "a", "--reason", "r"), "does not exist"),
        ((bucket_name, "a", "--reason", "r", "--state", str(tmp_path / "names")), "belong together"),
    ):
        done = run("deny", *arguments)
        assert done.exit_code != 0 and message in done.output, (arguments, done.output)
    assert Stored(url, bucket_name).contents() == {"a": b"1"}
