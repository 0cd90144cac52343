"""Certificate of a run: the objects that each step has read, in which versions, as two signed Merkle trees.

One tree has the steps in their order. The other one has the objects, sorted, so that two neighbours prove that nothing
between them was read. The claim has both roots, the saved state, which decides the steps, and ends of audit logs. Only
the claim is signed, so a proof of one object is the claim and a few hashes.

Source: hashes and shape of the trees, RFC 6962, "Certificate Transparency". Leaves are JSON in one form.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ais_loader.errors import InvalidRequest

_SIGNED = b"ais-loader certificate, format 1\n"
"""Prefix of what is signed: a key may also sign other things."""


def leaf_hash(leaf: Any) -> str:
    return hashlib.sha256(b"\0" + _encoded(leaf)).hexdigest()


def _joined(left: str, right: str) -> str:
    return hashlib.sha256(b"\1" + bytes.fromhex(left) + bytes.fromhex(right)).hexdigest()


def _encoded(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _rows(leaves: Iterable[Any]) -> list[list[str]]:
    """Return the hashes of a tree, from those of its leaves to its root."""
    rows = [[*map(leaf_hash, leaves)] or [hashlib.sha256().hexdigest()]]
    while len(row := rows[-1]) > 1:
        joined = [_joined(*row[at : at + 2]) for at in range(0, len(row) - 1, 2)]
        rows.append(joined + row[2 * len(joined) :])
    return rows


def _root_of(leaf: str, index: int, size: int, path: Sequence[str]) -> str:
    """Return the root of a tree of `size` leaves that has this leaf at `index`; "" if this is no path in it."""
    beside = iter(path)
    while size > 1:
        if index ^ 1 < size:
            other = next(beside, "")
            leaf = _joined(other, leaf) if index & 1 else _joined(leaf, other)
        index, size = index >> 1, (size + 1) >> 1
    return leaf if size == 1 and index == 0 and next(beside, None) is None else ""


def certificate(
    state: Mapping[str, Any], leaves: Iterable[Any], audit: Sequence[Any], sign: Callable[[bytes], bytes]
) -> dict[str, Any]:
    """Return the certificate of a run, for a JSON file: of `ledger.leaves` of its state, and of ends of audit logs."""
    steps: list[str] = []
    found: dict[tuple[str, ...], list[Any]] = {}
    for leaf in leaves:
        steps.append(leaf_hash(leaf))
        for *key, checksum, _ in leaf[2]:
            found.setdefault(tuple(key), [*key, checksum, *leaf[:2]])
    objects = [found[key] for key in sorted(found)]
    claim = {"state": dict(state), "steps": len(steps), "steps_root": _rows(steps)[-1][0]}
    claim |= {"objects": len(objects), "objects_root": _rows(objects)[-1][0], "audit": list(audit)}
    signature = sign(_SIGNED + _encoded(claim)).hex()
    return {"claim": claim, "signature": signature, "steps": steps, "objects": objects}


def proofs(found: Mapping[str, Any], keys: Iterable[Sequence[str]]) -> dict[str, Any]:
    """Return a file that proves, without the certificate, for each key whether it was read.

    A key is (bucket, name, member), with member "" for a whole object, or (bucket, name) for any part of an object. Its
    proof has its first leaf or, if there is none, the neighbours of its place.
    """
    objects, made = found["objects"], []
    rows = _rows(objects)
    for key in map(list, keys):
        at = bisect.bisect_left(objects, key)  # before all that begin with it
        is_read = at < len(objects) and objects[at][: len(key)] == key
        places = [place for place in ([at] if is_read else [at - 1, at]) if 0 <= place < len(objects)]
        paths = [[(row, place >> depth ^ 1) for depth, row in enumerate(rows)] for place in places]
        hashes = [[row[beside] for row, beside in path if beside < len(row)] for path in paths]
        made.append({"key": key, "leaves": [[at, objects[at], path] for at, path in zip(places, hashes, strict=True)]})
    return {"claim": found["claim"], "signature": found["signature"], "proofs": made}


def check(found: Mapping[str, Any], is_signature: Callable[[bytes, bytes], bool]) -> list[tuple[list[str], Any]]:
    """Check a certificate, or what `proofs` returned. Returns each key that is proven, with its leaf or None.

    `is_signature` takes a signature and what was signed. Raises InvalidRequest if anything was changed.
    """
    try:
        claim, signature = found["claim"], bytes.fromhex(found["signature"])
        if not is_signature(signature, _SIGNED + _encoded(claim)) or signature.hex() != found["signature"]:
            raise InvalidRequest("the certificate was changed, signed with another key, or has a newer format")
        if found.keys() == {"claim", "signature", "proofs"}:
            return [_proven(claim, **proof) for proof in found["proofs"]]
        if found.keys() != {"claim", "signature", "steps", "objects"}:
            raise InvalidRequest("the file has other fields than a certificate or proofs have")
        for name in ("steps", "objects"):
            if (len(found[name]), _rows(found[name])[-1][0]) != (claim[name], claim[f"{name}_root"]):
                raise InvalidRequest(f"the {name} of the certificate were changed")
        if any(before[:4] >= after[:4] for before, after in itertools.pairwise(found["objects"])):
            raise InvalidRequest("the objects of the certificate are not sorted, so they say nothing of others")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise error if isinstance(error, InvalidRequest) else InvalidRequest(f"no certificate: {error!r}") from error
    return []


def _proven(claim: Mapping[str, Any], key: list[str], leaves: Sequence[Any]) -> tuple[list[str], Any]:
    size, name = claim["objects"], "/".join(key)
    for index, leaf, path in leaves:
        if _root_of(leaf_hash(leaf), index, size, path) != claim["objects_root"]:
            raise InvalidRequest(f"the proof of {name} was changed")
    if [leaf[: len(key)] for _, leaf, _ in leaves] == [key]:
        return key, leaves[0][1]
    (low,) = [index for index, leaf, _ in leaves if leaf[: len(key)] < key] or [-1]
    (high,) = [index for index, leaf, _ in leaves if leaf[: len(key)] > key] or [size]
    if low + 1 != high:  # otherwise nothing is between them, or before the first leaf or after the last one
        raise InvalidRequest(f"the proof of {name} was changed: its leaves are no neighbours")
    return key, None
