"""Bodies of requests: decoded, compared with all that the client says of them, and kept until they are complete.

`spool` keeps a body, in memory or in a temporary file. Nothing is stored before all of it has
arrived and is what was announced.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence

from . import checksums
from .checksums import Hasher
from .post_form import PostForm
from .request import S3Error
from .signature import UNSIGNED, ChunkSigner, Signed
from .spool import BodyMemory, BodySpool

MAX_BYTES = 5 << 30
"""Largest body, as in S3. Larger objects are made of parts."""
STREAMING = "STREAMING-"
_SIGNED_KINDS = {"STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"}
_UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,16})(?:;chunk-signature=([0-9a-f]{64}))?\Z")
_MAX_LINE_BYTES = 1024
_MAX_TRAILERS_BYTES = 8192


class Body(BodySpool):
    """The bytes of a request, and their checksums. Use `feed` for what arrives, then `finish`; always `close`."""

    def __init__(
        self,
        headers: Mapping[str, str],
        signed: Signed,
        *,
        folder: str | None,
        most_bytes: int,
        memory: BodyMemory,
        is_checked: bool = True,
        form: PostForm | None = None,
    ) -> None:
        """
        Args:
            is_checked: Whether a checksum in the headers is that of the body.
            form: Decoder of a body that is a form, of which the file is kept.

        Raises S3Error for headers that contradict each other.
        """
        self.checksum: tuple[str, str] | None = None
        """The checksum that the client announced, and that the bytes have: its algorithm and value."""
        self._most_bytes = most_bytes
        self._md5 = hashlib.md5(usedforsecurity=False)
        md5 = headers.get("content-md5")
        self._want_md5 = checksums.decoded(md5, 16, "InvalidDigest") if md5 is not None else None
        self._sha256: Hasher | None = None
        self._want_sha256 = ""
        self._want_bytes: int | None = None
        self._announced = checksums.announced(headers) if is_checked else None
        self._hasher = checksums.hasher(self._announced[0]) if self._announced else None
        self.form = form
        self._decoder: _Chunked | PostForm | None = form
        if form is not None:
            form.on_file = self._announce
        payload = signed.payload
        if payload.startswith(STREAMING):
            self._begin_chunked(headers, signed)
        elif payload and payload != UNSIGNED:
            if not _SHA256.match(payload):
                raise S3Error("InvalidArgument", "x-amz-content-sha256: need a SHA-256 or one of S3's words")
            self._sha256, self._want_sha256 = hashlib.sha256(), payload
        announced = self._want_bytes if self._decoder is not None else int(headers.get("content-length", "0"))
        super().__init__(folder=folder, most_bytes=most_bytes, memory=memory, announced_bytes=announced)

    def _begin_chunked(self, headers: Mapping[str, str], signed: Signed) -> None:
        kind = signed.payload
        if kind != _UNSIGNED_TRAILER and kind not in _SIGNED_KINDS:
            raise S3Error("NotImplemented", f"x-amz-content-sha256: {kind[:80]!r}")
        length = headers.get("x-amz-decoded-content-length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 16):
            raise S3Error("MissingContentLength", "need x-amz-decoded-content-length")
        self._want_bytes = int(length)
        if self._want_bytes > self._most_bytes:
            raise S3Error("EntityTooLarge", f"the body has more than {self._most_bytes:,} bytes")
        trailer = ""
        if kind.endswith("-TRAILER"):
            trailer = headers.get("x-amz-trailer", "").strip().lower()
            if trailer and self._announced:
                raise S3Error("InvalidRequest", "need at most one checksum")
            if trailer:
                if not trailer.startswith(checksums.HEADER):
                    raise S3Error("InvalidRequest", "x-amz-trailer: need the name of one checksum")
                self._hasher = checksums.hasher(trailer.removeprefix(checksums.HEADER))
        signs = kind in _SIGNED_KINDS
        if signs and signed.chunks is None and signed.account is not None:
            raise S3Error("InvalidRequest", "chunks are signed, but the request is not")
        self._decoder = _Chunked(signed.chunks if signs else None, has_signatures=signs, trailer=trailer)

    def _announce(self, fields: Mapping[str, str]) -> None:
        """Take the checksum that the fields of a form announce, before its file."""
        self._announced = checksums.announced(fields)
        self._hasher = checksums.hasher(self._announced[0]) if self._announced else None

    @property
    def md5(self) -> str:
        return self._md5.hexdigest()

    def feed(self, pieces: Sequence[bytes]) -> None:
        """Take what arrived next. Raises S3Error."""
        if self._decoder is not None:
            pieces = [piece for data in pieces for piece in self._decoder.feed(data)]
        self.write(*pieces)
        if self._want_bytes is not None and self.size_bytes > self._want_bytes:
            raise S3Error("IncompleteBody", f"{self._want_bytes:,} bytes were announced, and more arrived")
        for hasher in (self._md5, self._sha256, self._hasher):
            if hasher is not None:
                for piece in pieces:
                    hasher.update(piece)

    def finish(self) -> None:
        """Compare the whole body with what was announced. Raises S3Error."""
        if self._decoder is not None:
            trailers = self._decoder.finish()
            self._announced = checksums.announced(trailers, "InvalidRequest") or self._announced
        if self._want_bytes is not None and self._want_bytes != self.size_bytes:
            raise S3Error("IncompleteBody", f"{self._want_bytes:,} bytes were announced, {self.size_bytes:,} arrived")
        if self._sha256 is not None and not _equal(self._sha256.digest().hex(), self._want_sha256):
            raise S3Error("XAmzContentSHA256Mismatch", "the body is not what x-amz-content-sha256 says")
        if self._want_md5 is not None and not _equal(self._md5.hexdigest(), self._want_md5.hex()):
            raise S3Error("BadDigest", "the body is not what Content-MD5 says")
        if self._announced is not None and self._hasher is not None:
            algorithm, value = self._announced
            if not _equal(checksums.encoded(self._hasher.digest()), value):
                raise S3Error("BadDigest", f"the body is not what {checksums.HEADER}{algorithm} says")
            self.checksum = self._announced


def _equal(made: str, given: str) -> bool:
    return hmac.compare_digest(made.encode(), given.encode("utf-8", "surrogatepass"))


class _Chunked:
    """Decoder of `aws-chunked` bodies: chunks with lengths and signatures, and trailers."""

    def __init__(self, signer: ChunkSigner | None, *, has_signatures: bool, trailer: str) -> None:
        self._signer = signer
        self._has_signatures = has_signatures
        self._trailer = trailer
        """Name of the trailer that was announced; "" for none."""
        self._rest = b""
        self._at = 0
        """Position in `_rest` of what has not been taken."""
        self._left = 0
        self._signature = ""
        self._hash = hashlib.sha256()
        self._state = "length"
        self._trailers: dict[str, str] = {}
        self._trailer_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bytes of chunks in `data`, without what frames them. Raises S3Error."""
        found: list[bytes] = []
        self._rest, self._at = self._rest + data if self._rest else data, 0
        while self._at < len(self._rest) and self._step(found):
            pass
        self._rest = self._rest[self._at :]
        return found

    def _step(self, found: list[bytes]) -> bool:
        """Take one part of what arrived. Return False if more has to arrive before."""
        if self._state == "data":
            piece = self._rest[self._at : self._at + self._left]
            self._at += len(piece)
            self._left -= len(piece)
            if self._signer is not None:
                self._hash.update(piece)
            found.append(piece)
            if not self._left:
                self._end_chunk()
                self._state = "end of chunk"
            return True
        if self._state == "done":
            raise _malformed("bytes follow the end")
        end = self._rest.find(b"\r\n", self._at, self._at + _MAX_LINE_BYTES + 2)
        if end < 0:
            if len(self._rest) - self._at > _MAX_LINE_BYTES:
                raise _malformed("a line is too long")
            return False
        line, self._at = self._rest[self._at : end], end + 2
        if self._state == "end of chunk":
            if line:
                raise _malformed("a chunk is longer than its length")
            self._state = "length"
        elif self._state == "length":
            self._begin_chunk(line)
        elif line:
            self._take_trailer(line)
        else:
            self._state = "done"
        return True

    def _begin_chunk(self, line: bytes) -> None:
        header = _CHUNK.match(line)
        if header is None or (header[2] is not None) != self._has_signatures:
            raise _malformed("a chunk's header is not valid")
        self._left, self._signature = int(header[1], 16), (header[2] or b"").decode()
        self._hash = hashlib.sha256()
        if self._left:
            self._state = "data"
        else:
            self._end_chunk()
            self._state = "trailers"

    def _end_chunk(self) -> None:
        if self._signer is not None:
            self._signer.check_chunk(self._hash.hexdigest(), self._signature)

    def _take_trailer(self, line: bytes) -> None:
        self._trailer_bytes += len(line)
        name, colon, value = line.decode("latin-1").partition(":")
        name = name.strip().lower()
        if not colon or self._trailer_bytes > _MAX_TRAILERS_BYTES or name in self._trailers:
            raise S3Error("MalformedTrailerError", "a trailer is not valid")
        self._trailers[name] = value.strip()

    def finish(self) -> dict[str, str]:
        """Return the trailers by names in lower case. Raises S3Error if the body ended early."""
        # A body without trailers may end with the last chunk's header: not all clients send the empty line.
        if self._state not in ("done", "trailers") or self._rest:
            raise S3Error("IncompleteBody", "the body ends in the middle of a chunk")
        signature = self._trailers.pop("x-amz-trailer-signature", None)
        if self._trailers.keys() - {self._trailer} or (self._trailer and self._trailer not in self._trailers):
            raise S3Error("MalformedTrailerError", "the trailers are not those that x-amz-trailer announces")
        if self._signer is not None and self._trailer:
            text = "".join(f"{name}:{value}\n" for name, value in sorted(self._trailers.items()))
            self._signer.check_trailer(hashlib.sha256(text.encode()).hexdigest(), signature or "")
        return self._trailers


def _malformed(why: str) -> S3Error:
    return S3Error("InvalidRequest", f"aws-chunked body: {why}")
