"""Token windows: a map-style dataset of equally long ranges of arrays of tokens, as language models are trained on."""

from __future__ import annotations

import io
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs
from ais_loader.file_formats import HEAD_BYTES, format_of, is_text
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.objects.range_table import RangeTable, foreign, place, read_ranges
from ais_loader.training.process_client import ClientOrUrl
from ais_loader.training.range_dataset import ItemDecoder, RangeDataset
from ais_loader.values.entry import EntryLike, Item, ObjectInfo

_NPY, _LLM_C = "numpy", "llm.c"


class TokenWindows(RangeDataset):
    """A map-style dataset of the windows of `window` tokens in arrays, for any sampler or plan.

    A sample is a numpy array of shape (window,), in the machine's byte order, that nothing else refers to; with
    `as_tensor`, a torch tensor of int64. Windows begin at every `stride` tokens of each array and never extend over its
    end: tokens that are left over there are in no window. The windows of an array follow each other, array after array.

    A batch is one request, whatever arrays its windows are in. Only the windows' bytes are read, and verified. Arrays
    are read in the version that they had when the dataset was made: if one is replaced later, reading it raises
    ObjectNotFound. All else is as in a MapDataset, also `+` and `concat`.

    Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
    """

    def __init__(
        self,
        client_or_url: ClientOrUrl,
        entries: Iterable[EntryLike] | Bucket,
        window: int,
        *,
        dtype: npt.DTypeLike,
        stride: int | None = None,
        header_bytes: int | None = None,
        as_tensor: bool = False,
        transform: Callable[[Any], Any] | None = None,
        bucket: str | None = None,
        timeout_s: float = 30.0,
        retry_s: float | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            client_or_url, bucket, timeout_s, retry_s, options: See MapDataset.
            entries: Whole objects, as in MapDataset, or the URL of a prefix. The first 512 bytes of all objects are
                read with one request. An object in numpy's format is a one-dimensional array. Any other object is the
                array's bytes alone; one that begins like text, an archive or another known format is refused.
                `Bucket.entries(prefix, pattern="*.bin")` leaves out what is no array.
            window: The number of tokens in a sample.
            dtype: The integer type of the tokens, such as "uint16" or "<u4". That of a .npy file must be equal.
            stride: The number of tokens from one window to the next; `window` by default. For targets that are shifted
                by one: window=2049, stride=2048.
            header_bytes: The number of bytes before the tokens of an object that is not in numpy's format, such as 1024
                for files of llm.c.
            as_tensor: Whether a sample is a torch tensor of int64, which embeddings take, in place of the array.
            transform: A function from the array or tensor to a sample. It must be picklable if workers are spawned.

        Raises InvalidRequest for a window or stride below 1, a dtype that is not of integers, and an object that is no
        array of them, which the message names; ObjectNotFound, TypeError, and the errors of listing and reading.
        """
        stored = token_type(dtype)
        header = None if header_bytes is None else count_of("header_bytes", header_bytes, 0)
        size, step = count_of("window", window), count_of("stride", window if stride is None else stride)

        def find(client: Client, objects: list[ObjectInfo]) -> tuple[_WindowTable, Tokens]:
            arrays = _arrays(client, objects, stored, header, timeout_s)
            table = _WindowTable(objects, arrays, size, step, stored.itemsize)
            return table, Tokens(stored, as_tensor=as_tensor)

        super().__init__(
            client_or_url,
            entries,
            find,
            bucket=bucket,
            transform=transform,
            timeout_s=timeout_s,
            retry_s=retry_s,
            **options,
        )
        self.window, self.stride, self.dtype = size, step, stored.newbyteorder("=")

    def __repr__(self) -> str:
        return f"<TokenWindows of {len(self):,} windows of {self.window:,} {self.dtype.name} tokens, {self._client!r}>"


class _Array(NamedTuple):
    start_bytes: int
    """Where the tokens begin in the object."""
    tokens: int


class _WindowTable(RangeTable):
    def __init__(
        self, objects: Sequence[ObjectInfo], arrays: Sequence[_Array], window: int, stride: int, item_bytes: int
    ) -> None:
        super().__init__(objects, (max(0, (array.tokens - window) // stride + 1) for array in arrays))
        self._starts: npt.NDArray[np.int64] = np.fromiter(
            (array.start_bytes for array in arrays), np.int64, len(arrays)
        )
        self._window_bytes, self._stride_bytes = window * item_bytes, stride * item_bytes

    def range_of(self, number: int, within: int) -> tuple[int, int]:
        return self._starts.item(number) + within * self._stride_bytes, self._window_bytes

    def columns(self) -> Iterable[npt.NDArray[np.integer[Any]]]:
        return self._stops, self._starts, np.array([self._window_bytes, self._stride_bytes])


class Tokens(ItemDecoder):
    """Decoder of tokens. It copies the bytes, so that the sample keeps no frame in memory."""

    def __init__(self, stored: np.dtype[Any], *, as_tensor: bool) -> None:
        super().__init__()
        self._stored, self._as_tensor = stored, as_tensor

    def read(self, item: Item) -> Any:
        tokens = np.frombuffer(item.data, self._stored)
        if not self._as_tensor:
            return tokens.astype(self._stored.newbyteorder("="))
        with needs("torch", "as_tensor=True"):
            import torch
        return torch.from_numpy(tokens.astype(np.int64))


def token_type(dtype: npt.DTypeLike) -> np.dtype[Any]:
    try:
        found = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"dtype={dtype!r}: {error}") from None
    if dtype is None or found.kind not in "iu":
        raise InvalidRequest(f"dtype={dtype!r}: need an integer type for tokens, such as 'uint16'")
    return found


def count_of(name: str, value: Any, least: int = 1) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is a {type(value).__name__}; need an int") from None
    if isinstance(value, bool) or number < least:
        raise InvalidRequest(f"{name}={value!r}: need at least {least}")
    return number


def _arrays(
    client: Client, objects: Sequence[ObjectInfo], stored: np.dtype[Any], header_bytes: int | None, timeout_s: float
) -> list[_Array]:
    arrays = []
    for info, (head, begin) in zip(objects, _heads(client, objects, header_bytes, timeout_s), strict=True):
        found = format_of(head)
        if found == _NPY or info.name.lower().endswith(".npy"):
            arrays.append(_npy_array(info, head, stored))
            continue
        if found == _LLM_C:
            found = "a file of llm.c (header_bytes=1024)" if header_bytes is None else None
        elif stored.itemsize > 1 and is_text(head) and is_text(begin):  # bytes of text may be tokens
            found = "text"
        if info.name.lower().endswith(".npz"):
            raise InvalidRequest(f"{place(info)}: an .npz file is an archive of arrays; store each as an .npy file")
        if found is not None:
            raise foreign(objects, info, found, f"an array of {stored.name} tokens", "*.bin")
        arrays.append(_raw_array(info, stored, header_bytes or 0))
    return arrays


def _heads(
    client: Client, objects: Sequence[ObjectInfo], header_bytes: int | None, timeout_s: float
) -> Iterator[tuple[bytes, bytes]]:
    """Return the first bytes of each object, and the first ones of its tokens, fetched with one request."""
    starts = [
        (info, min(start, info.size_bytes)) for info in objects for start in (0, header_bytes) if start is not None
    ]
    ranges = [(info, start, min(HEAD_BYTES, info.size_bytes - start)) for info, start in starts]
    found = read_ranges(client, ranges, timeout_s)
    return zip(found[::2], found[1::2], strict=True) if header_bytes is not None else zip(found, found, strict=True)


def _raw_array(info: ObjectInfo, stored: np.dtype[Any], header_bytes: int) -> _Array:
    tokens, rest = divmod(info.size_bytes - header_bytes, stored.itemsize)
    if rest or tokens < 0:
        behind = f" behind a header of {header_bytes:,}" if header_bytes else ""
        raise InvalidRequest(
            f"{place(info)}: its {info.size_bytes:,} bytes{behind} are no multiple of the {stored.itemsize} bytes of "
            f"a {stored.name} token"
        )
    return _Array(header_bytes, tokens)


def _npy_array(info: ObjectInfo, head: bytes, stored: np.dtype[Any]) -> _Array:
    """Parse the header of an .npy file. Raises InvalidRequest unless it is a one-dimensional array of this type."""
    file = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, is_fortran, found = np.lib.format.read_array_header_1_0(file)
        elif version in ((2, 0), (3, 0)):  # 3.0 differs in the encoding of field names, which tokens do not have
            shape, is_fortran, found = np.lib.format.read_array_header_2_0(file)
        else:
            raise ValueError(f"format {version[0]}.{version[1]}, which arrays of integers do not need")
    except ValueError as error:
        raise InvalidRequest(f"{place(info)}: not an .npy file with a header that can be read: {error}") from None
    if is_fortran:
        raise InvalidRequest(f"{place(info)}: in Fortran order; store it in C order, and with one dimension")
    if len(shape) != 1:
        raise InvalidRequest(f"{place(info)}: an array of shape {shape}; need one dimension, the tokens")
    if found != stored:
        raise InvalidRequest(f"{place(info)}: an array of {found.str}; need dtype={stored.str!r}")
    start_bytes, tokens = file.tell(), int(shape[0])
    if start_bytes + tokens * stored.itemsize != info.size_bytes:
        raise InvalidRequest(
            f"{place(info)}: {info.size_bytes:,} bytes; its header says {start_bytes:,} and {tokens:,} tokens of "
            f"{stored.itemsize} bytes"
        )
    return _Array(start_bytes, tokens)
