"""Command lines with placeholders: parsed, described, and filled with the arguments of a request.

    ffmpeg -v error -i {input} -ar {rate:int(8000,48000)=16000} -c:a {codec:flac|pcm_s16le} {output}.wav

{input} and {output} are files. {NAME:TYPE} is an argument, {NAME:TYPE=DEFAULT} one that may be left out:

    int, int(LOW,HIGH)          a whole number; without a range, it is not negative
    float, float(LOW,HIGH)      a number; without a range, it is not negative
    word                        a letter or a digit, followed by letters, digits, "_" and "-"; at most 64 characters
    A|B|C                       one of these

{args.NAME} and {args.NAME:DEFAULT} take any text. They are only for commands that clients write themselves: an operator
who lists a command gives each of its arguments a type. A placeholder is an argv word or a part of one, never more.

Everything here is pure. Workers import this module, so it imports little.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

FILES = ("input", "output")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_COMMAND_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_SUFFIX = re.compile(r"[A-Za-z0-9._-]{0,32}")
_SUFFIX_AT_END = re.compile(r"(\.[A-Za-z0-9]{1,16}){1,3}")
_RANGE = re.compile(r"(int|float)(?:\(([^,()]*),([^,()]*)\))?")
_MAX_INT = 2**63 - 1
_TYPES = "int, int(LOW,HIGH), float, float(LOW,HIGH), word, or choices as flac|wav"


class WrongCommand(ValueError):
    """A command line that cannot be parsed."""


class WrongArgument(ValueError):
    """An argument that is missing, unknown, or of another type."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a command. `str` is how an operator writes it, without braces."""

    name: str
    kind: str
    """"int", "float", "word", "choice" or "text"."""
    low: int | float = 0
    high: int | float = _MAX_INT
    choices: tuple[str, ...] = ()
    default: str | None = None

    def __str__(self) -> str:
        kind = self.kind
        if kind == "choice":
            kind = "|".join(self.choices)
        elif kind in ("int", "float") and (self.low, self.high) != _default_range(kind):
            kind += f"({self.low},{self.high})"
        return f"{self.name}:{kind}" + (f"={self.default}" if self.default is not None else "")

    def text(self, value: object) -> str:
        """Convert the value to the text of a word. Raises WrongArgument."""
        match self.kind:
            case "int" | "float":
                kinds = int if self.kind == "int" else (int, float)
                if isinstance(value, bool) or not isinstance(value, kinds) or not self.low <= value <= self.high:
                    raise WrongArgument(f"{self.name}={value!r}: need {self._needed()}")
                return str(value or abs(value))  # -0.0 would become a word that looks like an option
            case "word":
                if not isinstance(value, str) or not _WORD.fullmatch(value):
                    raise WrongArgument(
                        f"{self.name}={value!r}: need a word: a letter or a digit, then letters, digits, _ and -, "
                        "64 at most"
                    )
                return value
            case "choice":
                if not isinstance(value, str) or value not in self.choices:
                    raise WrongArgument(f"{self.name}={value!r}: need one of {', '.join(self.choices)}")
                return value
            case _:
                if not isinstance(value, str | int | float) or "\0" in str(value):
                    raise WrongArgument(f"{self.name!r}: need text or a number, got {type(value).__name__}")
                return str(value)

    def _needed(self) -> str:
        number = "a whole number" if self.kind == "int" else "a number"
        return f"{number}, {self.low} to {self.high}" if self.high < _MAX_INT else f"{number}, at least {self.low}"


class _File(NamedTuple):
    kind: str


_Part = str | Argument | _File


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The words of a command, each as its parts."""

    words: tuple[tuple[_Part, ...], ...]
    arguments: tuple[Argument, ...]
    """In the order of their first use."""
    suffixes: Mapping[str, str]
    """The suffix that the command line itself gives to {input} or {output}, as in "{output}.wav"."""

    @property
    def usage(self) -> str:
        """Description of the arguments, in an operator's notation."""
        return ", ".join(map(str, self.arguments)) or "no arguments"

    def uses(self, kind: str) -> bool:
        """Whether a word contains {input} or {output}."""
        return any(_File(kind) in parts for parts in self.words)

    def checked(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Return the arguments as text, including defaults. Raises WrongArgument."""
        known = {argument.name for argument in self.arguments}
        if unknown := sorted(set(given) - known):
            raise WrongArgument(f"this command takes no argument {unknown[0]!r}")
        texts = {}
        for argument in self.arguments:
            if argument.name in given:
                texts[argument.name] = argument.text(given[argument.name])
            elif argument.default is not None:
                texts[argument.name] = argument.default
            else:
                raise WrongArgument(f"{argument.name!r} is missing")
        return texts

    def fill(self, given: Mapping[str, Any], files: Mapping[str, str]) -> list[str]:
        """Return the words of one run.

        Args:
            given: the arguments, as JSON values.
            files: paths of {input} and {output}, without the suffixes that the command line gives them.

        Raises WrongArgument.
        """
        texts = self.checked(given)
        filled = []
        for number, parts in enumerate(self.words):
            argument = ""
            for part in parts:
                if isinstance(part, _File):
                    argument += files[part.kind]
                elif isinstance(part, Argument):
                    text = texts[part.name]
                    is_first = bool(number) and not argument
                    if (
                        part.kind == "text"
                        and is_first
                        and text.startswith("-")
                        and isinstance(given.get(part.name), str)
                    ):
                        raise WrongArgument(f"{part.name!r}: {text!r} would be taken for an option")
                    argument += text
                else:
                    argument += part
            filled.append(argument)
        return filled


def parse(words: Sequence[str], *, typed: bool = False) -> CommandLine:
    """Parse the words of a command.

    Args:
        typed: whether every argument needs a type, and the program must be fixed.

    Raises WrongCommand.
    """
    if not words or not words[0]:
        raise WrongCommand("a command without words")
    parsed, arguments, suffixes = [], dict[str, Argument](), dict[str, str]()
    for number, word in enumerate(words):
        if "\0" in word:
            raise WrongCommand(f"{word!r}: a word with a null character")
        parts: list[_Part] = []
        rest = word
        while rest:
            before, brace, after = rest.partition("{")
            if before:
                parts.append(before)
            if not brace:
                break
            slot, closed, rest = after.partition("}")
            if not closed:
                raise WrongCommand(f"{word!r}: a brace that is not closed")
            if slot in FILES:
                parts.append(_File(slot))
                suffix = rest if _SUFFIX_AT_END.fullmatch(rest) else ""
                if suffixes.setdefault(slot, suffix) != suffix:
                    raise WrongCommand(f"{{{slot}}} has two suffixes, {suffixes[slot]!r} and {suffix!r}: need one")
                continue
            argument = _argument(word, slot, typed=typed)
            if typed and not number:
                raise WrongCommand(f"{word!r}: the program itself takes no arguments")
            known = arguments.setdefault(argument.name, argument)
            if known != argument:
                raise WrongCommand(f"{argument.name!r} is declared twice, as {{{known}}} and as {{{argument}}}")
            parts.append(argument)
        parsed.append(tuple(parts))
    return CommandLine(tuple(parsed), tuple(arguments.values()), suffixes)


def parse_text(text: str) -> CommandLine:
    """Parse a command as an operator lists it, split into words as a shell would. Raises WrongCommand."""
    return parse(words_of(text), typed=True)


def words_of(text: str) -> list[str]:
    """Split a text into words as a shell would, without any other expansion. Raises WrongCommand."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise WrongCommand(f"{text!r}: {error}") from None


def check_commands(commands: Mapping[str, str]) -> None:
    """Check an operator's list of commands, by name. Raises WrongCommand with the name of the wrong one."""
    for name, text in commands.items():
        if not _COMMAND_NAME.fullmatch(name):
            raise WrongCommand(f"{name!r}: a name is letters, digits, _ and -, and begins with a letter or a digit")
        if not isinstance(text, str):
            raise WrongCommand(f"{name}: need the words of a command, got {text!r}")
        try:
            parse_text(text)
        except WrongCommand as error:
            raise WrongCommand(f"{name}: {error}") from None


def check_suffix(suffix: str) -> None:
    """Check that a client's suffix cannot lead to another folder. Raises WrongCommand."""
    if not _SUFFIX.fullmatch(suffix):
        raise WrongCommand(f"suffix {suffix!r}: need up to 32 letters, digits, '.', '_' and '-', as in .wav")


def _argument(word: str, slot: str, *, typed: bool) -> Argument:
    if slot.startswith("args."):
        name, colon, default = slot.removeprefix("args.").partition(":")
        if typed:
            raise WrongCommand(f"{word!r}: {{{slot}}} has no type: need {{NAME:TYPE}}, where TYPE is {_TYPES}")
        if not name:
            raise WrongCommand(f"{word!r}: {{{slot}}} has no name")
        return Argument(name, "text", default=default if colon else None)
    declared, equals, default = slot.partition("=")
    name, colon, kind = declared.partition(":")
    if not colon or not _NAME.fullmatch(name):
        untyped = "" if typed else "{args.NAME}, {args.NAME:DEFAULT}, "
        raise WrongCommand(f"{word!r}: {{{slot}}} is none of {{input}}, {{output}}, {untyped}{{NAME:TYPE}}")
    argument = _typed(word, name, kind)
    if not equals:
        return argument
    try:
        value: object = default
        if argument.kind in ("int", "float"):
            value = _number(default, argument.kind)
        return Argument(
            name, argument.kind, argument.low, argument.high, argument.choices, default=argument.text(value)
        )
    except ValueError:
        raise WrongCommand(f"{word!r}: {default!r} is no default of {{{argument}}}") from None


def _typed(word: str, name: str, kind: str) -> Argument:
    if kind == "word":
        return Argument(name, "word")
    if "|" in kind:
        choices = tuple(kind.split("|"))
        if not all(choices) or len(set(choices)) < len(choices):
            raise WrongCommand(f"{word!r}: {name} has a choice that is empty or given twice")
        return Argument(name, "choice", choices=choices)
    if (found := _RANGE.fullmatch(kind)) is not None:
        number = found[1]
        low, high = _default_range(number)
        if found[2] is not None:
            try:
                low, high = _number(found[2], number), _number(found[3], number)
            except ValueError:
                raise WrongCommand(f"{word!r}: {kind!r}: need two numbers, as in {number}(8000,48000)") from None
            if low > high:
                raise WrongCommand(f"{word!r}: {kind!r}: no number is at least {low} and at most {high}")
        return Argument(name, number, low, high)
    raise WrongCommand(f"{word!r}: {kind!r} is no type: need {_TYPES}")


def _default_range(kind: str) -> tuple[int | float, int | float]:
    return (0, _MAX_INT) if kind == "int" else (0.0, float(_MAX_INT))


def _number(text: str, kind: str) -> int | float:
    """Parse a finite number. Raises ValueError."""
    if kind == "int":
        return int(text)
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
