"""Environment of a node on demand: its credentials and places, which are those of the process that started it.

The address of the node has a digest of each such variable, so that another process can tell whether its own differ. The
digests have a key of their own for each node: nobody can look a value up in a table, or compare two nodes.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping

_VARIABLE = re.compile("(AIS(?!_LOADER_)|AWS|AZURE|GOOGLE)_.*|(HTTPS?|ALL|NO)_PROXY", re.IGNORECASE)
_KEY = ""
"""Name of the key among the digests; no variable has an empty name."""


def environment_digests(key: bytes | None = None) -> dict[str, str]:
    """Return the digests of this process's variables by name, and their key in hexadecimal."""
    key = key or os.urandom(16)
    digests = {
        name: hashlib.blake2b(value.encode(errors="surrogateescape"), digest_size=16, key=key).hexdigest()
        for name, value in os.environ.items()
        if _VARIABLE.fullmatch(name)
    }
    return {_KEY: key.hex(), **digests}


def other_variables(digests: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that this process has, and the node has not, or with another value.

    What only the node has is no difference: a process without credentials may use those of another one.
    """
    if not digests:
        return []
    own = environment_digests(bytes.fromhex(digests[_KEY]))
    return sorted(name for name, digest in own.items() if digests.get(name) != digest)
