"""Archives that real writers made, harmed in drawn ways: what the fuzzing of the member index feeds.

A harm is a list of steps, each a kind and four numbers, so that a failing one can be shrunk and written down. Steps go
into the file as it is stored, or into the tar inside before it is packed, where no checksum of the compression finds
them. Header checksums of tars can be made right again afterwards, and fields of a zip be changed in both places that
name them: otherwise the first check would find out most harms and the checks behind it would rest.
"""

from __future__ import annotations

import functools
import io
import struct
import tarfile
import zipfile
from collections.abc import Callable
from typing import NamedTuple

from hypothesis import strategies as st

from ais_loader.errors import LoaderError
from tests.store.archives.archive_kit import (
    PACKERS,
    WRITTEN_BY_BSDTAR,
    content,
    halves,
    in_zip,
    make_tar,
    zstd_frame,
)

BLOCK_BYTES = 512
_FILES = [
    ("a.wav", content(1, 700)),
    ("en/" + "n" * 120, b"text" * 300),
    ("empty", b""),
    ("grüße", content(2, 513)),
    ("a.wav", b"again"),
    ("last", b"x" * 5000),
]
_NUMBERS = (0, 1, 2, 127, 128, 255, 0x7FFF, 0xFFFF, 1 << 20, (1 << 31) - 1, (1 << 32) - 1, 1 << 40, (1 << 64) - 1)
_SIZES = (
    b"00000000000",
    b"00000000001",
    b"00000001000",
    b"77777777777",
    b"\x80" + b"\xff" * 11,
    b"\xff" * 12,
    b"           ",
    b"-0000000001",
    b"0x000000010",
    b"\x80" + bytes(7) + b"\0\0\x10\0",
)
_TYPES, _ODD_TYPES = b"0\x001234567", b"xgXLKSMVDN"
# Of a zip entry: where a field is in the directory and in the member's own header, and its length.
_ZIP_FIELDS = ((8, 6, 2), (10, 8, 2), (16, 14, 4), (20, 18, 4), (24, 22, 4), (28, 26, 2), (30, 28, 2))


class Step(NamedTuple):
    kind: str
    at: int
    length: int
    value: int
    where: int
    """A second place, or which of several fields."""


class Harm(NamedTuple):
    seed: str
    inside: list[Step]
    outside: list[Step]
    mended: bool
    """Whether checksums of tar headers are made right again."""


def _special_tar() -> bytes:
    """What datasets seldom have: links, directories, a long link, devices, global records."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", pax_headers={"comment": "of all"}, format=tarfile.PAX_FORMAT) as tar:
        for name, kind, link in (
            ("dir", tarfile.DIRTYPE, ""),
            ("a", tarfile.REGTYPE, ""),
            ("hard", tarfile.LNKTYPE, "a"),
            ("soft", tarfile.SYMTYPE, "l" * 200),
            ("fifo", tarfile.FIFOTYPE, ""),
            ("cont", tarfile.CONTTYPE, ""),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            data = content(len(name), 600) if kind in (tarfile.REGTYPE, tarfile.CONTTYPE) else b""
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


@functools.cache
def tars() -> dict[str, bytes]:
    made = {path.stem: path.read_bytes() for path in WRITTEN_BY_BSDTAR.glob("*.tar")}
    made |= {
        "python, ustar": make_tar([file for file in _FILES if len(file[0]) < 90], tarfile.USTAR_FORMAT),
        "python, gnu": make_tar(_FILES, tarfile.GNU_FORMAT),
        "python, pax": make_tar(_FILES, tarfile.PAX_FORMAT),
        "special": _special_tar(),
    }
    return made


@functools.cache
def zips() -> dict[str, bytes]:
    files = dict(_FILES)
    return {
        "zip, stored": in_zip(files, zipfile.ZIP_STORED),
        "zip, deflated": in_zip(files, zipfile.ZIP_DEFLATED),
        "zip, bsdtar": WRITTEN_BY_BSDTAR.joinpath("deflated.zip").read_bytes(),
    }


def comparable(harm: Harm) -> bool:
    """Whether the standard library should read it as we do, if both read it at all. Of several long names it takes the
    first, GNU tar and we the last; an entry of a type that it does not know is none of ours."""
    return not any(step.kind == "odd-type" for step in harm.inside)


def seeds() -> list[str]:
    return [*tars(), *zips(), *PACKERS]


def steps(kinds: str) -> st.SearchStrategy[list[Step]]:
    place = st.integers(0, 1 << 20)
    step = st.builds(Step, st.sampled_from(kinds.split()), place, st.integers(0, 3000), st.integers(1, 255), place)
    return st.lists(step, max_size=4)


HARMS = st.builds(
    Harm,
    st.sampled_from(seeds()),
    steps("flip number size type odd-type name cut delete double splice zeros"),
    steps("flip number cut delete double splice zeros field"),
    st.booleans(),
)


def harmed(harm: Harm) -> tuple[str, bytes]:
    """Name and bytes of the shard."""
    if harm.seed in zips():
        return "s.zip", _apply(zips()[harm.seed], harm.outside, in_zips=True)
    packer: tuple[str, Callable[[bytes], bytes]] = PACKERS.get(harm.seed, ("s.tar", bytes))
    tar = _apply(tars().get(harm.seed) or tars()["python, pax"], harm.inside)
    if harm.mended:
        tar = _with_right_checksums(tar)
    try:
        packed = packer[1](tar)
    except LoaderError:  # re-framing looks at the tar and refuses a harmed one
        packed = b"".join(map(zstd_frame, halves(tar)))
    return packer[0], packed if harm.seed in tars() else _apply(packed, harm.outside)


def _apply(data: bytes, harm: list[Step], *, in_zips: bool = False) -> bytes:
    for step in harm:
        if not data:
            break
        at, other = step.at % len(data), step.where % (len(data) + 1)
        piece = data[at : at + step.length]
        if step.kind == "flip":
            data = data[:at] + bytes([data[at] ^ step.value]) + data[at + 1 :]
        elif step.kind == "number":
            number, size = _NUMBERS[step.value % len(_NUMBERS)], (1, 2, 4, 8)[step.where % 4]
            data = _put(data, at, (number & ((1 << 8 * size) - 1)).to_bytes(size, "little"))
        elif step.kind in ("size", "type", "odd-type", "name"):
            data = _change_header(data, step)
        elif step.kind == "cut":
            data = data[:at]
        elif step.kind == "delete":
            data = data[:at] + data[at + step.length :]
        elif step.kind in ("double", "splice"):
            if step.kind == "splice":
                donor = list((zips() if in_zips else tars()).values())[step.value % len(zips() if in_zips else tars())]
                piece = donor[at % len(donor) :][: step.length]
            data = data[:other] + piece + data[other:]
        elif step.kind == "zeros":
            data = data[:at] + bytes(len(piece)) + data[at + len(piece) :]
        elif step.kind == "field" and in_zips:
            data = _change_zip_field(data, step)
    return data


def _put(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value[: max(0, len(data) - at)] + data[at + len(value) :]


def _headers(tar: bytes) -> list[int]:
    """Blocks that look like headers of a tar."""
    return [at for at in range(0, len(tar) - BLOCK_BYTES + 1, BLOCK_BYTES) if tar[at + 257 : at + 262] == b"ustar"]


def is_plain_speech(tar: bytes) -> bool:
    """Whether no header is one that `tarfile` reads otherwise than GNU tar and we do: with a long name of another size
    than its header says (it reads on to the end of the block), bytes in a GNU header where ustar has a prefix,
    or a hard link to a file without a name."""
    for at in _headers(tar):
        if tar[at + 156] in b"LK":
            size = tar[at + 124 : at + 136].strip(b" \0")
            name = tar[at + BLOCK_BYTES :].partition(b"\0")[0]
            if not size.isdigit() or int(size, 8) != len(name) + 1:
                return False
        if (tar[at + 262] and tar[at + 345]) or (tar[at + 156] == ord("1") and not tar[at + 157]):
            return False
    return True


def _change_header(tar: bytes, step: Step) -> bytes:
    headers = _headers(tar)
    if not headers:
        return tar
    at = headers[step.at % len(headers)]
    if step.kind == "size":
        return _put(tar, at + 124, _SIZES[step.value % len(_SIZES)])
    if step.kind != "name":
        types = _TYPES if step.kind == "type" else _ODD_TYPES
        return _put(tar, at + 156, types[step.value % len(types) :][:1])
    names = (b"/etc/passwd\0", b"../../up\0", b"\0", b"\xff\xfe\0", b"a.wav\0", b"dir/\0", b"new\nline\0")
    # The prefix, at 345, is a field of ustar; in GNU's headers other things lie there, which `tarfile` takes for it.
    fields = (0, 157, 345) if tar[at + 262] == 0 else (0, 157)
    return _put(tar, at + fields[step.where % len(fields)], names[step.value % len(names)])


def _with_right_checksums(tar: bytes) -> bytes:
    mended = bytearray(tar)
    for at in _headers(tar):
        block = mended[at : at + BLOCK_BYTES]
        mended[at + 148 : at + 156] = b"%06o\0 " % (sum(block[:148]) + sum(block[156:]) + 256)
    return bytes(mended)


def _change_zip_field(data: bytes, step: Step) -> bytes:
    """The same value in an entry of the directory and in the header that it leads to."""
    entries = [at for at in range(len(data) - 46) if data.startswith(b"PK\1\2", at)]
    if not entries:
        return data
    at = entries[step.at % len(entries)]
    (header_at,) = struct.unpack_from("<L", data, at + 42)
    in_directory, in_header, size = _ZIP_FIELDS[step.where % len(_ZIP_FIELDS)]
    value = (_NUMBERS[step.value % len(_NUMBERS)] & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    return _put(_put(data, at + in_directory, value), header_at + in_header, value)
