"""Fuzzing of a node: random and mutated messages to every method of every service, as any client may send them.

Seeded, and made from the descriptors of the wire's modules, so that a new method is fuzzed as soon as it is there. What
is asked for again and again is that the node lives, answers with statuses that say what is wrong, keeps within its
memory, and that a bucket which no request names rightfully is as it was.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from ais_loader import Client, connect
from ais_loader.testing import NodeProcess, rss_bytes
from ais_loader.wire import generated
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.peer_proof import PROOF_KEY
from ais_loader.wire.reserved import ERROR_KIND_KEY
from benchmarks.soak.content import content, value_of
from benchmarks.soak.outcome import Outcome
from benchmarks.soak.register import Violation
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import create_cluster
from storage_node.context.channels import Caller, Metadata
from storage_node.ops.ask_nodes import ask_node

SECRET = "0123456789abcdef-of-the-soak"
KEPT = "kept"
"""The bucket that nobody may change."""
PLAY = "play"
CALL_TIMEOUT_S = 4.0
MESSAGES_A_STREAM = 6
GROWTH_BYTES = 512 << 20
UNTYPED = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
_DEEPEST = 4
_CHANGING = ("Put", "Delete", "Create", "Set", "Compose", "Run", "Snapshot")
"""Words in the names of methods that change something. These methods are called with no name in KEPT."""
_PEER_SERVICES = ("Replica", "Repair", "SnapshotCopies", "ContentsReplica", "Drives", "Cluster")


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a service."""

    descriptor: MethodDescriptor

    @property
    def service(self) -> str:
        return str(self.descriptor.containing_service.name)

    @property
    def path(self) -> str:
        return f"/{self.descriptor.containing_service.full_name}/{self.descriptor.name}"

    @property
    def changes(self) -> bool:
        """Whether it rightfully changes what it names, be it by a client or by an operator."""
        return any(word in self.descriptor.name for word in _CHANGING)


def methods() -> list[Method]:
    """Every method of every service in the wire's modules."""
    found: dict[str, Method] = {}
    for module in pkgutil.iter_modules(generated.__path__):
        if module.name.endswith("_pb2"):
            wire = importlib.import_module(f"{generated.__name__}.{module.name}")
            for service in wire.DESCRIPTOR.services_by_name.values():
                for descriptor in service.methods:
                    method = Method(descriptor)
                    found[method.path] = method
    return list(found.values())


class Messages:
    """Draws messages: sensible values, extreme ones, and nonsense."""

    def __init__(self, draw: random.Random, known: Mapping[str, Sequence[Any]]) -> None:
        """`known`: names and ids that mean something to the node, by the type of Python that they have."""
        self._draw = draw
        self._known = known

    def message(self, of: Descriptor, *, harmless: bool, depth: int = 0) -> Any:
        """`harmless`: without the name of the bucket that nobody may change."""
        made = message_factory.GetMessageClass(of)()
        for field in of.fields:
            if self._draw.random() < 0.25 or (field.message_type is not None and depth >= _DEEPEST):
                continue
            times = 1
            if field.is_repeated:
                times = self._draw.choice([0, 1, 1, 2, 3, 5] if depth else [0, 1, 1, 2, 3, 300])
            for _ in range(times):
                self._set(made, field, harmless, depth)
        return made

    def _set(self, made: Any, field: FieldDescriptor, harmless: bool, depth: int) -> None:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            if value.message_type is None:
                getattr(made, field.name)[self._scalar(key, harmless)] = self._scalar(value, harmless)
        elif field.message_type is not None:
            inner = self.message(field.message_type, harmless=harmless, depth=depth + 1)
            if field.is_repeated:
                getattr(made, field.name).append(inner)
            else:
                getattr(made, field.name).CopyFrom(inner)
        elif field.is_repeated:
            getattr(made, field.name).append(self._scalar(field, harmless))
        else:
            setattr(made, field.name, self._scalar(field, harmless))

    def _scalar(self, field: FieldDescriptor, harmless: bool) -> Any:
        draw, kind = self._draw, field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING and field.type == FieldDescriptor.TYPE_BYTES:
            known = self._known["bytes"][1:] if harmless else self._known["bytes"]
            return draw.choice([b"", draw.randbytes(draw.choice([1, 15, 16, 17, 1000])), *known, *known])
        if kind == FieldDescriptor.CPPTYPE_STRING:
            names = [name for name in self._known["str"] if not (harmless and KEPT in name)]
            odd = [
                "",
                "..",
                "../../etc/passwd",
                "/",
                "a//b",
                "a\0b",
                "é" * 30,
                "x" * 1024,
                "x" * 5000,
                "1.2.3",
                "\U0010ffff",
            ]
            return draw.choice([*odd, *names, *names, *names])
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return draw.random() < 0.5
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return draw.choice([0, 1, 2, 3, 99])
        if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            return draw.choice(
                [0.0, 1.0, -1.0, 1e300 if kind == FieldDescriptor.CPPTYPE_DOUBLE else 1e30, float("nan")]
            )
        bits = 64 if kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64) else 32
        signed = kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_INT32)
        most = (1 << (bits - signed)) - 1
        return draw.choice(
            [0, 1, 2, 3, 7, 1000, 1 << 20, most, most - 1, most // 2, *((-1, -most - 1) if signed else ())]
        )

    def mutated(self, data: bytes) -> bytes:
        """Bytes that are not quite a message."""
        draw, changed = self._draw, bytearray(data)
        for _ in range(draw.randint(1, 4)):
            kind = draw.randrange(4)
            if kind == 0 and changed:
                changed[draw.randrange(len(changed))] = draw.randrange(256)
            elif kind == 1 and changed:
                del changed[draw.randrange(len(changed)) :]
            elif kind == 2:
                at = draw.randint(0, len(changed))
                changed[at:at] = draw.randbytes(draw.randint(1, 20))
            else:
                changed += changed[: draw.randint(0, len(changed))]
        return bytes(changed)


class Fuzzer:
    """Sends what it draws, over one channel, as one caller."""

    def __init__(
        self,
        target: str,
        draw: random.Random,
        known: Mapping[str, Sequence[Any]],
        metadata: Callable[[str], Metadata] = lambda path: (),
    ) -> None:
        """`metadata`: of a call of a method, by its path; drawn anew."""
        self._channel = grpc.insecure_channel(target)
        self._draw = draw
        self._messages = Messages(draw, known)
        self._metadata = metadata
        self._methods = methods()
        self.statuses: Counter[str] = Counter()
        self.untyped: dict[str, str] = {}
        """Messages with such a status, by method."""
        self.calls = 0

    def call(self) -> None:
        """One call of one method, whatever it answers."""
        method = self._draw.choice(self._methods)
        descriptor = method.descriptor
        harmless = method.changes and method.service not in _PEER_SERVICES
        count = self._draw.randint(0, MESSAGES_A_STREAM) if descriptor.client_streaming else 1
        requests = []
        for _ in range(count):
            data = self._messages.message(descriptor.input_type, harmless=harmless).SerializeToString()
            requests.append(self._messages.mutated(data) if self._draw.random() < 0.3 else data)
        if harmless and any(KEPT.encode() in data for data in requests):
            return  # made of a mutation
        self.calls += 1
        said = self._status(method, requests, self._metadata(method.path))
        self.statuses[said.name] += 1

    def _status(self, method: Method, requests: Sequence[bytes], metadata: Metadata) -> grpc.StatusCode:
        descriptor = method.descriptor
        sides = (descriptor.client_streaming, descriptor.server_streaming)
        kind = "_".join("stream" if streaming else "unary" for streaming in sides)
        make: Callable[..., Any] = getattr(self._channel, kind)
        sent: Any = iter(requests) if descriptor.client_streaming else requests[0]
        call = make(method.path)
        try:
            answer = call(sent, timeout=CALL_TIMEOUT_S, metadata=metadata)
            if descriptor.server_streaming:
                for at, _ in enumerate(answer):
                    if at > 20:
                        answer.cancel()
                        break
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            if code in UNTYPED and not _has_kind(error):
                said = f"{code.name}: {error.details()}"[:400]
                self.untyped.setdefault(f"{method.path} {said[:60]}", said)
            return code
        return grpc.StatusCode.OK

    def close(self) -> None:
        self._channel.close()


def _has_kind(error: Any) -> bool:
    """Whether it says what is wrong beyond its status."""
    return any(key == ERROR_KIND_KEY and value != "internal" for key, value in error.trailing_metadata() or ())


def _fill(client: Client) -> dict[str, bytes]:
    objects = {f"a/{at:03}": content(value_of("kept", at, 1024 + 512 * at)) for at in range(40)}
    client.create_bucket(KEPT).put_many(objects.items())
    client.bucket(KEPT).snapshot("s")
    client.create_bucket(PLAY).put_many([("a/000", b"x" * 2000), ("b", b"y")])
    return objects


def _state(client: Client, objects: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the differences of the protected bucket from its original contents."""
    for bucket in (client.bucket(KEPT), client.bucket(KEPT, snapshot="s")):
        if (names := [info.name for info in bucket.objects()]) != sorted(objects):
            yield f"{bucket.name} has {len(names)} names of {len(objects)}"
        for name, item in zip(objects, bucket.get_batch(list(objects), on_error="placeholder"), strict=True):
            if not item.ok or item.tobytes() != objects[name]:
                yield f"{bucket.name}: {name}: {item.status.name} {item.error}"
    if KEPT not in [info.name for info in client.buckets()]:
        yield f"{KEPT} is not among the buckets"


def fuzz(root: Path, seed: int, duration_s: float, say: Callable[[str], None]) -> Outcome:
    """Fuzz a node that is a cluster of its own, so that all its services have something to do.

    First as a client and as strangers at the door of peers, who may change nothing of the kept bucket; then
    as an operator and as the node itself, who may: it has to live, and to say what is wrong.
    """
    outcome, draw = Outcome("fuzz", seed), random.Random(f"fuzz {seed}")
    secret = root / "secret"
    secret.write_text(SECRET)
    arguments = ["--set", f"peer_secret_file={secret}"]
    with NodeProcess([root / "drive"], arguments=arguments) as node, connect(node.url) as client:
        endpoint, operator = node.url.removeprefix("grpc://"), Caller(SECRET)
        uuid = bytes.fromhex(ask_node(endpoint, operator).uuid)
        member = pb.MapNode(uuid=uuid, host="h", endpoint=endpoint, peer_endpoint=node.peer_endpoint, weight=1.0)
        change_map([endpoint], create_cluster([member]), caller=operator)
        objects = _fill(client)
        map_ = ask_node(endpoint, operator).map
        assert map_ is not None
        bucket = next(one for one in map_.bucket if one.name == KEPT)
        versions = [info.version for info in client.bucket(KEPT).objects()][:2]
        known = {
            "bytes": [bucket.uuid, uuid, bytes(map_.cluster_uuid)],
            "str": [KEPT, f"{KEPT}@s", PLAY, "a/000", "a/001", "b", "s", endpoint, str(root / "drive"), *versions],
        }

        def of(caller: Caller, path: str) -> Metadata:
            return caller.metadata(path, caller.prover(node.peer_endpoint))

        def strange(path: str) -> Metadata:
            """Return the metadata of an invalid caller: a part is missing or wrong."""
            right = of(Caller(SECRET, uuid, lambda: 1) if draw.random() < 0.5 else operator, path)
            kind = draw.randrange(3)
            if kind == 0:
                return tuple(pair for pair in right if pair[0] != PROOF_KEY)
            if kind == 1:
                return tuple((key, value if key != PROOF_KEY else value[:-1] + "x") for key, value in right)
            return of(Caller(SECRET, draw.randbytes(16), lambda: draw.choice([0, 1, 1 << 40])), path)

        def inside(path: str) -> Metadata:
            as_node = Caller(SECRET, uuid, lambda: draw.choice([0, 1, 1 << 63]))
            return of(as_node if draw.random() < 0.6 else operator, path)

        outside = [Fuzzer(endpoint, draw, known), Fuzzer(node.peer_endpoint, draw, known, strange)]
        insiders = [Fuzzer(node.peer_endpoint, draw, known, inside)]
        before = most = rss_bytes(node.pid)
        said_s = begin_s = time.monotonic()
        try:
            while (now_s := time.monotonic()) - begin_s < duration_s and node.alive and outcome.clean:
                are_outside = now_s - begin_s < duration_s * 2 / 3
                for fuzzer in outside if are_outside else insiders:
                    for _ in range(30):
                        fuzzer.call()
                if not node.alive:
                    break
                most = max(most, rss_bytes(node.pid))
                for wrong in _state_now(client, objects) if are_outside else ():
                    outcome.violations.append(Violation("state changed", KEPT, wrong))
                if now_s - said_s > 10:
                    said_s = now_s
                    say(f"{sum(one.calls for one in (*outside, *insiders)):,} calls")
        finally:
            for fuzzer in (*outside, *insiders):
                fuzzer.close()
            (root / "node.log").write_text(node.log())
        if not node.alive:
            outcome.violations.append(Violation("the node ended", endpoint, node.log()[-2000:]))
        if most - before > GROWTH_BYTES:
            outcome.violations.append(Violation("memory grows", "node", f"{(most - before) >> 20} MiB"))
        outcome.figures["node: growth at most, MiB"] = (most - before) / 2**20
    for who, fuzzer in zip(("client", "stranger", "insider"), (*outside, *insiders), strict=True):
        for where, said in sorted(fuzzer.untyped.items()):
            outcome.violations.append(Violation("untyped status", f"{who}: {where.split()[0]}", said))
        outcome.counts[f"call by {who} ok"] = fuzzer.statuses.pop("OK", 0)
        outcome.counts[f"call by {who} failed"] = fuzzer.statuses.total()
        outcome.errors += Counter(
            {f"{who}: {name.lower().replace('_', '-')}": n for name, n in fuzzer.statuses.items()}
        )
    outcome.duration_s = time.monotonic() - begin_s
    return outcome


def _state_now(client: Client, objects: Mapping[str, bytes]) -> list[str]:
    try:
        return list(_state(client, objects))
    except Exception as error:  # noqa: BLE001 - whatever keeps a client from its bucket is what is looked for
        return [f"{type(error).__name__}: {error}"]
