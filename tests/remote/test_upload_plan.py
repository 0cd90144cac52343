"""Upload plan: whatever fails and whoever writes beside it, an older version never replaces a newer one."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from ais_loader.wire.reserved import REMOTE_DELETED, REMOTE_ETAG, REMOTE_PENDING
from storage_node.remote.copies.object_metadata import STAMP_KEY
from storage_node.remote.write_back.upload_plan import (
    ANY,
    Attempt,
    Base,
    FoundObject,
    PendingUpload,
    Stamp,
    Step,
    base_of,
    next_step,
    pending_upload,
)
from storage_node.store.format import CatalogEntry, Version, encode_metadata, tombstone
from tests.example_count import examples
from tests.table import table

UUID = b"u" * 16


def upload(counter: int, base: Base = ANY, *, is_deletion: bool = False) -> PendingUpload:
    return PendingUpload(UUID, "a", Version(1, counter), base, is_deletion, 1, counter)


def entry(counter: int, metadata: dict[str, str], *, is_deletion: bool = False) -> CatalogEntry:
    raw = encode_metadata(metadata)
    if is_deletion:
        return tombstone(Version(1, counter), counter, b"", raw)
    return CatalogEntry(1, counter, 0, 1, 0, counter, 0, b"f", raw)


@given(st.text(max_size=40), st.booleans())
def test_what_is_encoded_is_decoded(etag: str, is_absent: bool) -> None:
    base = Base(etag, is_absent)
    assert Base.decode(base.encode()) == base
    assert Attempt.decode(Attempt(etag).encode()) == Attempt(etag)
    pending = pending_upload(UUID, "a", entry(7, {REMOTE_PENDING: base.encode()}))
    assert pending is not None and (pending.base, pending.version) == (base, Version(1, 7))


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**63), st.integers(0, 2**32 - 1))
def test_a_stamp_is_decoded_from_metadata_in_any_case(epoch: int, counter: int, node: int) -> None:
    stamp = Stamp(UUID, Version(epoch, counter, node))
    assert Stamp.decode({STAMP_KEY.title(): stamp.encode(), "other": "x"}) == stamp


@table("text", ["", "x", "zz:1.2.3", "00:1.2", ":", "00:a.b.c"])
def test_what_is_no_stamp_is_none(text: str) -> None:
    assert Stamp.decode({STAMP_KEY: text}) is None
    assert Stamp.decode({}) is None


def test_the_base_of_a_write_is_what_its_condition_saw() -> None:
    copy, pending = entry(1, {REMOTE_ETAG: '"e"'}), entry(2, {REMOTE_PENDING: Base('"e"').encode()})
    deleted = entry(3, {REMOTE_PENDING: Base('"e"').encode()}, is_deletion=True)
    assert base_of(None) == Base(is_absent=True)
    assert base_of(copy) == Base('"e"')
    assert base_of(pending) == Base('"e"')
    assert base_of(deleted) == Base('"e"', is_absent=True)
    assert base_of(entry(4, {REMOTE_DELETED: "1"}, is_deletion=True)) == Base(is_absent=True)
    assert base_of(entry(5, {REMOTE_PENDING: ANY.encode()}, is_deletion=True)) == ANY


@dataclass
class Cloud:
    """One remote object."""

    now: FoundObject | None = None
    changes: list[Stamp | None] = field(default_factory=list)
    """Stamps of all writes of the object, None for those of others."""

    def write(self, stamp: Stamp | None, if_match: FoundObject | str | None = "any") -> bool:
        if if_match != "any" and if_match != self.now:
            return False
        self.changes.append(stamp)
        self.now = FoundObject(f"e{len(self.changes)}", stamp)
        return True


@dataclass
class Owner:
    """A node that uploads. Its look and its request are separate steps, between which anything happens."""

    pending: PendingUpload | None = None
    attempt: Attempt | None = None
    looked: FoundObject | None = None
    wants_to_send: bool = False
    ended: list[Step] = field(default_factory=list)

    def put(self, pending: PendingUpload) -> None:
        if self.pending is None or self.pending.version < pending.version:
            self.pending, self.attempt, self.wants_to_send = pending, None, False

    def look(self, cloud: Cloud) -> None:
        if self.pending is None:
            return
        step = next_step(self.pending, cloud.now, self.attempt)
        self.wants_to_send, self.looked = step is Step.SEND, cloud.now
        if step is Step.SEND:
            self.attempt = Attempt(cloud.now.etag if cloud.now is not None else "")
        else:
            self.ended.append(step)
            self.pending = None if step is not Step.CONFLICT else self.pending

    def send(self, cloud: Cloud, *, answers: bool) -> None:
        if self.pending is None or not self.wants_to_send:
            return
        self.wants_to_send = False
        if cloud.write(self.pending.stamp, self.looked) and answers:
            self.pending = None
            self.ended.append(Step.DONE)

    def crash(self) -> None:
        """Only the journal is left: what is pending, and the attempt."""
        self.wants_to_send = False


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 2), st.booleans()),
        st.tuples(st.sampled_from(["look", "send", "lost", "crash"]), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("others"), st.just(0), st.booleans()),
    ),
    max_size=40,
)


@settings(max_examples=examples(120), deadline=None)
@given(STEPS)
def test_two_owners_and_others_in_any_order(steps: list[tuple[str, int, bool]]) -> None:
    cloud, owners, counter = Cloud(), [Owner(), Owner()], 0
    has_others = False
    for kind, which, _ in steps:
        if kind == "put":
            counter += 1
            for at, owner in enumerate(owners):
                if which in (at, 2):  # an owner may miss a write
                    owner.put(upload(counter))
        elif kind == "others":
            cloud.write(None)
            has_others = True
        elif kind == "look":
            owners[which].look(cloud)
        elif kind in ("send", "lost"):
            owners[which].send(cloud, answers=kind == "send")
        else:
            owners[which].crash()
    for _ in range(4):  # then everything answers
        for owner in owners:
            owner.look(cloud)
            owner.send(cloud, answers=True)
    assert all(owner.pending is None for owner in owners)
    own = [stamp.version for stamp in cloud.changes if stamp is not None]
    if not has_others:
        assert own == sorted(set(own))  # never an older one over a newer one, nor one twice
        if counter:
            assert own[-1] == Version(1, counter)
    for before, after in zip(cloud.changes, cloud.changes[1:], strict=False):
        if before is not None and after is not None:
            assert before.version < after.version


@settings(max_examples=examples(120), deadline=None)
@given(STEPS, st.sampled_from([Base(is_absent=True), Base("e1")]))
def test_a_conditional_write_never_replaces_what_others_have_written(
    steps: list[tuple[str, int, bool]], base: Base
) -> None:
    cloud, owner = Cloud(), Owner()
    if base.etag:
        cloud.write(None)
    owner.put(upload(1, base))
    begun = len(cloud.changes)
    for kind, _, _ in steps:
        if kind == "others":
            cloud.write(None)
        elif kind == "look":
            owner.look(cloud)
        elif kind in ("send", "lost"):
            owner.send(cloud, answers=kind == "send")
        elif kind == "crash":
            owner.crash()
    since = cloud.changes[begun:]
    assert since.count(Stamp(UUID, Version(1, 1))) <= 1
    if Stamp(UUID, Version(1, 1)) in since:
        assert since[0] == Stamp(UUID, Version(1, 1))  # nobody had written since the condition was checked


def test_a_deletion_ends_when_there_is_nothing_and_replaces_what_was_seen() -> None:
    deletion = upload(5, is_deletion=True)
    assert next_step(deletion, None, None) is Step.DONE
    assert next_step(deletion, FoundObject("e"), None) is Step.SEND
    assert next_step(deletion, FoundObject("e", Stamp(UUID, Version(1, 4))), Attempt("d")) is Step.SEND
    assert next_step(deletion, FoundObject("e", Stamp(UUID, Version(1, 6))), None) is Step.OBSOLETE
    assert next_step(deletion, FoundObject("new"), Attempt("old")) is Step.REPLACED
    assert next_step(upload(5, Base("old"), is_deletion=True), FoundObject("new"), None) is Step.CONFLICT
