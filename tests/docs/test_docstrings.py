"""Public names against their documentation: each has a docstring of its own, or one of the class that it comes from."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from docs.build import API, public_names

OURS = ("ais_loader", "storage_node")
PUBLIC: dict[str, Any] = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in map(importlib.import_module, API)
    for name in public_names(module)
}


def undocumented(name: str, value: Any) -> Iterator[str]:
    """What of a public name says nothing of itself."""
    if not inspect.isclass(value):
        if not inspect.getdoc(value):
            yield name
        return
    # A data class without a docstring gets its signature for one.
    if not vars(value).get("__doc__") or value.__doc__.startswith(f"{value.__name__}("):
        yield name
    for member in {member for base in value.__mro__ if base.__module__.startswith(OURS) for member in vars(base)}:
        found = inspect.getattr_static(value, member)
        has_doc = inspect.isroutine(found) or isinstance(found, (property, staticmethod, classmethod))
        if not member.startswith("_") and has_doc and not inspect.getdoc(getattr(value, member)):
            yield f"{name}.{member}"


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_and_method_has_a_docstring(name: str) -> None:
    value = PUBLIC[name]
    if not inspect.isclass(value) and not inspect.isroutine(value) and not inspect.ismodule(value):
        value = type(value)
    assert not sorted(undocumented(name, value))


def test_a_method_without_a_docstring_is_noticed() -> None:
    class Quiet:
        __module__ = "ais_loader.quiet"

        def says_nothing(self) -> None: ...

    assert list(undocumented("Quiet", Quiet)) == ["Quiet", "Quiet.says_nothing"]
