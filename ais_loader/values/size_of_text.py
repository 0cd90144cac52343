"""Size of text: parses sizes that users write, such as `10KiB` or `1.5TB`."""

from __future__ import annotations

import re

from ais_loader.errors import InvalidRequest

_UNITS = {"": 1, "b": 1} | {
    unit: base**power
    for power, letter in enumerate("kmgtp", 1)
    for unit, base in ((f"{letter}b", 1000), (f"{letter}ib", 1024))
}


def size_of_text(text: str) -> int:
    """Return the number of bytes of a size such as `10KiB`. Raises InvalidRequest."""
    found = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2].lower() not in _UNITS:
        raise InvalidRequest(f"{text!r} is no size: write it as 4096, 10KiB, 1.5MiB or 1GiB")
    number: str = found[1]
    unit: int = _UNITS[found[2].lower()]
    return round(float(number) * unit) if "." in number else int(number) * unit
