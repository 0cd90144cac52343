"""Sample table of shards that WebDataset's URLs name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ais_loader import Client, MemberInfo, errors
from ais_loader.extras import needs
from ais_loader.objects.sample_table import LISTED_TOGETHER, Rename, SampleTable, Select, Shard
from ais_loader.values.urls import split_url

from .whole_shards import require_whole

with needs("webdataset", "samples of shards"):
    from webdataset import shardlists


def listed(
    client: Client,
    urls: Sequence[str],
    *,
    select: Select | None,
    rename: Rename | None,
    require_end: bool,
    timeout_s: float,
) -> SampleTable:
    """List the samples of these shards, in order. Reads only their indexes, a few at a time.

    Raises:
        InvalidRequest: A URL is not one of the store, or a sample has two members of the same field. The message names
            the shard.
        ObjectNotFound, BucketNotFound, ArchiveError, NodeUnavailable.
    """

    def members_of(url: str) -> tuple[Shard, list[MemberInfo]]:
        bucket_name, name = split_url(url)
        bucket = client.bucket(bucket_name)
        info = bucket.head(name)
        require_whole(client, info, timeout_s=timeout_s, require_end=require_end)
        shard = Shard(url, info.bucket, info.name, info.version)
        return shard, list(bucket.members(info.name, version=info.version))

    for url in urls:
        split_url(url)
    with ThreadPoolExecutor(LISTED_TOGETHER, "ais-loader index") as pool:
        return SampleTable(pool.map(members_of, urls), select=select, rename=rename)


def expanded(urls: str | Iterable[str]) -> list[str]:
    """Expand URLs as WebDataset does: with braces, joined by `::`, or one by one. Raises InvalidRequest."""
    listed = shardlists.expand_urls(urls) if isinstance(urls, str) else list(urls)
    if not listed:
        raise errors.InvalidRequest("no shards: give at least one URL like ais://bucket/shard.tar")
    return listed
