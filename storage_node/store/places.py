"""Places in messages: absolute paths, numbers of processes, and addresses, which are not told to clients with tokens.

An error says what has happened to an object, and its text is also for the operator: it names drives, files and other
nodes. A client with a token learns what has happened, and the node's log has the rest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

_PATH = re.compile(r"(?<![\w/.:*-])/(?P<first>[^\s/'\"`:;,()<>\[\]]+)(?:/[^\s'\"`:;,()<>\[\]]*)?")
_ADDRESS = re.compile(r"(?<![\w/.@-])(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9A-Fa-f:]+\]):\d{1,5}\b")
_PROCESS = re.compile(r"\b(pid|process) \d+\b")


def without_places(text: str, endpoints: Iterable[str] = ()) -> str:
    """Return a message without paths of this machine, numbers of processes, and addresses of nodes.

    A name of an object may look like a path; it is one only if its first folder exists at the root of this machine.
    URLs, and so remote storage, stay.

    Args:
        endpoints: addresses of nodes with names, which no pattern finds.
    """
    for endpoint in endpoints:
        if endpoint:
            text = text.replace(endpoint, "a node")
    text = _PROCESS.sub(r"\1", _ADDRESS.sub("a node", text))
    return _PATH.sub(_replaced, text) if "/" in text else text


def _replaced(found: re.Match[str]) -> str:
    return "(path)" if os.path.lexists(f"/{found['first']}") else found[0]
