"""Names of a bucket as people think of them: a level of folders at a time, and what is near to a wrong one."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ais_loader.cli.show import waiting
from ais_loader.cli.targets import Target
from ais_loader.errors import DriveFailed, InvalidRequest
from ais_loader.hints import PATTERN_HINT, is_pattern, nearest
from ais_loader.objects.one_level import one_level as names_of_level
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.summary import PrefixSummary

if TYPE_CHECKING:
    from ais_loader.objects.bucket import Bucket

_LOOKED_AT = 1000


@dataclass(frozen=True, slots=True)
class Folder:
    """Names that begin alike, up to a slash. `holds` is None where nobody has counted."""

    bucket: str
    name: str
    holds: PrefixSummary | None


Listed: TypeAlias = ObjectInfo | Folder


def one_level(
    bucket: Bucket, target: Target, begun: str = "", *, on_missing_drive: Literal["raise", "skip"] = "raise"
) -> Iterator[Listed]:
    """Objects right in a folder, and the folders in it, in the order of their names.

    The nodes count the folders. Where there is nothing else, no names are fetched. `begun`: only what begins so there.
    With a drive missing, nobody can count.
    """
    top = target.folder
    summary = None
    uncounted = (InvalidRequest, DriveFailed) if on_missing_drive == "skip" else (InvalidRequest,)
    with contextlib.suppress(*uncounted), waiting(f"{bucket.name}/{top} to be counted"):
        summary = bucket.summary(top, depth=1)  # InvalidRequest: more folders than one answer has
    counted = {} if summary is None else {name: one for name, one in summary.by_prefix.items() if name != top}
    if summary is not None and summary.complete and top not in summary.by_prefix:
        yield from (
            Folder(bucket.name, name, one) for name, one in counted.items() if name[len(top) :].startswith(begun)
        )
        return
    for one in names_of_level(bucket, top + begun, on_missing_drive=on_missing_drive):
        yield one if isinstance(one, ObjectInfo) else Folder(bucket.name, one, counted.get(one))


def no_pattern(name: str, options: Collection[str]) -> str | None:
    """What to say of a name that is not there and looks like a shell pattern, to who runs a command with `options`."""
    if not is_pattern(name):
        return None
    if "--include" in options:
        return "a name is not a pattern: use -r with --include"
    if "--prefix" in options:
        return "a name is not a pattern: use -r with --prefix for all names that begin alike"
    return "a name is not a pattern"


def with_hint(reason: str, hint: str) -> str:
    """Return `reason` with the hint of a command in place of the hint for Python."""
    return f"{reason.removesuffix(f'; {PATTERN_HINT}')}; {hint}"


def nearest_name(bucket: Bucket, name: str) -> str | None:
    """The name most like one that is not there, of the first thousand that begin alike, up to their last slash."""
    top = name[: name.rfind("/") + 1]
    there = [info.name for info in itertools.islice(bucket.objects(top, page_size=_LOOKED_AT), _LOOKED_AT)]
    return nearest(name, there, cutoff=0.75)
