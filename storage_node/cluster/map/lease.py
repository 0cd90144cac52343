"""Map version pins (leases): the version that a node reports is the oldest by which it still has work under way.

What a node began by an older map may still be under way when it knows a newer one: copies that it takes away because
others own them, writes that it is about to commit to those who owned the objects. For as long as that lasts, others are
told the old version. Two things rest on it.

**No copy is taken away on the word of a node that may lose its own.** A node takes away a copy that it does not own
once all owners have said that they have it. Under two maps two nodes could each rely on the other's copy so, and both
take theirs away. Therefore an answer about copies comes with this version, noted before the node looks, and counts only
if it is the version by which the removal is decided. That is enough: say that X takes a copy away by map v, relying on
Y, which owns it by map v. Y answered by v, so it takes nothing away by an older map any more, and by v itself it keeps
what it owns. It can lose its copy only by a later map w, when all owners by w have answered by w. If X is one of them
it answered after its removal by v was over, and so not for what it took away. Hence after every removal the owners by
its map have the object, until a later removal of which the same is true.

**No change of the map is finished before all is where it belongs.** A pass counts as clean only if all nodes acted by
the map when it began: what comes to a node that is about to leave comes before that, and is found.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ais_loader.wire.cluster_map import ClusterView
    from storage_node.cluster.map.membership import Membership


def version_told(known: int, under_way: Iterable[int]) -> int:
    """What others are told by a node that knows map `known` and has something under way by those of `under_way`."""
    return min([known, *under_way])


class MapLease:
    """Thread-safe. The map may change at any moment; `begin` and `version` see it as one moment each."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._lock = threading.Lock()
        self._under_way: Counter[int] = Counter()

    @property
    def version(self) -> int:
        """To be noted before looking at what this node has; 0 while it knows no map."""
        with self._lock:
            view = self._membership.view
            return version_told(view.version if view is not None else 0, self._under_way)

    def begin(self, view: ClusterView) -> bool:
        """Hold this map, if it is the newest one; `end` must follow then."""
        with self._lock:
            if self._membership.view is not view:
                return False
            self._under_way[view.version] += 1
            return True

    def hold(self, version: int) -> None:
        """Hold a map, older or not, before looking whether what was begun by it is to go on; `end` must follow."""
        with self._lock:
            self._under_way[version] += 1

    def end(self, version: int) -> None:
        with self._lock:
            self._under_way[version] -= 1
            if not self._under_way[version]:
                del self._under_way[version]
