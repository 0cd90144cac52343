"""Lane framing: the messages of a GetBatch session, or of calls, over a stream socket, each behind eight bytes.

gRPC in Python moves about a gigabyte a second whatever it carries; a plain socket moves several. A lane is such a
socket beside a gRPC connection. It carries the same messages, byte for byte, in the same order, and nothing else
changes:

    client                                        node
      OpenLane by gRPC, with all that authenticates it ->
                              <- where to connect, and a token that is good once
      greeting: "AISL", version, token ->
                              <- header of kind WELCOME, or FAILED and why
      header, SessionRequest ->   <- header, SessionResponse       both ways at once, any number

Or, where the offer names the method, calls instead of a session, one after another:

      CALL: the method ->
      MESSAGE ..., DATA ..., LAST ->            <- MESSAGE ...
                                                <- of a call with one answer: MESSAGE, or REFUSED, after LAST

The messages are those of the method. DATA is a PutRequest with nothing but these bytes as its data. A method with one
answer gives it after LAST, as a MESSAGE; a node that has made up its mind before says LAST instead. A method with many
answers gives each as a MESSAGE, at any time, never as LAST. A call of either that fails before the node has taken LAST
says FAILED instead of REFUSED. A node that is done before it has taken LAST ends the connection.

Between nodes it is the same: OpenLane is asked of the peer listener, which has checked who asks. Its token is good at
no other listener of the node, and its calls are served for as long as the caller is in the node's map. An empty MESSAGE
is no answer to such a call: it says that the node is alive, and works on it.

A header is the size of what follows and its kind, both little-endian uint32. Whoever is told what makes no sense ends
the connection. A node ends a session in good order between two messages; a client that ends the connection wants
nothing of what is still due.
"""

from __future__ import annotations

import struct
from typing import Final

MAGIC: Final = b"AISL"
VERSION: Final = 1
TOKEN_BYTES: Final = 16
GREETING = struct.Struct(f"<4sI{TOKEN_BYTES}s")
"""MAGIC, VERSION, token."""
HEADER = struct.Struct("<II")
"""Size in bytes of what follows, and its kind."""
MESSAGE: Final = 0
"""A SessionRequest or a SessionResponse; of a call, what its method takes or answers."""
WELCOME: Final = 1
"""Nothing follows: the token was good."""
FAILED: Final = 2
"""An Error (ais_objects.proto): why the node ends this connection."""
CALL: Final = 3
"""The name of the method of which a call begins."""
DATA: Final = 4
"""Bytes of an object."""
LAST: Final = 5
"""The last message of a call. If it is empty, it only says that there are no more."""
REFUSED: Final = 6
"""An Error: what has become of a call; the next one may begin."""
ERRORS: Final = FAILED, REFUSED
MAX_RESPONSE_BYTES: Final = 64 << 20
"""A node's frames are far smaller: a header that says more is none."""
MAX_PUT_MESSAGE_BYTES: Final = 64 << 10
"""Size of a PUT's messages before and after the bytes of its object, which have a name and metadata of a few KiB."""
