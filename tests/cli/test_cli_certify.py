"""`ais-loader certify` and `verify`: a certificate says what a run has read, and nothing in it can be changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from ais_loader import BatchLoader, Client, Item, MapDataset, ShufflePlan, concat
from ais_loader.errors import InvalidRequest
from ais_loader.plans import MixPlan, PackPlan
from ais_loader.testing import throwaway_store
from ais_loader.training.certificate import certificate, check, proofs
from ais_loader.training.ledger import leaves
from ais_loader.wire.checksum import crc32c
from storage_node.security.rights.keys import make_key
from tests.cli.kit import Run
from tests.example_count import examples
from tests.security.audit_kit import append, log_in
from tests.security.audit_kit import run as run_audit
from tests.table import table

KEY, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
SIZES = [60 + 8 * at for at in range(30)]
NAMES = [f"en/{at:02}" for at in range(30)]


def is_signature(signature: bytes, data: bytes, key: Ed25519PrivateKey = KEY) -> bool:
    try:
        key.public_key().verify(signature, data)
    except InvalidSignature:
        return False
    return True


def invented(names: Sequence[tuple[str, str, str]], steps: int = 5) -> dict[str, Any]:
    """The certificate of a run that has read these objects or members, some of them twice."""
    entries = [[*name, f"v{at}", 1000 + at, [[at, None]]] for at, name in enumerate(names)]
    read = [[0, step, entries[step::steps] + entries[:1]] for step in range(steps)]
    return certificate({"epoch": 0, "step": steps, "plan": "{}"}, read, [{"log": "a", "seq": 3, "sum": "f0"}], KEY.sign)


def scalars(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every text and number in a file."""
    if isinstance(value, (dict, list)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from scalars(one, (*path, key))
    else:
        yield path


def holders(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every list and mapping that is not empty."""
    if isinstance(value, (dict, list)) and value:
        yield path
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from holders(one, (*path, key))


def at(value: Any, path: Sequence[Any]) -> Any:
    for key in path:
        value = value[key]
    return value


def forgeries(made: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The file with each value changed, and with elements dropped, repeated, exchanged or added."""
    for path in scalars(made):
        old = at(made, path)
        news: list[Any] = [old + 1, str(old)] if isinstance(old, int) else [None if old else 0]
        if isinstance(old, str):
            news = [chr(ord(old[0]) ^ 1) + old[1:], old.upper() if old.upper() != old else old + "0"] if old else ["x"]
        for new in news:
            at(forged := copy.deepcopy(made), path[:-1])[path[-1]] = new
            yield f"{path}: {old!r} is {new!r}", forged
    for path in holders(made):
        found = at(made, path)
        for key in found if isinstance(found, dict) else range(len(found)):
            del at(forged := copy.deepcopy(made), path)[key]
            yield f"{path} without {key!r}", forged
        if isinstance(found, dict):
            at(forged := copy.deepcopy(made), path)["more"] = 1
            yield f"{path} with a further field", forged
            continue
        for key in range(len(found)):
            one = at(forged := copy.deepcopy(made), path)
            one.insert(key, one[key])
            yield f"{path}: {key} twice", forged
            if key and found[key] != found[key - 1]:
                one = at(forged := copy.deepcopy(made), path)
                one[key - 1 : key + 1] = one[key], one[key - 1]
                yield f"{path}: {key} exchanged with the one before", forged


def test_every_forgery_is_found() -> None:
    names = [("a", f"{at}", "") for at in range(4)] + [("b", "s.tar", f"{at}") for at in range(3)]
    made = json.loads(json.dumps(invented(names)))
    assert check(made, is_signature) == []
    found = list(forgeries(made))
    other = invented(names[:-1])
    found += [("other key", made | {"signature": certificate({}, [], [], OTHER.sign)["signature"]})]
    found += [(f"{key} of another run", made | {key: other[key]}) for key in made]
    signed_by_other = certificate(made["claim"]["state"], [], [], OTHER.sign)
    found += [("signed with another key", signed_by_other), ("nothing", {}), ("a list", made | {"claim": []})]
    assert len(found) >= 200
    assert [told for told, forged in found if not is_refused(forged)] == []


def is_refused(forged: dict[str, Any]) -> bool:
    try:
        check(forged, is_signature)
    except InvalidRequest:
        return True
    return False


def test_no_forged_proof_says_what_is_not_true() -> None:
    names = [("a", f"{at}", "") for at in range(1, 6)] + [("b", "s.tar", f"{at}") for at in range(3)]
    keys = [
        ("a", "3"),
        ("a", "33"),
        ("A", "0"),
        ("c", "0"),
        ("b", "s.tar", "1"),
        ("b", "s.tar", ""),
        ("b", "s.tar", "9"),
    ]
    made = json.loads(json.dumps(proofs(invented(names), keys)))
    assert [leaf is not None for _, leaf in check(made, is_signature)] == [True, *[False] * 3, True, False, False]
    refused = 0
    found = list(forgeries(made))
    for told, forged in found:
        if is_refused(forged):
            refused += 1
            continue
        for key, leaf in check(forged, is_signature):  # another key between the same neighbours, or fewer proofs
            assert (leaf is not None) == any(list(name[: len(key)]) == key for name in names), told
    assert len(found) > 500 and refused > 0.85 * len(found)


@given(
    read=st.sets(st.tuples(st.sampled_from("ab"), st.sampled_from("pqrs"), st.sampled_from(["", "m", "n"]))),
    asked=st.lists(
        st.lists(st.sampled_from(["", "a", "b", "q", "qq", "m", "z", "\U0010ffff"]), min_size=2, max_size=3)
    ),
)
@settings(max_examples=examples(200), deadline=None)
def test_a_proof_says_for_any_object_whether_it_was_read(
    read: set[tuple[str, str, str]], asked: list[list[str]]
) -> None:
    made = json.loads(json.dumps(proofs(invented(sorted(read)), asked)))
    proven = check(made, is_signature)
    assert [key for key, _ in proven] == asked
    for key, leaf in proven:
        matching = sorted(name for name in read if list(name[: len(key)]) == key)
        assert (None if leaf is None else tuple(leaf[:3])) == (matching[0] if matching else None)


@pytest.fixture(scope="module")
def speech() -> Iterator[Client]:
    objects = {name: bytes([number]) * size for number, (name, size) in enumerate(zip(NAMES, SIZES, strict=True))}
    with throwaway_store(objects, bucket="speech") as client:
        yield client


def as_read(item: Item) -> Any:
    entry = item.entry
    return [entry.bucket, entry.name, "", entry.version, crc32c(item.data), [[entry.start, entry.length]]]


@table("kind", ["shuffle", "snapshot", "steered", "packs"])
def test_leaves_are_what_every_rank_has_read(speech: Client, kind: str) -> None:
    dataset: Any = MapDataset(speech, "ais://speech/en/", as_read, pinned=True)
    plan: Any = ShufflePlan(30, 4, group=4, seed=2, epoch_steps=8)
    if kind == "steered":
        plan = MixPlan({"a": 10, "b": 20}, {"a": 1}, batch_size=3, epoch_steps=8, group=4)
        parts = [list(speech.bucket("speech").entries(pinned=True))[span] for span in (slice(10), slice(10, 30))]
        dataset = concat({name: MapDataset(speech, part, as_read) for name, part in zip("ab", parts, strict=True)})
    elif kind == "snapshot":
        speech.bucket("speech").snapshot("v1")
        dataset = MapDataset(speech, "ais://speech@v1/en/", as_read)
    elif kind == "packs":
        plan = PackPlan([size // 4 for size in SIZES], 60, 2, group=4, item_bytes=4, epoch_steps=8)
    ranks = [BatchLoader(dataset, plan, rank=rank, world_size=2, in_flight=1) for rank in range(2)]
    read: dict[tuple[int, int], list[Any]] = {}
    for epoch, rounds in ((0, 4), (1, 2)):
        for rank, loader in enumerate(ranks):
            if kind == "steered" and epoch == 0:
                loader.steer({"b": 2, "a": 1})
            for number, batch in enumerate(islice(loader, rounds)):
                read[epoch, 2 * number + rank] = [one for pack in batch for one in pack] if kind == "packs" else batch
    for loader in ranks:
        loader.close()
    found = list(leaves(BatchLoader(dataset, plan), ranks[0].state_dict()))
    assert [(epoch, step) for epoch, step, _ in found] == sorted(read)
    for epoch, step, entries in found:
        if kind == "packs":  # of a part, the checksum is that of its object
            whole = {name: crc32c(speech.bucket("speech").get(name)) for name in NAMES}
            read[epoch, step] = [[*one[:4], whole[one[1]], one[5]] for one in read[epoch, step]]
        if kind == "snapshot":
            versions = {info.name: info.version for info in speech.bucket("speech@v1").objects()}
            read[epoch, step] = [[*one[:3], versions[one[1]], *one[4:]] for one in read[epoch, step]]
        assert entries == read[epoch, step]
    assert kind != "steered" or {entry[1] for _, _, entries in found for entry in entries} > set(NAMES[:10])
    (again,) = leaves(BatchLoader(dataset, plan), ranks[0].state_dict(), (1, 3))
    assert again == found[8 + 3]


_TRAINER = """
from ais_loader import BatchLoader, MapDataset, ShufflePlan

def new_loader(**options):
    dataset = MapDataset({store!r}, "ais://speech/en/", **({{"pinned": True}} | options))
    return BatchLoader(dataset, ShufflePlan(len(dataset), 4, seed=5))

def unpinned():
    return new_loader(pinned=False)
"""


def test_a_run_is_certified_and_every_step_and_object_of_it_verified(run: Run, tmp_path: Path) -> None:
    with throwaway_store({name: name.encode() for name in NAMES}, bucket="speech") as speech:
        program, state = tmp_path / "train.py", tmp_path / "state.json"
        program.write_text(_TRAINER.format(store=speech.url))
        loader = BatchLoader(MapDataset(speech, "ais://speech/en/", pinned=True), ShufflePlan(30, 4, seed=5))
        plan: Any = loader.batches
        had = [NAMES[number] for step in range(3) for number in plan.batch(0, step)]
        for _ in islice(loader, 3):
            pass
        state.write_text(json.dumps(loader.state_dict()))
        make_key(key := tmp_path / "key")
        make_key(tmp_path / "other")
        with log_in(tmp_path / "log") as log:
            append(log, 3)
        named, made = ["--loader", f"{program}:new_loader"], tmp_path / "run.json"
        certify = ["certify", state, "--key", key, "-o", made, "--audit", tmp_path / "log", *named]
        result = run(*certify)
        assert result.exit_code == 0 and f"certified 3 steps, {len(had)} objects and 1 audit logs" in result.stderr
        assert run(*certify).exit_code == 1  # never replaced
        verify = ["verify", made, "--key", f"{key}.pub"]
        unread = next(name for name in NAMES if name not in had)
        asked = ["--object", f"ais://speech/{had[5]}", "--object", f"speech/{unread}", "-o", tmp_path / "proofs.json"]
        told = run(*verify, *asked).stdout.splitlines()
        version = speech.bucket("speech").head(had[5]).version
        checksum = crc32c(had[5].encode())
        assert told[0] == f"ok: 3 steps before epoch 0, step 3, {len(had)} objects"
        assert "ok " in run_audit("verify", tmp_path / "log", "--expect", told[1].split()[-1])
        assert told[2] == f"read  speech/{had[5]}  version={version}  crc32c={checksum:08x}  epoch 0, step 1"
        assert told[3] == f"not read  speech/{unread}"
        proven = run("verify", tmp_path / "proofs.json", "--key", f"{key}.pub")
        assert proven.stdout.splitlines() == told
        listed = run(*verify, "--step", "1", *named).stdout.splitlines()[2:]
        assert [line.split()[1] for line in listed] == [f"speech/{name}" for name in had[4:8]]
        refused: list[tuple[Sequence[str | Path], str]] = [
            (["verify", made, "--key", f"{tmp_path}/other.pub"], "signed with another key"),
            (["verify", made, "--key", key], "a private key; nodes need the public one"),
            (["verify", state, "--key", f"{key}.pub"], "no certificate"),
            ([*verify, "--step", "3", *named], "epoch 0, step 3 is not certified"),
            ([*verify, "--step", "1"], "need FILE.py:NAME"),
            (["verify", tmp_path / "proofs.json", "--key", f"{key}.pub", "--step", "1"], "need the certificate"),
            (["certify", state, "--key", key, "-o", "x", "--loader", f"{program}:unpinned"], "entries"),
        ]
        for words, text in refused:
            failed = run(*words)
            assert failed.exit_code and text in failed.stderr, failed.stderr
        speech.bucket("speech").put(had[5], b"replaced")
        assert run(*verify, *asked[:4]).stdout.splitlines() == told
        for words in ([*verify, "--step", "1", *named], [*certify[:5], tmp_path / "again", *named]):
            failed = run(*words)
            assert failed.exit_code == 1 and "another plan" in failed.stderr, failed.stderr
