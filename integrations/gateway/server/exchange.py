"""Exchange: one request and its answer, as they are counted and logged."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

MALFORMED = "malformed"
"""Call of what is no request of HTTP."""
NO_CALL = "none"
"""Call of requests that were refused before it was known."""
ABORTED = "aborted"
"""Status of an exchange whose client, or whose answer, ended early."""


@dataclass(slots=True)
class Exchange:
    """One request and its answer."""

    client: str
    """Address of the client."""
    method: str
    path: str
    """Path and query as they were sent."""
    began_s: float
    request_id: str = field(default_factory=lambda: f"{random.getrandbits(64):016X}")
    """No secret, so that it takes no system call."""
    call: str = NO_CALL
    """Name of the call, once it is known."""
    access_key: str = ""
    """Access key, once its signature is verified."""
    status: str = ABORTED
    took_s: float = 0.0
    received_bytes: int = 0
    """Bytes of the body, as they arrived."""
    sent_bytes: int = 0
    """Bytes of the answer, with its headers."""
