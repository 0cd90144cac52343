"""NeMo's manifests: the recordings that their lines name, and the properties that the lines state.

Lines are interpreted like NeMo 3.0.0 with USE_AIS_GET_BATCH=true: no shard is opened, `shard.tar/member` is the URL of
a recording, and its sampling rate and duration are those of the line.

Source: nemo_adapters.py and text_adapters.py in nemo/collections/common/data/lhotse.
"""

from __future__ import annotations

import gzip
import json
import math
import posixpath
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ais_loader import Client, Entry, errors
from ais_loader.extras import needs
from ais_loader.values.urls import SCHEME

from .finding import ManifestFinding

DEFAULT_RATE_HZ = 16_000
"""The sampling rate of a line that does not state one."""
_GZIP = b"\x1f\x8b"
_MANIFEST_NUMBER = re.compile(r"manifest[^/]*_(\d+)[^/]*\.json")
_TAR_NUMBER = re.compile(r"audio[^/]*_(\d+)[^/]*\.tar")
_PART_OF_MEMBER = re.compile(r"^(?P<stem>.+)-sub\d+(?P<extension>\.\w+)?$")
_OPENING = ("(", "[", "<", "_OP_")
_CLOSING = (")", "]", ">", "_CL_")


class ManifestError(Exception):
    """A manifest cannot be read, or manifests and shards do not match."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording named by a line, and the properties stated there."""

    manifest: str
    line: int
    """The line number, from 1."""
    url: str
    entry: Entry
    rate_hz: int
    rate_said: bool
    fixed_rate: bool
    """Whether NeMo uses DEFAULT_RATE_HZ regardless of the line."""
    duration_s: float
    offset_s: float
    fields: Mapping[str, Any]
    """All fields of the line, or none for a turn of a conversation."""
    is_turn: bool

    def finding(self, kind: str, message: str) -> ManifestFinding:
        return ManifestFinding(self.manifest, self.line, self.url, kind, message)


def recordings_of(
    manifests: Sequence[str], tars: Sequence[str], client: Client
) -> Iterator[Recording | ManifestFinding]:
    """Yield the remote recordings of all lines, in order, and findings about lines that are wrong in themselves.

    Args:
        manifests: Paths or ais:// URLs, with NeMo's ranges. They are read one after another.
        tars: The same as NeMo's tarred_audio_filepaths. Empty for manifests whose lines name whole files.

    Raises ManifestError, and the errors of the store or the file system.
    """
    paths = expanded(manifests)
    shards = _Shards(paths, expanded(tars))
    for path in paths:
        for number, line in _lines(path, client):
            try:
                yield from _of_line(path, number, line, shards)
            except _LineError as error:
                yield ManifestFinding(path, number, "", "line", str(error))


class _LineError(Exception):
    """A line is wrong."""


class _Shards:
    """Finds the shard that belongs to a manifest and a line."""

    def __init__(self, manifests: list[str], tars: list[str]) -> None:
        self.tarred = bool(tars)
        self._manifests = manifests
        self._tars = tars
        self._by_number = _by_number(_TAR_NUMBER, tars)
        manifest_numbers = _by_number(_MANIFEST_NUMBER, manifests)
        self._number_of = {path: number for number, path in manifest_numbers.items()}
        if not tars or len(manifests) == 1:
            return
        numbered = len(self._by_number) == len(tars) and len(manifest_numbers) == len(manifests)
        if numbered and set(manifest_numbers) != set(self._by_number):
            raise ManifestError(
                f"manifests have the numbers {sorted(manifest_numbers)}, shards {sorted(self._by_number)}: "
                "NeMo takes only those that are the same"
            )
        if not numbered and len(tars) != len(manifests):
            raise ManifestError(
                f"{len(manifests)} manifests and {len(tars)} shards, and not all have numbers by which they belong "
                "together: need names like manifest_0.json and audio_0.tar"
            )
        self._numbered = numbered

    def of(self, manifest: str, line: Mapping[str, Any], *, is_conversation: bool) -> str:
        if len(self._manifests) > 1:
            if self._numbered:
                return self._by_number[self._number_of[manifest]]
            return self._tars[self._manifests.index(manifest)]
        if is_conversation and len(self._tars) == 1:
            return self._tars[0]
        if "shard_id" not in line:
            raise _LineError("no shard_id, and the manifest is not one of several: NeMo stops with KeyError")
        try:
            return self._by_number[line["shard_id"]]
        except (KeyError, TypeError):
            raise _LineError(
                f"shard_id {line['shard_id']!r} is none of the shards {sorted(self._by_number)}: NeMo stops"
            ) from None


def _by_number(pattern: re.Pattern[str], paths: list[str]) -> dict[int, str]:
    return {int(match[1]): path for path in paths if (match := pattern.search(path))}


def expanded(patterns: Sequence[str]) -> list[str]:
    """Return the paths that NeMo's patterns stand for."""
    with needs("braceexpand", "ranges of manifests and shards"):
        from braceexpand import braceexpand
    paths: list[str] = []
    for pattern in patterns:
        for mark in _OPENING:
            pattern = pattern.replace(mark, "{")
        for mark in _CLOSING:
            pattern = pattern.replace(mark, "}")
        paths += braceexpand(pattern, escape=False)
    return paths


def _lines(path: str, client: Client) -> Iterator[tuple[int, Any]]:
    """Yield the JSON value of each line with its number. Raises ManifestError."""
    try:
        data = _whole(path, client)
    except errors.NotFound as error:
        raise ManifestError(f"{path}: {error}") from error
    if data.startswith(_GZIP):
        try:
            data = gzip.decompress(data)
        except (EOFError, zlib.error) as error:
            raise ManifestError(f"{path}: {error}") from error
    for number, text in enumerate(data.split(b"\n"), 1):
        if text.strip():
            try:
                yield number, json.loads(text)
            except ValueError as error:
                raise ManifestError(
                    f"{path}, line {number} is not JSON: {error}; NeMo's manifests are JSON lines"
                ) from error


def _whole(path: str, client: Client) -> bytes:
    if path.startswith(SCHEME):
        (data,) = client.get_batch([path]).tobytes()
        assert data is not None
        return data
    with open(path.removeprefix("file://"), "rb") as file:
        return file.read()


def _of_line(manifest: str, number: int, line: Any, shards: _Shards) -> Iterator[Recording]:
    """Yield the recordings of a line. Raises _LineError."""
    if not isinstance(line, dict):
        raise _LineError(f"a {type(line).__name__} where NeMo needs an object with fields")
    custom = line.get("custom")
    if line.get("_skipme") or (isinstance(custom, dict) and custom.get("_skipme")):
        return
    is_conversation = "conversations" in line
    named = list(_audio_turns(line) if is_conversation else [("audio_filepath", line)])
    for name_field, fields in named:
        name = fields.get(name_field)
        if not isinstance(name, str) or not name:
            raise _LineError(f"no {name_field}: NeMo stops with KeyError")
        duration_s = _number(fields, "duration")
        offset_s = _number(fields, "offset")
        if duration_s is None:
            raise _LineError(
                "no duration: NeMo passes the line over"
                if shards.tarred and not is_conversation
                else "no duration: NeMo stops with KeyError"
            )
        rate_hz = _number(fields, "sampling_rate")
        if rate_hz is None and not shards.tarred and not is_conversation:
            rate_hz = _number(fields, "sample_rate")
        url = _url(manifest, name, line, shards, is_conversation=is_conversation)
        if not url.startswith(SCHEME):
            continue  # a local file, or one of another store
        if rate_hz is None and not shards.tarred:
            raise _LineError(
                f"no sampling_rate: NeMo looks for a local file named {url} to learn it, and stops; "
                "in plain manifests each line needs one"
            )
        yield Recording(
            manifest,
            number,
            url,
            _entry(url),
            int(rate_hz or DEFAULT_RATE_HZ),
            rate_hz is not None,
            name_field == "sound",
            duration_s,
            offset_s or 0.0,
            {} if is_conversation else line,
            is_conversation,
        )


def _audio_turns(line: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the audio turns of NeMo's own conversations, and of ShareGPT's, whose turns have no sampling rate."""
    turns = line["conversations"]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise _LineError("conversations that are no list of turns: NeMo stops with TypeError")
    for turn in turns:
        if turn.get("type") == "audio":
            yield "value", turn
        elif "type" not in turn and any(mark in str(turn.get("value", "")) for mark in ("<sound>", "<speech>")):
            sound = line.get("sound") or line.get("ori_sound")
            yield "sound", {"sound": sound, "duration": turn.get("duration"), "offset": turn.get("offset")}


def _url(manifest: str, name: str, line: Mapping[str, Any], shards: _Shards, *, is_conversation: bool) -> str:
    if shards.tarred:
        if not is_conversation and (part := _PART_OF_MEMBER.match(name)):
            name = part["stem"] + (part["extension"] or "")
        return f"{shards.of(manifest, line, is_conversation=is_conversation).rstrip('/')}/{name.lstrip('/')}"
    if "://" in name or name.startswith("/"):
        return name
    return posixpath.join(posixpath.dirname(manifest), name)


def _entry(url: str) -> Entry:
    try:
        return Entry.from_url(url)
    except errors.InvalidRequest as error:
        raise _LineError(str(error)) from error


def _number(fields: Mapping[str, Any], field: str) -> float | None:
    value = fields.get(field)
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
    ):
        raise _LineError(f"{field} is {value!r}, not a number")
    return value
