"""Command lines with placeholders: what is parsed, what is refused, and what becomes of arguments."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies

from storage_node.settings.command_template import (
    WrongArgument,
    WrongCommand,
    check_commands,
    check_suffix,
    parse,
    parse_text,
)
from tests.table import table

FILES = {"input": "/run/input", "output": "/run/output"}
WAV = "ffmpeg -v error -i {input} -ar {rate:int(8000,48000)=16000} -c:a {codec:flac|-x} -x={tag:word} {output}.wav"


def test_a_placeholder_is_a_word_or_a_part_of_one() -> None:
    line = parse_text(WAV)
    assert line.usage == "rate:int(8000,48000)=16000, codec:flac|-x, tag:word"
    filled = line.fill({"codec": "flac", "tag": "a_1"}, FILES)
    wanted = "ffmpeg -v error -i /run/input -ar 16000 -c:a flac -x=a_1 /run/output.wav"
    assert filled == wanted.split()
    assert line.suffixes == {"input": "", "output": ".wav"} and line.uses("input") and line.uses("output")
    assert parse_text("'a b' 'c {x:word}'").fill({"x": "d"}, FILES) == ["a b", "c d"]
    assert parse_text("cat").usage == "no arguments" and not parse_text("cat").uses("input")


@table(
    ("kind", "good", "wrong"),
    [
        ("int", [0, 5, 2**62], [-1, 1.0, "5", True, None, 2**63, [1]]),
        ("int(-3,3)", [-3, 3], [-4, 4, 0.5]),
        ("float", [0, 0.5, 1e18], [-0.5, float("nan"), float("inf"), "1", True]),
        ("float(-1,1.5)", [-1, 1.5], [1.6, float("nan")]),
        ("a|-b|c d", ["a", "-b", "c d"], ["A", "", "c", "a|-b", 1, None]),
        (
            "word",
            ["a", "A-b_9", "9"],
            ["", "-a", "_a", ".", "..", "a/b", "/", "a.b", "a b", "a\n", "ä", "@a", 1, "a" * 65],
        ),
    ],
)
def test_an_argument_has_the_type_that_the_operator_gave_it(kind: str, good: list[Any], wrong: list[Any]) -> None:
    line = parse_text(f"p '{{x:{kind}}}'")
    for value in good:
        assert line.fill({"x": value}, FILES) == ["p", str(value)]
    for value in wrong:
        with pytest.raises(WrongArgument, match=r"^x="):
            line.fill({"x": value}, FILES)
    with pytest.raises(WrongArgument, match="'x' is missing"):
        line.fill({}, FILES)
    with pytest.raises(WrongArgument, match="this command takes no argument 'y'"):
        line.fill({"x": good[0], "y": 1}, FILES)


@given(strategies.text() | strategies.integers() | strategies.floats() | strategies.booleans())
def test_no_value_becomes_an_option_a_path_or_several_words(value: Any) -> None:
    line = parse_text("p {n:int=1} {f:float=1} {w:word=a}")
    for name in ("n", "f", "w"):
        try:
            words = line.fill({name: value}, FILES)
        except WrongArgument:
            continue
        assert len(words) == 4 and not any(word.startswith(("-", "/", "@", ".")) or "/" in word for word in words)


@table(
    ("text", "what"),
    [
        ("", "without words"),
        ("'a", "No closing quotation"),
        ("a {x", "not closed"),
        ("a {x}", r"\{x\} is none of \{input\}, \{output\}, \{NAME:TYPE\}"),
        ("a {args.x}", "has no type"),
        ("a {x:text}", "'text' is no type: need int"),
        ("a {x:}", "'' is no type"),
        ("a {:int}", "is none of"),
        ("a {x:int(5)}", "is no type"),
        ("a {x:int(5,a)}", "need two numbers"),
        ("a {x:float(0,inf)}", "need two numbers"),
        ("a {x:int(5,4)}", "at least 5 and at most 4"),
        ("a {x:b|}", "a choice that is empty"),
        ("a {x:b|b}", "given twice"),
        ("a {x:int=b}", "'b' is no default"),
        ("a {x:int(5,6)=7}", "'7' is no default"),
        ("a {x:word=-b}", "'-b' is no default"),
        ("a {x:int} {x:word}", "'x' is declared twice"),
        ("a {output}.wav {output}.flac", "two suffixes"),
        ("{x:word} a", "the program itself"),
    ],
)
def test_a_command_that_is_wrong_is_refused_when_it_is_listed(text: str, what: str) -> None:
    with pytest.raises(WrongCommand, match=what):
        parse_text(text)
    with pytest.raises(WrongCommand, match=r"^mine: "):
        check_commands({"mine": text})


def test_names_and_suffixes_lead_nowhere_else() -> None:
    for name in ("", "-a", "a b", "../a", "a.b"):
        with pytest.raises(WrongCommand, match="a name is"):
            check_commands({name: "cat"})
    for suffix in ("/x", "/../x", ".a/b", "a\0", "x" * 33):
        with pytest.raises(WrongCommand, match="suffix"):
            check_suffix(suffix)
    check_suffix(".tar.gz")


def test_a_command_of_a_client_takes_any_text_as_one_word_and_no_option() -> None:
    line = parse(["p", "{args.x}", "-{args.x}", "{args.y:-v}", "{n:int=3}"])
    assert line.fill({"x": "a b;$(c)"}, FILES) == ["p", "a b;$(c)", "-a b;$(c)", "-v", "3"]
    with pytest.raises(WrongArgument, match="would be taken for an option"):
        line.fill({"x": "-rf"}, FILES)
    with pytest.raises(WrongArgument, match="need text or a number"):
        line.fill({"x": ["a"]}, FILES)
