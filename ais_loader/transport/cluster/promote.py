"""Promotion by the nodes of a cluster: by the node that sees the files, or by all nodes that see the same files.

If several nodes see the same files, each takes the names of which it is the best owner among these nodes. Every file is
thus promoted once, as long as all act by one version of the map; a node that does not rejects its part.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from ais_loader import errors
from ais_loader.transport.base import require_bucket, require_text
from ais_loader.transport.cluster.failover import Members
from ais_loader.transport.retry import RetryBudget
from ais_loader.values.promote import PromoteResult, PromoteSpec
from ais_loader.wire.generated import ais_promote_pb2 as wire

LOOK_TIMEOUT_S = 10.0
_LOOK_CALLS_AT_ONCE = 32
_UNTAKEN = 1024
"""Results that wait to be consumed, before nodes have to wait."""
_TAKING_S = 0.2

_Answers: TypeAlias = dict[bytes, wire.LookResponse]
_Ended: TypeAlias = tuple[bytes, int | errors.LoaderError]
"""A node, and the number of files that it has seen, or the error that stopped it."""


def promote_request(spec: PromoteSpec) -> wire.PromoteRequest:
    """Raises InvalidRequest, BucketNotFound."""
    require_bucket(spec.bucket)
    if not os.path.isabs(spec.path):
        raise errors.InvalidRequest(f"{spec.path!r}: need an absolute path, on the node's machine")
    for text in (spec.prefix, *spec.include, *spec.exclude):
        require_text(text, errors.InvalidRequest, "prefix or pattern")
    return wire.PromoteRequest(
        bucket=spec.bucket,
        path=os.fsencode(spec.path),
        prefix=spec.prefix,
        recursive=spec.recursive,
        move=spec.move,
        overwrite=spec.overwrite,
        include=spec.include,
        exclude=spec.exclude,
    )


def promote(members: Members, spec: PromoteSpec, request: wire.PromoteRequest) -> Generator[PromoteResult, None, None]:
    """Promote files. Raises InvalidRequest if it is ambiguous whose files are meant; SourceRefused, SourceUnreadable if
    no node sees the path; NodeUnavailable if the only promoting node was lost. If one of several is lost, that is a
    failure among the results, and the others go on."""
    if not members.knows(spec.bucket):
        yield from members.calls(members.anybody()[0]).run_promotion(request)
        return
    responses, unanswered = _look(members, request)
    taking = _choose(members, spec, responses, unanswered)
    if len(taking) == 1:
        yield from members.calls(taking[0]).run_promotion(request)
        return
    request.participant.extend(taking)
    request.map_version = members.view.version
    yield from _together(members, request, taking)


def _look(members: Members, request: wire.PromoteRequest) -> tuple[_Answers, dict[bytes, errors.LoaderError]]:
    """Return what each node sees at the path, once all that answer act by this client's map."""
    patience = RetryBudget(members.options.retry_s)
    while True:
        responses, unanswered = _look_once(members, request)
        newest = max((look.map_version for look in responses.values()), default=0)
        if newest > members.view.version:
            members.refresh(force=True)
        oldest = min((look.map_version for look in responses.values()), default=newest)
        if oldest == newest == members.view.version:
            return responses, unanswered
        reason = next(iter(unanswered.values()), None) if not responses else None
        patience.pause(reason or errors.StaleMap("nodes act by different versions of the map"))


def _look_once(members: Members, request: wire.PromoteRequest) -> tuple[_Answers, dict[bytes, errors.LoaderError]]:
    look_request = wire.LookRequest(path=request.path, recursive=request.recursive)

    def look(node: bytes) -> wire.LookResponse | errors.LoaderError:
        try:
            return members.calls(node).look(look_request, timeout_s=LOOK_TIMEOUT_S)
        except errors.Closed:
            raise
        except errors.LoaderError as error:
            members.suspect(node)
            return error

    nodes = members.anybody()
    with ThreadPoolExecutor(min(len(nodes), _LOOK_CALLS_AT_ONCE)) as threads:
        answers = dict(zip(nodes, threads.map(look, nodes), strict=True))
    responses = {node: answer for node, answer in answers.items() if isinstance(answer, wire.LookResponse)}
    return responses, {node: answer for node, answer in answers.items() if isinstance(answer, errors.LoaderError)}


def _choose(
    members: Members, spec: PromoteSpec, responses: _Answers, unanswered: dict[bytes, errors.LoaderError]
) -> list[bytes]:
    """Select the nodes that promote."""
    view = members.view
    endpoints = {node.uuid: node.endpoint for node in view.nodes}
    if spec.node is not None:
        named = [uuid for uuid, at in endpoints.items() if at == spec.node or uuid.hex() == spec.node]
        if not named:
            raise errors.InvalidRequest(
                f"node={spec.node!r}: no node has this address or uuid; the nodes are {', '.join(endpoints.values())}"
            )
        if named[0] in unanswered:
            raise unanswered[named[0]]
        responses = {named[0]: responses[named[0]]}
    with_path = {node: look for node, look in responses.items() if not look.HasField("error")}
    if not with_path:
        # A node that sees the path and refuses it says more than one that has no such path, or may not access it.
        refused = errors.SourceRefused.kind
        first = min(responses.values(), key=lambda look: (look.outside, look.error.kind != refused))
        raise errors.from_node(first.error.kind, first.error.message)
    if len(with_path) == 1 or spec.shared is True:
        return sorted(with_path)
    places = {(look.machine, look.device, look.inode) for look in with_path.values()}
    if len(places) > 1 or not next(iter(places))[0]:
        found = ", ".join(endpoints.get(node, node.hex()) for node in with_path)
        raise errors.InvalidRequest(
            f"{spec.path}: several nodes have such a path ({found}). Say shared=True if it is one file system that all "
            "of them see, or node=HOST:PORT for the files of one"
        )
    return sorted(with_path) if spec.shared == "auto" else [next(iter(with_path))]


def _together(members: Members, request: wire.PromoteRequest, nodes: list[bytes]) -> Iterator[PromoteResult]:
    results: queue.Queue[PromoteResult | _Ended] = queue.Queue(_UNTAKEN)
    stopped = threading.Event()

    def hand_over(one: PromoteResult | _Ended) -> bool:
        while not stopped.is_set():
            try:
                results.put(one, timeout=_TAKING_S)
                return True
            except queue.Full:
                continue
        return False

    def run(node: bytes) -> None:
        ended: int | errors.LoaderError
        try:
            running = members.calls(node).run_promotion(request)
            while True:
                try:
                    if not hand_over(next(running)):
                        running.close()
                        return
                except StopIteration as stop:
                    ended = stop.value
                    break
        except errors.LoaderError as error:
            ended = error
        except Exception as error:  # noqa: BLE001 - the thread that waits for this node needs the error
            ended = errors.NodeUnavailable(f"{type(error).__name__}: {error}")
        hand_over((node, ended))

    for node in nodes:
        threading.Thread(target=run, args=(node,), name="ais-loader promote", daemon=True).start()
    files_seen: dict[bytes, int] = {}
    has_begun = False
    try:
        for _ in nodes:
            while isinstance(one := results.get(), PromoteResult):
                has_begun = True
                yield one
            node, ended = one
            if isinstance(ended, int):
                files_seen[node] = ended
            elif isinstance(ended, errors.AccessDenied | errors.Unsupported) and not has_begun:
                raise ended  # by its token or its bucket, none of it can be done
            else:
                yield _lost(members, node, ended)
    finally:
        stopped.set()
    if len(set(files_seen.values())) > 1 and not request.move:
        yield _differing(members, files_seen)


def _name(members: Members, node: bytes) -> str:
    at = members.view.position.get(node)
    return node.hex() if at is None else members.view.nodes[at].endpoint


def _lost(members: Members, node: bytes, error: errors.LoaderError) -> PromoteResult:
    reason = type(error)(f"{_name(members, node)} did not finish its share, promote again: {error}")
    return PromoteResult("", "", "failed", error=reason)


def _differing(members: Members, files_seen: dict[bytes, int]) -> PromoteResult:
    counts = ", ".join(f"{_name(members, node)}: {count:,}" for node, count in files_seen.items())
    reason = errors.SourceChanged(
        f"the nodes have not seen the same number of files ({counts}): they are being changed, or it is not one file "
        "system; promote again, or without `shared`"
    )
    return PromoteResult("", "", "failed", error=reason)
