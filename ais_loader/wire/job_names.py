"""Names of a transform job: which objects it takes, and the names of their results.

Pure, and computed alike on every node and on clients, which show the names in advance.
"""

from __future__ import annotations

from collections.abc import Sequence

from ais_loader.errors import InvalidRequest
from ais_loader.name_matching import matcher
from ais_loader.wire.generated import ais_etl_pb2 as pb

MAX_NAMES_BYTES = 256 << 10
"""Limit for the names that a job lists, since they are part of the cluster's map."""
_OF_PATTERNS = "*?["


class JobNames:
    """The names of one job. Raises InvalidRequest if they make no sense."""

    def __init__(self, job: pb.TransformJob) -> None:
        self._prefix, self._strip, self._to = job.prefix, job.strip_prefix, job.to_prefix
        # Longest first: of "tar.gz" and "gz", the longer match counts.
        self._extensions = sorted(job.extension.items(), key=lambda pair: len(pair[0]), reverse=True)
        self._listed = frozenset(job.object)
        self._matches = matcher(job.pattern) if job.pattern else None
        for before, after in self._extensions:
            if not before or before.startswith(".") or after.startswith(".") or "/" in before + after:
                raise InvalidRequest(
                    f'rename {before!r} to {after!r}: need extensions without dots, as {{"flac": "wav"}}'
                )
        if sum(len(name.encode()) for name in job.object) > MAX_NAMES_BYTES:
            raise InvalidRequest(
                f"{len(job.object):,} names: a job lists {MAX_NAMES_BYTES >> 10} KiB of them at most, as they are part "
                "of the cluster's map; choose by prefix and pattern, or run several jobs"
            )
        if job.bucket == job.to_bucket:
            self._require_apart(job.pattern)
        self.renames = bool(self._extensions or self._strip)
        """Whether two sources may have results of the same name."""

    def takes(self, name: str) -> bool:
        """Return whether an object is one of the job's sources."""
        if self._listed and name not in self._listed:
            return False
        return name.startswith(self._prefix) and (self._matches is None or self._matches(name))

    def result_of(self, name: str) -> str:
        """Return the name of a source's result, which may not be a valid object name."""
        rest = name.removeprefix(self._strip)
        folder, slash, last = rest.rpartition("/")
        for before, after in self._extensions:
            if last.endswith("." + before):
                last = last[: -len(before)] + after if after else last[: -len(before) - 1]
                break
        return f"{self._to}{folder}{slash}{last}"

    def rivals(self, name: str) -> list[str]:
        """Return names before `name`, in order, that the job would take and whose result has the same name. The first
        one that exists gets the result; the others are refused."""
        if not self.renames:
            return []
        result = self.result_of(name)
        rest = result.removeprefix(self._to)
        rests = {rest}
        for before, after in self._extensions:
            if not after:
                rests.add(f"{rest}.{before}")
            elif rest.endswith("." + after):
                rests.add(rest[: -len(after)] + before)
        found = rests | {self._strip + one for one in rests}
        return sorted(one for one in found if one < name and self.takes(one) and self.result_of(one) == result)

    def _require_apart(self, patterns: Sequence[str]) -> None:
        """For a job within one bucket, check that no result is also a source."""
        if self._listed:
            if again := next((name for name in sorted(self._listed) if self.result_of(name) in self._listed), None):
                raise InvalidRequest(f"{again!r}: its result {self.result_of(again)!r} is one of the sources")
            return
        if self._results_begin_elsewhere() or self._results_end_otherwise(patterns):
            return
        raise InvalidRequest(
            "the results would become sources of the same job: pass another to_bucket, or a to_prefix that neither "
            "begins with `prefix` nor is the beginning of it, or patterns like *.flac whose extension is renamed"
        )

    def _results_begin_elsewhere(self) -> bool:
        # Sources begin with `prefix`; results are only known to begin with `to_prefix`.
        to, prefix = self._to, self._prefix
        return bool(to and prefix) and not to.startswith(prefix) and not prefix.startswith(to)

    def _results_end_otherwise(self, patterns: Sequence[str]) -> bool:
        ends = [one.rpartition(".")[2] for one in patterns]
        if not ends or any("." not in one for one in patterns) or any(set(end) & set(_OF_PATTERNS) for end in ends):
            return False
        renamed = dict(self._extensions)
        return all(renamed.get(end) for end in ends) and not any(
            after == end or after.endswith("." + end) for after in renamed.values() for end in ends
        )


def expand_template(template: str) -> list[str]:
    """Expand a template such as "shard-{000..127}.tar" or "{a,b}/{1..3}": ranges of numbers, padded like their first,
    and alternatives. Raises InvalidRequest."""
    opened = template.find("{")
    if opened < 0:
        if "}" in template:
            raise InvalidRequest(f"{template!r}: a brace that was not opened")
        return [template]
    closed = template.find("}", opened)
    inside = template[opened + 1 : closed]
    if closed < 0 or "{" in inside or not inside:
        raise InvalidRequest(f"{template!r}: need braces around a range, as {{000..127}}, or alternatives, as {{a,b}}")
    first, dots, last = inside.partition("..")
    if not dots:
        parts = inside.split(",")
    else:
        if not (first.isdecimal() and last.isdecimal()) or int(first) > int(last):
            raise InvalidRequest(f"{template!r}: need a range of numbers from low to high, as {{000..127}}")
        if int(last) - int(first) >= MAX_NAMES_BYTES:
            raise InvalidRequest(f"{template!r}: more names than a job may list; choose by prefix and pattern")
        parts = [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    rests = expand_template(template[closed + 1 :])
    if len(parts) * len(rests) > MAX_NAMES_BYTES:
        raise InvalidRequest(f"{template!r}: more names than a job may list; choose by prefix and pattern")
    return [f"{template[:opened]}{part}{rest}" for part in parts for rest in rests]
