"""Proof of a call to a peer listener: the caller shows that it knows the cluster's secret, and never sends it.

The proof is an HMAC-SHA256 under the secret. It covers the method, the caller (role, node, version of its map), the
address that was called, the time, and a number that the caller's channel never uses twice. A proof that somebody has
overheard is therefore of no use for another method, on another node, or a second time.

The receiver remembers which numbers of a channel it has seen, for as long as it accepts their time. It has no memory of
what came before its own start, and asks for calls that are older than that to be made again. The start is taken by the
present clock: of a node that started while its clock was hours ahead, all calls would otherwise look older for hours.
"""

from __future__ import annotations

import hmac
import itertools
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

PROOF_KEY = "ais-peer-proof"
"""Metadata of a call: `SCHEME CHANNEL NUMBER SENT_MS TARGET HMAC`."""
SCHEME = "1"
MAX_SKEW_S = 300.0
"""Between the clocks of caller and receiver, and so the time for which a number is remembered."""
OVERTAKEN = 4096
"""Calls of one channel that may arrive before an earlier one does."""
_DIGEST = "sha256"
_MAX_PROOF_CHARACTERS = 1024
_SWEEP_EVERY = 256
Clock = Callable[[], float]


class CallClaim(NamedTuple):
    """The call that a proof is for, by its metadata. `node` and `map_version` are empty for an operator."""

    method: str
    role: str
    node: str = ""
    map_version: str = ""


class ProofError(Exception):
    """Reason for which a proof is not accepted, in words for whoever runs the caller."""


class StaleProof(ProofError):
    """The call was made before the receiver started. A new one will do."""


class Prover:
    """Proofs for the calls of one channel. Thread-safe."""

    def __init__(self, secret: str, target: str, clock: Clock = time.time) -> None:
        """`target`: the host:port that the channel is connected to."""
        self._key = secret.encode()
        self._target = target
        self._clock = clock
        self._channel = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    def prove(self, claim: CallClaim) -> str:
        return _signed(self._key, claim, self._channel, next(self._numbers), int(self._clock() * 1000), self._target)


@dataclass(slots=True)
class _Seen:
    """Numbers of one channel. Bit N of `recent` stands for `highest - N`."""

    highest: int = 0
    recent: int = 0
    newest_ms: int = 0

    def take(self, number: int, sent_ms: int) -> bool:
        """Whether the number is new."""
        ahead = number - self.highest
        if ahead > 0:
            self.recent = ((self.recent << ahead) | 1) & _RECENT if ahead < OVERTAKEN else 1
            self.highest = number
        elif -ahead >= OVERTAKEN or self.recent >> -ahead & 1:
            return False
        else:
            self.recent |= 1 << -ahead
        self.newest_ms = max(self.newest_ms, sent_ms)
        return True


_RECENT = (1 << OVERTAKEN) - 1


class ProofCheck:
    """Checks proofs at the receiver. For one thread.

    Args:
        secret: the receiver's own.
        clock: the wall clock, in seconds.
        elapsed: a clock that nobody sets, in seconds.
    """

    def __init__(self, secret: str, clock: Clock = time.time, elapsed: Clock = time.monotonic) -> None:
        self._key = secret.encode()
        self._clock, self._elapsed = clock, elapsed
        self._started_s = elapsed()
        self._seen: dict[str, _Seen] = {}
        self._sweep_at = _SWEEP_EVERY

    def check(self, proof: str, claim: CallClaim) -> str:
        """The address that was called, which the receiver has to recognize as its own. Raises ProofError."""
        parts = proof.split(" ")
        if len(proof) > _MAX_PROOF_CHARACTERS or len(parts) != 6 or parts[0] != SCHEME:
            raise ProofError(f"{PROOF_KEY} is not a proof that this version of ais-loader can check")
        _, channel, number_text, sent_text, target, _ = parts
        try:
            number, sent_ms = int(number_text), int(sent_text)
        except ValueError:
            raise ProofError(f"{PROOF_KEY} is malformed") from None
        expected = _signed(self._key, claim, channel, number, sent_ms, target)
        if not hmac.compare_digest(expected.encode(), proof.encode()):
            raise ProofError(
                "the caller's peer secret is not this node's, or the call was changed on its way: peer_secret_file has "
                "to hold the same line on every node, and for operators' commands"
            )
        now_s = self._clock()
        now_ms = int(now_s * 1000)
        off_s = (sent_ms - now_ms) / 1000
        if abs(off_s) > MAX_SKEW_S:
            raise ProofError(
                f"the call is dated {abs(off_s):,.0f} s {'after' if off_s > 0 else 'before'} this node's clock, and at "
                f"most {MAX_SKEW_S:g} s are accepted: synchronize the clocks of the caller's machine and of this one"
            )
        started_ms = int((now_s - (self._elapsed() - self._started_s)) * 1000)
        if sent_ms + 1 < started_ms:  # both are rounded
            raise StaleProof("this node started after the call was made: make it again")
        if len(self._seen) >= self._sweep_at:
            self._sweep(now_ms)
        if not self._seen.setdefault(channel, _Seen()).take(number, sent_ms):
            raise ProofError("this very call was made before: it is not answered twice")
        return target

    def _sweep(self, now_ms: int) -> None:
        """Forget channels whose calls would all be refused for their time."""
        oldest_ms = now_ms - int(MAX_SKEW_S * 1000)
        self._seen = {channel: seen for channel, seen in self._seen.items() if seen.newest_ms >= oldest_ms}
        self._sweep_at = 2 * len(self._seen) + _SWEEP_EVERY


def _signed(key: bytes, claim: CallClaim, channel: str, number: int, sent_ms: int, target: str) -> str:
    head = f"{SCHEME} {channel} {number} {sent_ms} {target}"
    # No part holds a newline: metadata, methods and addresses are printable.
    signed = "\n".join((head, *claim))
    return f"{head} {hmac.digest(key, signed.encode(), _DIGEST).hex()}"
