"""Checks that one client makes of the gateway: a line for each, and what all clients store. The standard library alone.

A program is run as `python NAME.py ENDPOINT`, with the access key in the environment variables of AWS.
"""

from __future__ import annotations

import os
import random
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

MIB = 1 << 20
ACCESS_KEY, SECRET_KEY = os.environ.get("AWS_ACCESS_KEY_ID", ""), os.environ.get("AWS_SECRET_ACCESS_KEY", "")
REGION = "us-east-1"
_ODD_KEYS = ("odd/a b.bin", "odd/é.bin", "odd/a+b.bin", "odd/a=b&c.bin")
_failed = 0


def endpoint() -> str:
    """Return the gateway's URL."""
    return sys.argv[1]


def bucket_name() -> str:
    """Return a name that no other program uses."""
    return f"{os.path.basename(sys.argv[0]).removesuffix('.py').replace('_', '-')}-{os.getpid()}"


def objects(count: int = 200) -> dict[str, bytes]:
    """Return bytes by key, the same in every run: small and larger ones, in folders, some with odd keys."""
    draw = random.Random(7)
    keys = [*_ODD_KEYS, *(f"d{number % 5}/{number:03d}.bin" for number in range(count - len(_ODD_KEYS)))]
    return {key: draw.randbytes(draw.choice((0, 1, 100, 4096, 20_000))) for key in keys}


def large(size_bytes: int = 17 * MIB + 5) -> bytes:
    """Return bytes of an object that clients upload in parts."""
    return random.Random(8).randbytes(size_bytes)


@contextmanager
def check(name: str) -> Iterator[None]:
    """Print whether the body of the `with` statement went through."""
    global _failed
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever a client raises is the result
        _failed += 1
        traceback.print_exc()
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"FAILED {name} {reason[:300]}", flush=True)
    else:
        print(f"ok {name}", flush=True)


def equal(found: object, expected: object) -> None:
    """Raises AssertionError unless both are equal, without showing long values."""
    if found != expected:
        raise AssertionError(f"found {repr(found)[:120]}, expected {repr(expected)[:120]}")


def end() -> None:
    """End the program. Its status tells whether a check failed."""
    sys.exit(1 if _failed else 0)
