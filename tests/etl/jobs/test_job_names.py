"""Names of jobs: which objects are taken, what results are called, and when names collide or feed back."""

from __future__ import annotations

from typing import Any

import pytest

from ais_loader.errors import InvalidRequest
from ais_loader.wire.generated import ais_etl_pb2 as pb
from ais_loader.wire.job_names import JobNames, expand_template
from tests.table import table


def names_of(**fields: Any) -> JobNames:
    return JobNames(pb.TransformJob(**{"bucket": "a", "to_bucket": "b", **fields}))


def test_extensions_are_renamed_the_longest_first_and_nothing_else() -> None:
    names = names_of(extension={"flac": "wav", "gz": "bin", "tar.gz": "tar", "txt": ""})
    cases = {
        "x.flac": "x.wav",
        "d.flac/x": "d.flac/x",
        "x.tar.gz": "x.tar",
        "x.gz": "x.bin",
        "x.txt": "x",
        "x.FLAC": "x.FLAC",
        "flac": "flac",
        "a.flac.flac": "a.flac.wav",
    }
    assert {name: names.result_of(name) for name in cases} == cases


@pytest.mark.slow
def test_prefixes_are_taken_off_before_others_are_put_there() -> None:
    names = names_of(strip_prefix="raw/", to_prefix="wav/", extension={"flac": "wav"})
    assert names.result_of("raw/en/1.flac") == "wav/en/1.wav"
    assert names.result_of("other/1.flac") == "wav/other/1.wav"


def test_objects_are_taken_by_prefix_pattern_and_list_together() -> None:
    names = names_of(prefix="en/", pattern=["*.flac", "en/x/*.wav"])
    assert [name for name in ("en/1.flac", "de/1.flac", "en/1.wav", "en/x/1.wav") if names.takes(name)] == [
        "en/1.flac",
        "en/x/1.wav",
    ]
    assert [name for name in ("a", "b") if names_of(object=["b"]).takes(name)] == ["b"]


def test_of_sources_with_one_result_the_first_by_name_has_it() -> None:
    names = names_of(extension={"flac": "wav", "ogg": "wav"}, strip_prefix="raw/")
    taken = ["1.flac", "1.ogg", "1.wav", "raw/1.flac", "raw/1.ogg", "raw/1.wav"]
    assert {names.result_of(name) for name in taken} == {"1.wav"}
    assert {name: names.rivals(name) for name in taken} == {name: taken[:at] for at, name in enumerate(taken)}
    assert names.rivals("2.mp3") == []


def test_a_source_that_is_not_taken_is_nobodys_rival() -> None:
    assert names_of(extension={"flac": "wav"}, pattern=["*.wav"]).rivals("1.wav") == []
    assert names_of(extension={"flac": "wav"}, object=["1.flac", "1.wav"]).rivals("1.wav") == ["1.flac"]


SAME = {"bucket": "a", "to_bucket": "a"}


@table(
    "fields",
    [
        {"prefix": "raw/", "to_prefix": "wav/", "strip_prefix": "raw/"},
        {"pattern": ["*.flac"], "extension": {"flac": "wav"}},
        {"object": ["1.flac"], "extension": {"flac": "wav"}},
    ],
)
def test_a_bucket_may_be_passed_into_itself_where_no_result_is_a_source(fields: dict[str, Any]) -> None:
    names = names_of(**SAME, **fields)
    for name in ("raw/1.flac", "1.flac"):
        assert not (names.takes(name) and names.takes(names.result_of(name)))


@table(
    "fields",
    [
        {},
        {"prefix": "raw/", "to_prefix": "raw/wav/"},
        {"prefix": "raw/x/", "to_prefix": "raw/"},
        {"to_prefix": "wav/"},
        {"extension": {"flac": "wav"}},
        {"pattern": ["*.flac", "*.wav"], "extension": {"flac": "wav"}},
        {"pattern": ["*.fl*"], "extension": {"flac": "wav"}},
        {"object": ["1.flac", "1.wav"], "extension": {"flac": "wav"}},
        {"object": ["1.flac"]},
    ],
)
def test_a_bucket_may_not_be_passed_into_itself_where_a_result_could_be_a_source(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        names_of(**SAME, **fields)


@table("extension", [{".flac": "wav"}, {"": "wav"}, {"flac": ".wav"}, {"a/b": "c"}])
def test_extensions_have_no_dots_and_no_slashes(extension: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="extensions without dots"):
        names_of(extension=extension)


def test_a_list_of_names_is_bounded() -> None:
    with pytest.raises(InvalidRequest, match="256 KiB"):
        names_of(object=[f"{at:01000d}" for at in range(300)])


def test_templates_are_expanded_in_order() -> None:
    assert expand_template("s-{008..011}.tar") == ["s-008.tar", "s-009.tar", "s-010.tar", "s-011.tar"]
    assert expand_template("{a,b}/{1..2}") == ["a/1", "a/2", "b/1", "b/2"]
    assert expand_template("plain") == ["plain"]


@table("template", ["{", "}", "{}", "{1..}", "{2..1}", "{a..b}", "{{1..2}}", "{0..99999999}"])
def test_what_is_no_template_is_refused(template: str) -> None:
    with pytest.raises(InvalidRequest):
        expand_template(template)
