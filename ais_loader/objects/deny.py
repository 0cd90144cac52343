"""Takedowns: names and contents of a bucket that nobody may read or write any more."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from ais_loader import errors
from ais_loader.objects.bucket_part import BucketPart
from ais_loader.objects.delete import NAMES_AT_ONCE
from ais_loader.transport.base import require_bucket, require_text
from ais_loader.values.denials import Denials
from ais_loader.values.requests import require_many
from ais_loader.wire.denied import checked_contents, checked_reason


class BucketDenying(BucketPart):
    """Denials of objects."""

    def deny(self, names: Iterable[str] = (), *, digests: Iterable[str] = (), reason: str) -> Denials:
        """Take objects down: from now on they raise ObjectDenied, and their bytes are removed from all drives.

        That applies to reads, batches, ranges, members, snapshots, copies, appends, and jobs; an entry of a batch has
        the status `OBJECT_DENIED`. A PUT is refused. Nothing expires: `allow` ends it, and does not bring bytes back.
        The call returns when all owners that answer have it. An owner that does not answer is compared with the others
        before it is read from again. Nodes that answer remove the bytes before the call returns: files, segments,
        versions for snapshots, copies of remote objects, and uploads that are still to be done. Fragments of coded
        objects follow within minutes. The object of a remote bucket stays in its cloud, and is not fetched.

        Args:
            names: Names of objects that exist or not, also of those that only snapshots see. Consumed as needed.
            digests: Contents: `ObjectInfo.digest`. Objects that have one of them are denied by name, also when a node
                comes back, and nobody can put it under any name. Members of archives are not compared. At most 2,000.
            reason: 1 to 256 bytes of text, which the errors contain.

        Returns the denials of these names and digests, with where the bytes were and when they were removed. Raises
        InvalidName, InvalidRequest, BucketNotFound, SnapshotReadOnly, StoreReadOnly, AccessDenied, NodeUnavailable. If
        some names fail, the others are denied, and the first error is raised. Repeat the call: it changes nothing about
        those that are denied.
        """
        reason, contents = checked_reason(reason), checked_contents(digests)
        denied = self._change(names, contents, reason, allow=False)
        found = self.denied()
        return Denials(
            tuple(one for one in found.names if one.name in denied or one.digest in contents),
            {digest: found.digests[digest] for digest in contents if digest in found.digests},
            found.silent,
        )

    def denied(self) -> Denials:
        """Return everything that is denied, with what is known of where the bytes were.

        Raises BucketNotFound, AccessDenied, NodeUnavailable.
        """
        require_bucket(self.name)
        return self._transport.denied(self.name)

    def allow(self, names: Iterable[str] = (), *, digests: Iterable[str] = ()) -> int:
        """End denials. Objects can be put under these names again; the bytes are gone.

        Names that were denied because of one of the `digests` are allowed too. Returns the number of names that were
        denied. Raises as `deny`.
        """
        contents = checked_contents(digests)
        known = self.denied()
        of_contents = [one.name for one in known.names if one.digest and one.digest in contents]
        before = {one.name for one in known.names}
        return len(before & self._change(itertools.chain(names, of_contents), contents, "", allow=True))

    def _change(self, names: Iterable[str], contents: list[str], reason: str, *, allow: bool) -> set[str]:
        """Deny or allow; return the names. Contents come first, so that nobody puts one again meanwhile."""
        require_bucket(self.name)
        done: set[str] = set()
        problem: errors.LoaderError | None = None
        for at, some in enumerate(_groups(names)):
            results = self._transport.deny(self.name, some, [] if at else contents, reason, allow=allow)
            for name, error in zip(some, results, strict=True):
                if error is None or (allow and isinstance(error, errors.ObjectNotFound)):
                    done.add(name)
                else:
                    problem = problem or error
        if problem is not None:
            raise problem
        return done


def _groups(names: Iterable[str]) -> Iterator[list[str]]:
    """Yield groups of different names, at least one."""
    require_many("names", names)
    rest, is_first = iter(names), True
    while (group := list(itertools.islice(rest, NAMES_AT_ONCE))) or is_first:
        is_first = False
        for name in group:
            if not isinstance(name, str):
                raise TypeError(f"an object's name is a str, got {type(name).__name__}")
            require_text(name, errors.InvalidName, "object name")
        yield list(dict.fromkeys(group))
