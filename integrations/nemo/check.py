"""Check of manifests: finds what NeMo, reading with GetBatch, will lose, shorten or fail on.

Sizes come from archives' indexes and from `head_many`, and headers from one GetBatch per 1,000 recordings. Nothing is
decoded.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ais_loader import Client, errors
from ais_loader.values.urls import SCHEME, split_url

from .audio_headers import AudioHeader, HeaderAnswer, NoAudio, Sized, audio_headers
from .finding import ManifestFinding
from .manifests import Recording, expanded, recordings_of
from .prompts import ALTERNATIVES, LANGUAGE_FIELDS, bare_language

DURATION_TOLERANCE_S = 0.5
"""The value of Lhotse 1.33."""
_AT_ONCE = 1000
_SHARDS_KEPT = 8
"""How many shards' members are kept. Usually, the lines of one shard are adjacent."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """Properties that lines must have besides matching recordings."""

    fields: tuple[str, ...] = ()
    languages: frozenset[str] = frozenset()
    """The languages that a tokenizer knows. Empty if not specified."""
    language_field: str = "lang"
    tolerance_s: float = DURATION_TOLERANCE_S


@dataclass(frozen=True, slots=True)
class CheckedPart:
    recordings: int
    findings: list[ManifestFinding]


def check_manifests(
    client: Client, manifests: Sequence[str], tars: Sequence[str], needed: Requirements
) -> Iterator[CheckedPart]:
    """Yield findings, part by part. The arguments are those of `recordings_of`.

    Raises ManifestError, and the errors of the store, except for recordings that are missing or damaged.
    """
    sizes = _Sizes(client, expanded(tars))
    lines = recordings_of(manifests, tars, client)
    while part := list(itertools.islice(lines, _AT_ONCE)):
        recordings = [one for one in part if isinstance(one, Recording)]
        findings = [one for one in part if isinstance(one, ManifestFinding)]
        findings += _of_part(client, recordings, sizes, needed)
        yield CheckedPart(len(recordings), findings)


def _of_part(
    client: Client, recordings: list[Recording], sizes: _Sizes, needed: Requirements
) -> Iterator[ManifestFinding]:
    present: list[tuple[Recording, Sized]] = []
    for one, sized in zip(recordings, sizes.of(recordings), strict=True):
        yield from _of_fields(one, needed)
        if isinstance(sized, Sized):
            present.append((one, sized))
        else:
            yield one.finding("missing", f"{sized}: NeMo drops it with a warning")
    headers = audio_headers(client, [sized for _, sized in present])
    for (one, _), header in zip(present, headers, strict=True):
        yield from _of_header(one, header, needed.tolerance_s)


class _Sizes:
    """Sizes of recordings: of members from the archives' indexes, of objects from `head_many`."""

    def __init__(self, client: Client, shards: Sequence[str]) -> None:
        self._client = client
        self._shards = [entry for entry in map(_shard, shards) if entry is not None]
        self._members: OrderedDict[tuple[str, str], dict[str, Sized] | str] = OrderedDict()
        """Members of the shards used last, or the reason why there are none."""
        self._shard_with: dict[str, str] | None = None
        """URL of a shard by the name of a member. Built when the first member is missing."""

    def of(self, recordings: Sequence[Recording]) -> list[Sized | str]:
        """Return the size of each recording, or why it is missing."""
        answers: dict[int, Sized | str] = {}
        objects: dict[str, list[int]] = {}
        for n, one in enumerate(recordings):
            if one.entry.member is None:
                objects.setdefault(one.entry.bucket, []).append(n)
            else:
                answers[n] = self._member(one.entry.bucket, one.entry.name, one.entry.member)
        for bucket, numbers in objects.items():
            try:
                infos = self._client.bucket(bucket).head_many([recordings[n].entry.name for n in numbers])
            except errors.BucketNotFound as error:
                answers |= dict.fromkeys(numbers, str(error))
                continue
            for n, info in zip(numbers, infos, strict=True):
                if info is None:
                    answers[n] = f"{recordings[n].url} is not there"
                else:
                    answers[n] = Sized(replace(recordings[n].entry, version=info.version), info.size_bytes)
        return [answers[n] for n in range(len(recordings))]

    def _member(self, bucket: str, shard: str, name: str) -> Sized | str:
        members = self._of_shard(bucket, shard)
        if isinstance(members, str):
            return members
        if name in members:
            return members[name]
        missing = f"ais://{bucket}/{shard} has no member {name!r}"
        elsewhere = self._elsewhere(name)
        return f"{missing}, but {elsewhere} has: the line belongs to another shard's manifest" if elsewhere else missing

    def _of_shard(self, bucket: str, shard: str) -> dict[str, Sized] | str:
        key = bucket, shard
        if key not in self._members:
            self._members[key] = self._listed(bucket, shard)
            if len(self._members) > _SHARDS_KEPT:
                self._members.popitem(last=False)
        self._members.move_to_end(key)
        return self._members[key]

    def _listed(self, bucket: str, shard: str) -> dict[str, Sized] | str:
        try:
            members = self._client.bucket(bucket).members(shard)
            return {member.name: Sized(member.entry(), member.size_bytes) for member in members}
        except (errors.NotFound, errors.CorruptObject, errors.InvalidRequest) as error:
            return str(error)

    def _elsewhere(self, name: str) -> str | None:
        if self._shard_with is None:
            self._shard_with = {}
            for bucket, shard in self._shards:
                members = self._listed(bucket, shard)
                if isinstance(members, dict):
                    self._shard_with |= dict.fromkeys(members, f"ais://{bucket}/{shard}")
        return self._shard_with.get(name)


def _shard(url: str) -> tuple[str, str] | None:
    """Return bucket and name, or None for a local file."""
    return split_url(url) if url.startswith(SCHEME) else None


def _of_header(one: Recording, header: HeaderAnswer, tolerance_s: float) -> Iterator[ManifestFinding]:
    """Yield findings about a recording that exists."""
    if isinstance(header, errors.NotFound):
        yield one.finding("missing", f"{header}: NeMo drops it with a warning")
    elif isinstance(header, errors.LoaderError):
        yield one.finding("unreadable", f"{header}: NeMo drops it with a warning")
    elif isinstance(header, NoAudio):
        yield one.finding("unreadable", f"{one.url} is no audio ({header}): NeMo drops it with a warning")
    elif header.samples == 0:
        yield one.finding("empty", f"{one.url} holds no samples: NeMo drops it with a warning")
    elif header.rate_hz != one.rate_hz:
        yield one.finding("sampling-rate", _of_rate(one, header, tolerance_s))
    else:
        yield from _of_length(one, header, tolerance_s)


def _of_rate(one: Recording, header: AudioHeader, tolerance_s: float) -> str:
    announced = (
        f"the line says {one.rate_hz:,} Hz"
        if one.rate_said
        else f"the line does not say, which means {one.rate_hz:,} Hz to NeMo"
    )
    lost = _is_lost(header.samples, one.duration_s, one.rate_hz, tolerance_s)
    outcome = "drops it with a warning" if lost else "takes its samples for faster or slower ones"
    remedy = (
        "ShareGPT's adapter reads no sampling_rate: convert the recording"
        if one.fixed_rate
        else "give the line its sampling_rate"
    )
    return f"{one.url} has {header.rate_hz:,} Hz, and {announced}: NeMo {outcome}; {remedy}"


def _of_length(one: Recording, header: AudioHeader, tolerance_s: float) -> Iterator[ManifestFinding]:
    if one.offset_s > 0:
        # NeMo takes the recording to be as long as the line's part of it, and the part to begin within that.
        read_s = max(0.0, min(one.duration_s, one.duration_s - one.offset_s))
        yield one.finding(
            "offset",
            f"{one.url} from {one.offset_s:g} s: NeMo reads {read_s:g} s of the line's {one.duration_s:g} s with "
            "GetBatch, whatever the text says; cut it when the shard is made, or read this one with "
            "USE_AIS_GET_BATCH=false",
        )
    elif _is_lost(header.samples, one.duration_s, one.rate_hz, tolerance_s):
        yield one.finding(
            "duration",
            f"{one.url} lasts {header.duration_s:.3f} s, and the line says {one.duration_s:.3f} s: NeMo drops it with "
            "a warning",
        )


def _is_lost(samples: int, duration_s: float, rate_hz: int, tolerance_s: float) -> bool:
    """Return whether Lhotse rejects this number of samples for a recording of this duration."""
    return abs(round(duration_s * rate_hz) - samples) > math.ceil(tolerance_s * rate_hz)


def _of_fields(one: Recording, needed: Requirements) -> Iterator[ManifestFinding]:
    if one.is_turn:
        return
    for field in needed.fields:
        if one.fields.get(field) is None and one.fields.get(ALTERNATIVES.get(field, field)) is None:
            kind = "language" if field in LANGUAGE_FIELDS else "field"
            yield one.finding(kind, f"no {field}, which the prompt needs: NeMo stops with RuntimeError")
    if not needed.languages:
        return
    for field in dict.fromkeys((*(name for name in needed.fields if name in LANGUAGE_FIELDS), needed.language_field)):
        language = one.fields.get(field)
        if isinstance(language, str) and bare_language(language) not in needed.languages:
            known = ", ".join(sorted(needed.languages))
            yield one.finding("language", f"{field} is {language!r}, and the tokenizer knows {known}")
