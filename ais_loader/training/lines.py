"""Lines: a map-style dataset of the lines of text objects, such as JSON Lines, by number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from ais_loader.errors import InvalidRequest
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.objects.line_index import line_bounds
from ais_loader.objects.range_table import BoundsTable
from ais_loader.training.process_client import ClientOrUrl
from ais_loader.training.range_dataset import ItemDecoder, RangeDataset
from ais_loader.values.entry import EntryLike, Item, ObjectInfo

_COMPRESSED = (".gz", ".zst", ".lz4", ".bz2", ".xz")


class Lines(RangeDataset):
    """A map-style dataset of the lines in text objects, by number, for any sampler or plan.

    A sample is the bytes of a line without its line ending, or what `decode` makes of them. A line ends with a line
    feed, or a carriage return and a line feed; the last one of an object may have no ending. A line without any
    character is no sample and has no number. The lines of an object follow each other, object after object.

    A batch is one request, whatever objects its lines are in. Only those lines are read, and verified. Objects are read
    in the version that they had when the dataset was made: if one is replaced later, reading it raises ObjectNotFound.
    All else is as in a MapDataset, also `+` and `concat`.

    Where lines begin is found by reading an object once, and kept in the store for later datasets, with 4 bytes per
    line, until the object is replaced. It is kept if the store can be written to: through nodes, or a Client that may
    write. With the path of an embedded store it is not, and neither in remote buckets. A dataset takes 8 bytes of
    memory per line, which forked workers share.
    """

    _keeps_indexes = True

    def __init__(
        self,
        client_or_url: ClientOrUrl,
        entries: Iterable[EntryLike] | Bucket,
        decode: Callable[[bytes], Any] | None = None,
        *,
        bucket: str | None = None,
        timeout_s: float = 30.0,
        retry_s: float | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            client_or_url, bucket, timeout_s, retry_s, options: See MapDataset.
            entries: Whole objects, as in MapDataset, or the URL of a prefix.
            decode: A function from the bytes of a line to a sample, such as `json.loads`. It runs in the process that
                fetched the batch, and must be picklable if workers are spawned.

        Raises InvalidRequest for an object that is compressed, by its name, or that begins like an archive, Parquet or
        another format; ObjectNotFound, TypeError, and the errors of listing and reading.
        """

        def find(client: Client, objects: list[ObjectInfo]) -> tuple[BoundsTable, _Line]:
            for info in objects:
                if info.name.lower().endswith(_COMPRESSED):
                    raise InvalidRequest(f"{info.bucket}/{info.name}: compressed, so no line can be read by itself")
            return BoundsTable(objects, line_bounds(client, objects, timeout_s=timeout_s)), _Line(decode)

        super().__init__(client_or_url, entries, find, bucket=bucket, timeout_s=timeout_s, retry_s=retry_s, **options)

    def __repr__(self) -> str:
        return f"<Lines, {len(self):,} in all, {self._client!r}>"

    def _place(self, at: int) -> str:
        return f"{super()._place(at)}, line {cast(BoundsTable, self._entries).place_of(at)[1] + 1}"


class _Line(ItemDecoder):
    def read(self, item: Item) -> bytes:
        # Blank lines that follow are in the range too.
        return item.tobytes().partition(b"\n")[0].removesuffix(b"\r")
