"""Denials: what was taken down in a bucket, where its bytes were, and when they were removed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ais_loader.wire.generated import ais_contents_pb2 as pb


@dataclass(frozen=True, slots=True)
class DeniedCopy:
    """A copy of a denied object, as it was on one drive."""

    node: str
    """The node's address; empty for an embedded store."""
    drive: str
    """Path of the drive; empty if the client's token may not know it."""
    kind: str
    """"file", "segment" for a small object, "link" for a promoted file that has another name, "fragments" of a coded
    object; with " of a snapshot" for a version that only snapshots saw."""
    size_bytes: int
    version: str
    purged_ns: int | None
    """When the drive had none of the bytes any more, in nanoseconds since 1970; None while it may have some."""


@dataclass(frozen=True, slots=True)
class Denial:
    """A denied name."""

    name: str
    reason: str
    denied_ns: int
    """In nanoseconds since 1970."""
    digest: str = ""
    """The denied content that the object had, if that is why it is denied."""
    copies: tuple[DeniedCopy, ...] = ()
    """Copies that the nodes had, as far as they answer. Copies of a cloud behind a remote bucket are not among them."""

    @property
    def is_purged(self) -> bool:
        """Whether no node that answers has any of the bytes."""
        return all(one.purged_ns is not None for one in self.copies)


@dataclass(frozen=True, slots=True)
class Denials:
    """Names and digests that are denied in a bucket, names in order."""

    names: tuple[Denial, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    """Denied contents, with the reason of each."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Nodes that did not answer, with the error of each. They get the denials before they are read from again."""

    @property
    def is_purged(self) -> bool:
        """Whether no node has any of the bytes, and all have answered."""
        return not self.silent and all(one.is_purged for one in self.names)

    def __len__(self) -> int:
        return len(self.names)


def merged_denials(pages: Iterable[tuple[str, pb.ListDeniedResponse]], silent: Mapping[str, str]) -> Denials:
    """Merge what nodes list, given with the address of each."""
    newest: dict[str, pb.DeniedName] = {}
    copies: dict[str, list[DeniedCopy]] = {}
    digests: dict[str, str] = {}
    for node, page in pages:
        digests |= page.content
        for one in page.name:
            known = newest.get(one.name)
            if known is None or _order(known) < _order(one):
                newest[one.name] = one
            copies.setdefault(one.name, []).extend(
                DeniedCopy(node, on.drive, copy.kind, copy.size_bytes, copy.version, on.purged_ns or None)
                for on in one.drive
                for copy in on.copy
            )
    names = (
        Denial(name, one.reason, one.denied_ns, one.content, tuple(copies[name]))
        for name, one in sorted(newest.items())
    )
    return Denials(tuple(names), digests, silent)


def _order(one: pb.DeniedName) -> tuple[int, int, int]:
    return one.version.epoch, one.version.counter, one.version.node
