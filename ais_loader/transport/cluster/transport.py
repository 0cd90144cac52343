"""Remote transport: each call goes to the nodes that have, or should have, what it concerns.

Owners are computed here, from the cluster's map. Reads ask the holders of an object one after another until one
answers. Writes go to the first owner that answers, which coordinates the other replicas. While no node answers, calls
are retried for `retry_s`, with the newest map.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

from ais_loader import errors
from ais_loader.tracebacks import short_tracebacks
from ais_loader.transport.base import (
    BucketInfo,
    EtlMethod,
    OpenedObject,
    PutSpec,
    require_bucket,
    require_object,
    require_text,
)
from ais_loader.transport.cluster.discovery import Discovery, LateStream
from ais_loader.transport.cluster.failover import QUICK_TIMEOUT_S, Members
from ais_loader.transport.cluster.merged_stream import MergedStream
from ais_loader.transport.cluster.node_listing import node_pages
from ais_loader.transport.cluster.promote import promote, promote_request
from ais_loader.transport.cluster.put_many import PutMany
from ais_loader.transport.cluster.remote_bucket_calls import RemoteBucketCalls
from ais_loader.transport.cluster.routing import assemblers
from ais_loader.transport.grpc.node_calls import NodeCalls
from ais_loader.transport.grpc.watchdog import CALL_TIMEOUT_S
from ais_loader.transport.listings import BucketListings, Item, MembersPage
from ais_loader.transport.retry import NO_RETRY_S, RetryBudget, WriteTries, may_pass, of_a_repeat
from ais_loader.transport.session.batch_stream import GrpcStream, StreamPolicy
from ais_loader.values.batch import Batch
from ais_loader.values.denials import Denials, merged_denials
from ais_loader.values.entry import Entry, ObjectInfo
from ais_loader.values.options import ClusterOptions
from ais_loader.values.promote import PromoteResult, PromoteSpec
from ais_loader.values.requests import BatchOptions, requests_for_entries
from ais_loader.values.source import Buffer, Source
from ais_loader.values.summary import BucketSummary, SnapshotAction, SnapshotInfo
from ais_loader.wire.bucket_settings import BucketSettings
from ais_loader.wire.frame import FrameStream
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.generated import ais_compose_pb2 as compose_pb
from ais_loader.wire.generated import ais_contents_pb2 as contents_pb
from ais_loader.wire.generated import ais_etl_pb2 as etl_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_promote_pb2 as promote_pb


@short_tracebacks
class RemoteTransport(RemoteBucketCalls, BucketListings):
    """A `Transport` to the node or cluster at the endpoints of `url`. Pickles as its address.

    Args:
        known: further endpoints, of nodes that the cluster was last known to have.
    """

    def __init__(self, url: str, options: ClusterOptions, *, known: Sequence[str] = ()) -> None:
        super().__init__(url, options.retry_s)
        self.options = options
        self._discovery = Discovery(url, options, known)

    def __reduce__(self) -> tuple[Any, ...]:
        return _connect_again, (self.url, self.options, self._discovery.known)

    @property
    def members(self) -> Members:
        return self._discovery.found or self._discovery.members()

    @property
    def _has_others(self) -> bool:
        """Whether another node can be asked if one does not answer."""
        return len(self.members.view.nodes) > 1

    # -- buckets: served by any node that answers

    def create_bucket(self, name: str, settings: BucketSettings, *, exist_ok: bool) -> BucketInfo:
        made = self._any(lambda node: node.create_bucket(name, settings, exist_ok=exist_ok))
        self.members.refresh(force=True)
        return made

    def bucket(self, name: str) -> BucketInfo:
        return self._any(self._checked(name, lambda node: node.bucket(name, has_others=self._has_others)))

    def buckets(self) -> list[BucketInfo]:
        return self._any(lambda node: node.buckets(has_others=self._has_others))

    def set_bucket(self, name: str, settings: BucketSettings) -> BucketInfo:
        changed = self._any(lambda node: node.set_bucket(name, settings))
        self.members.refresh(force=True)
        return changed

    def delete_bucket(self, name: str, *, force: bool) -> int:
        deleted = self._any(lambda node: node.delete_bucket(name, force=force), retry=False)
        self.members.refresh(force=True)
        return deleted

    def snapshots(self, action: SnapshotAction, bucket: str, name: str = "") -> list[SnapshotInfo]:
        found = self._any(lambda node: node.snapshots(action, bucket, name), retry=action == "list")
        if action != "list":
            self.members.refresh(force=True)
        return found

    # -- objects

    def put(self, spec: PutSpec, source: Source, *, patience: RetryBudget | None = None) -> ObjectInfo:
        """Put an object. `patience`: a retry limit that several puts may share."""
        require_bucket(spec.bucket)
        require_text(spec.name, errors.InvalidName, "object name")
        put = self._checked(spec.bucket, lambda node: node.put(spec, source))
        with spec.tries.raise_if_unknown():
            return self._write(
                spec.bucket,
                spec.name,
                put,
                only_first=spec.is_conditional,
                retry=source.replayable,
                patience=patience,
            )

    def put_many(
        self, objects: Iterable[tuple[PutSpec, Source]]
    ) -> Generator[ObjectInfo | errors.LoaderError, None, None]:
        yield from PutMany(
            self._owner_of,
            lambda node: self.members.calls(node).open_puts,
            self.put,
            lambda bucket: bucket in self.members.view.buckets,
            self._retry_s,
            self.members.only is None,
        ).results_of(objects)

    def compose(
        self,
        request: compose_pb.ComposeRequest,
        moved: Callable[[int], None] | None = None,
        *,
        retry: bool = True,
        tries: WriteTries | None = None,
    ) -> ObjectInfo:
        made = request.object
        tries = tries or WriteTries(made.condition.write_id)
        with tries.raise_if_unknown():

            def call(node: NodeCalls) -> ObjectInfo:
                return node.compose(request, moved, replay=retry, tries=tries)

            sources = {part.range.bucket for part in request.part if part.HasField("range")}
            checked = self._checked(made.bucket, call, *sources)
            is_conditional = bool(made.condition.if_absent or made.condition.if_version)
            return self._write(made.bucket, made.name, checked, only_first=is_conditional, retry=retry, replay=True)

    def _owner_of(self, spec: PutSpec) -> bytes:
        owners = self._ranked_owners if spec.is_conditional else self._owners
        return owners(spec.bucket, spec.name)[0]

    def get(self, entry: Entry, *, verify: bool, timeout_s: float) -> Iterator[Buffer]:
        """Get an object as a batch of one, from the first holder that answers. A broken answer continues at another
        holder. An object too large for a batch is streamed by a separate call."""
        members = self._discovery.found or self._discovery.members(timeout_s)
        require_object(entry.bucket, entry.name)
        if entry.start == 0 and entry.length is None and entry.member is None:
            data = self._get_small(members, entry.bucket, entry.name, timeout_s)
            if data is not None:
                yield data
                return
        options = BatchOptions(timeout_s=timeout_s, verify_ranges=verify)
        entries, requests = requests_for_entries([entry], options)
        batch = Batch(
            entries, requests, lambda request: self.open_batch(request, timeout_s=timeout_s, assembly="direct"), "raise"
        )
        try:
            yield from (item.data for item in batch)
        except errors.ItemTooLarge:
            rest = pb.GetRequest(bucket=entry.bucket, name=entry.name, member=entry.member, length=entry.length)
            rest.start, rest.verify_range = entry.start, verify
            yield from self._download(rest, timeout_s)

    def _get_small(self, members: Members, bucket: str, name: str, timeout_s: float) -> Buffer | None:
        """Get an object on the fastest path. Returns None if that path does not apply. Raises SilenceTimeout."""
        request = batch_pb.BatchRequest(bucket=(bucket,), name=(name,), fail_fast=True, ordered=True)
        return self._ask_best(members, request, NodeCalls.get_small, timeout_s)

    def open_object(self, bucket: str, name: str, *, whole_up_to: int, timeout_s: float) -> OpenedObject:
        """Ask the best holder on the fastest path. Anything but a complete answer leads to calls of each holder."""
        require_object(bucket, name)
        members = self._discovery.found or self._discovery.members(timeout_s)
        request = batch_pb.BatchRequest(bucket=(bucket,), name=(name,), ordered=True, whole_up_to=whole_up_to)
        opened = self._ask_best(members, request, NodeCalls.open_small, timeout_s)
        return OpenedObject(self._head(bucket, name)) if opened is None else opened

    def open_cached(self, bucket: str, name: str, most_bytes: int) -> OpenedObject | None:
        return None

    def open_member(
        self, bucket: str, name: str, member: str, *, whole_up_to: int, timeout_s: float
    ) -> OpenedObject | None:
        require_object(bucket, name)
        if not member:  # to a node, it is no member
            return None
        members = self._discovery.found or self._discovery.members(timeout_s)
        request = batch_pb.BatchRequest(
            bucket=(bucket,), name=(name,), member=(member,), ordered=True, whole_up_to=whole_up_to
        )
        return self._ask_best(members, request, NodeCalls.open_small, timeout_s)

    def get_transformed(self, request: batch_pb.BatchRequest, timeout_s: float) -> Buffer | None:
        """Ask one of the holders; always the same one while it is trusted, because it caches the result."""
        members = self._discovery.found or self._discovery.members(timeout_s)
        if (only := members.only) is not None:
            return only.get_small(request, timeout_s)
        nodes = self._nodes(request.bucket[0], request.name[0])
        if not nodes or members.is_suspect(nodes[0]):
            return None
        request.local, request.map_version = True, members.view.version
        try:
            return members.calls(nodes[0]).get_small(request, timeout_s)
        except errors.NodeUnavailable:
            members.suspect(nodes[0])
            return None

    def head(self, bucket: str, name: str) -> ObjectInfo:
        """Ask the best holder by the session, and all others if it does not describe the object."""
        require_object(bucket, name)
        request = batch_pb.BatchRequest(bucket=(bucket,), name=(name,), ordered=True, whole_up_to=0)
        opened = None
        with contextlib.suppress(errors.SilenceTimeout):
            opened = self._ask_best(self.members, request, NodeCalls.open_small, QUICK_TIMEOUT_S)
        return self._head(bucket, name) if opened is None else opened.info

    def head_names(self, bucket: str, names: Sequence[str]) -> list[ObjectInfo | errors.LoaderError]:
        """Look names up with one request to each of their holders; names without a sure answer are looked up one by
        one."""
        require_bucket(bucket)
        members = self.members
        if members.only is not None:
            heads = self._any(lambda node: node.head_names(bucket, names, timeout_s=CALL_TIMEOUT_S))
            if not any(isinstance(one, errors.NotFound) for one in heads) or members.refresh(force=True) is False:
                return heads
        found = self._heads_of_holders(bucket, names) if members.knows(bucket) else {}
        for at, name in enumerate(names):
            if at not in found:
                try:
                    found[at] = self._head(bucket, name)
                except errors.BucketNotFound:
                    raise
                except errors.LoaderError as error:
                    found[at] = error
        return [found[at] for at in range(len(names))]

    def _heads_of_holders(self, bucket: str, names: Sequence[str]) -> dict[int, ObjectInfo | errors.LoaderError]:
        """Return, by position, objects and the errors of names that no holder has. The latter only if the map has not
        changed."""
        members, view = self.members, self.members.view
        holders = [members.by_trust(nodes) for nodes in members.holders(bucket, names)]
        found: dict[int, ObjectInfo | errors.LoaderError] = {}
        missing: dict[int, errors.LoaderError] = {}
        left = {at: 0 for at, nodes in enumerate(holders) if nodes}  # rank of the next holder to ask
        while left:
            groups: dict[bytes, list[int]] = {}
            for at, rank in left.items():
                groups.setdefault(holders[at][rank], []).append(at)
            left = {}
            for node, positions in groups.items():
                try:
                    answers = members.calls(node).head_names(
                        bucket, [names[at] for at in positions], timeout_s=QUICK_TIMEOUT_S
                    )
                except (errors.NodeUnavailable, errors.SilenceTimeout):
                    members.suspect(node)
                    continue
                except errors.LoaderError:
                    continue  # single lookups handle that error
                for at, answer in zip(positions, answers, strict=True):
                    if isinstance(answer, (ObjectInfo, errors.ObjectDeleted, errors.ObjectDenied)):
                        found[at] = answer
                    elif isinstance(answer, errors.NotFound):
                        rank = holders[at].index(node) + 1
                        if rank < len(holders[at]):
                            left[at] = rank
                        else:
                            missing[at] = answer
        if missing:
            asked = members.refresh(force=True)
            if asked is not None and members.view is view and not view.is_moving([bucket]):
                found |= missing
        return found

    def delete(self, bucket: str, name: str, *, if_version: str | None = None) -> None:
        require_object(bucket, name)
        tries = WriteTries()

        delete = self._checked(bucket, lambda node: node.delete(bucket, name, if_version=if_version, tries=tries))
        with tries.raise_if_unknown():
            self._write(bucket, name, delete, only_first=if_version is not None, retry=True)

    def _pages(self, request: pb.ListRequest) -> Iterator[Sequence[Item]]:
        return node_pages(self.members, request, self._any, lambda: self._has_others, self._retry_s)

    def delete_names(self, bucket: str, names: Sequence[str]) -> list[errors.LoaderError | None]:
        """Delete names through any node that answers: it makes the owners of all names write tombstones.

        Names for which that node has no room for a version, and those that too few owners have deleted, are sent again.

        Raises BucketNotFound, NodeUnavailable, SilenceTimeout.
        """
        tries = WriteTries()
        return self._for_each(bucket, names, lambda node, left: node.delete_names(bucket, left, tries), tries)

    def _for_each(
        self,
        bucket: str,
        names: Sequence[str],
        call: Callable[[NodeCalls, Sequence[str]], list[errors.LoaderError | None]],
        tries: WriteTries,
    ) -> list[errors.LoaderError | None]:
        """Make a call with names through any node that answers, and again with those whose error may pass."""
        results: list[errors.LoaderError | None] = [None] * len(names)
        left = list(range(len(names)))

        def is_left(at: int) -> bool:
            return may_pass(results[at]) or isinstance(results[at], errors.DriveFull)

        def call_with_left(node: NodeCalls) -> None:
            for at, result in zip(left, call(node, [names[at] for at in left]), strict=True):
                results[at] = result
            left[:] = [at for at in left if is_left(at)]
            for why in sorted((results[at] for at in left), key=lambda why: isinstance(why, errors.DriveFull)):
                raise why  # type: ignore[misc]

        try:
            with tries.raise_if_unknown():
                self._any(self._checked(bucket, call_with_left))
        except errors.LoaderError as error:
            if isinstance(error, errors.Closed) or not any(map(is_left, left)):
                raise  # no node has answered yet
            for at in left:
                if (why := results[at]) is not None and tries.in_doubt:
                    results[at] = of_a_repeat(why)
        return results

    def deny(
        self, bucket: str, names: Sequence[str], contents: Sequence[str], reason: str, *, allow: bool
    ) -> list[errors.LoaderError | None]:
        """Deny or allow through any node that answers."""

        def deny(node: NodeCalls, names: Sequence[str]) -> list[errors.LoaderError | None]:
            return node.deny(
                contents_pb.DenyRequest(bucket=bucket, name=names, content=contents, reason=reason, allow=allow)
            )

        done = self._for_each(bucket, names, deny, WriteTries())
        self.members.refresh(force=True)
        return done

    def denied(self, bucket: str) -> Denials:
        """Ask all nodes: each knows where the bytes were on its own drives."""
        silent: dict[str, errors.LoaderError] = {}
        found = list(self._of_all(lambda node: node.denied(bucket), silent))
        if not found:
            raise list(silent.values())[-1]
        return merged_denials(found, {endpoint: str(error) for endpoint, error in silent.items()})

    def summary(self, bucket: str, *, prefix: str, depth: int) -> BucketSummary:
        def summarized(node: NodeCalls) -> BucketSummary:
            return node.summary(bucket, prefix=prefix, depth=depth, has_others=self._has_others)

        return self._any(self._checked(bucket, summarized))

    def _member_page(self, request: pb.ListMembersRequest) -> MembersPage:
        page = self._read(request.bucket, request.name, lambda node, _: node.member_page(request))
        members = zip(page.name, page.size, page.checksum, strict=True)
        return MembersPage(page.version, members, page.next, page.hidden)

    def promote(self, spec: PromoteSpec) -> Generator[PromoteResult, None, None]:
        request, members = promote_request(spec), self.members
        if members.only is not None:
            look_request = promote_pb.LookRequest(path=request.path, recursive=request.recursive)
            self._any(lambda node: node.look(look_request, timeout_s=CALL_TIMEOUT_S))  # again while it does not answer
        yield from promote(members, spec, request)

    # -- jobs: any node that answers knows all jobs

    def etl(self, method: EtlMethod, request: Any) -> Any:
        return self._first(self.members.anybody, lambda node: node.etl(method, request), retry=True, consumes=False)

    def watch_job(self, name: str) -> Iterator[etl_pb.JobInfo]:
        members = self.members
        node = members.anybody()[0]
        try:
            yield from members.calls(node).watch_job(name)
        except (errors.NodeUnavailable, errors.SilenceTimeout):
            members.suspect(node)  # the next call to watch_job asks another node
            raise

    def copy_transformed(self, request: etl_pb.CopyObjectRequest) -> ObjectInfo:
        copy = self._checked(request.bucket, lambda node: node.copy_transformed(request), request.to_bucket)
        return self._write(request.bucket, request.name, copy, retry=True)

    # -- batches

    def open_batch(
        self, request: batch_pb.BatchRequest, *, timeout_s: float, assembly: str = "auto", colocation: str = "none"
    ) -> FrameStream:
        def begin(members: Members) -> FrameStream:
            policy = StreamPolicy(timeout_s, self._retry_s, self.options.verify_payload)
            if (only := members.only) is not None:
                return GrpcStream(request, only.open_shared, policy, self.url)
            return MergedStream(request, members, policy, assemblers(request, members, assembly, colocation))

        request.tenant = self.options.tenant or request.tenant
        try:
            members = self._discovery.found or self._discovery.members(min(timeout_s, QUICK_TIMEOUT_S), retry=False)
        except (errors.NodeUnavailable, errors.SilenceTimeout):
            return LateStream(lambda: begin(self._discovery.members(timeout_s)))
        return begin(members)

    def open_long_batch(
        self, request: batch_pb.BatchRequest, *, timeout_s: float, window_bytes: int
    ) -> FrameStream | None:
        """Only to a node without a cluster, once it is known to have none."""
        found = self._discovery.found
        if found is None or (only := found.only) is None:
            return None
        policy = StreamPolicy(timeout_s, NO_RETRY_S, self.options.verify_payload)
        request.tenant = self.options.tenant or request.tenant
        return GrpcStream(request, lambda request: only.open_alone(request, window_bytes), policy, self.url)

    # -- life

    def describe(self) -> dict[str, object]:
        """Describe the cluster, and each node that answers; or the node that has no cluster."""
        members = self.members
        members.refresh(force=True)
        if members.only is not None:
            return self._any(NodeCalls.describe)
        view = members.view
        nodes: list[dict[str, object]] = []
        first: dict[str, object] = {}
        for node in view.nodes:
            known: dict[str, object] = {"uuid": node.uuid.hex(), "host": node.host, "endpoint": node.endpoint}
            try:
                known |= members.calls(node.uuid).describe()
                first = first or known
            except (errors.NodeUnavailable, errors.SilenceTimeout) as error:
                known["error"] = str(error)
            nodes.append(known)
        if not first:
            raise errors.NodeUnavailable(f"{self.url}: none of {len(nodes)} nodes answers: {nodes[0].get('error')}")
        drives: list[object] = []
        for described in nodes:
            found = described.get("drives", [])
            assert isinstance(found, list)
            drives += found
        return {
            "url": self.url,
            "store_uuid": view.map.cluster_uuid.hex(),
            "version": first["version"],
            "map_version": view.version,
            "drives": drives,
            "nodes": nodes,
        }

    def refresh(self) -> None:
        """Nodes always answer from the committed state."""

    def close(self) -> None:
        self._discovery.close()


def _connect_again(url: str, options: ClusterOptions, known: Sequence[str]) -> RemoteTransport:
    return RemoteTransport(url, options, known=known)
