"""Public names against their documentation: each has a docstring of its own, or one of the class that it comes from."""

from __future__ import annotations

import importlib
import inspect
import pydoc
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any

import ais_loader
from ais_loader.wire.field_help import field_docs
from scripts.check_docstrings import wrong_openings
from tests.table import table

OURS = ("ais_loader", "storage_node")
API: dict[str, list[str]] = {
    "ais_loader": [],
    "ais_loader.errors": [],
    "ais_loader.objects.archive": ["BatchArchive"],
    "ais_loader.decoders": [],
    "ais_loader.values.entry_table": ["EntryTable"],
    "ais_loader.training.plan": ["Plan"],
    "ais_loader.values.summary": ["PrefixSummary"],
    "ais_loader.transport.base": ["BucketInfo"],
    "ais_loader.integrations.fsspec": [],
    "ais_loader.testing": [],
    "storage_node.settings.config": ["ServerConfig"],
    "storage_node.settings.declarations": [],
    "storage_node.server": ["NodeServer"],
    "storage_node.settings.sources": ["WrongSetting", "configured", "read_assignments", "read_file"],
}
"""Public modules, and the public names of those that list no names and have private classes."""


def public_names(module: ModuleType) -> list[str]:
    """Return the public names of a module; without a list of them, its own classes."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return API[module.__name__] or vars(module).get("__all__") or [name for name in own if name[0].isupper()]


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


@table("name", sorted(PUBLIC))
def test_every_public_name_and_method_has_a_docstring(name: str) -> None:
    value = PUBLIC[name]
    if not inspect.isclass(value) and not inspect.isroutine(value) and not inspect.ismodule(value):
        value = type(value)
    assert not sorted(undocumented(name, value))


DATA_CLASSES = [name for name, value in sorted(PUBLIC.items()) if inspect.isclass(value) and is_dataclass(value)]


@table("name", DATA_CLASSES)
def test_every_field_of_a_public_data_class_is_described(name: str) -> None:
    value = PUBLIC[name]
    doc, said = value.__doc__ or "", field_docs(value)
    plain = doc.partition("\nFields:\n")[0]
    for field in fields(value):
        if not field.name.startswith("_"):
            assert field.name in said or re.search(rf"\b{field.name}\b", plain), f"{name}.{field.name} is not described"


def test_help_describes_the_fields_of_a_data_class() -> None:
    shown = pydoc.plain(pydoc.render_doc(ais_loader.JobCounts))
    assert "transformed: int\n" in shown and "Sources whose results were stored." in shown
    assert "Fields:" in (ais_loader.Entry.__doc__ or "") and ais_loader.Entry("b", "n").name == "n"
    for name in DATA_CLASSES:
        if name.count(".") == 1 and name.startswith("ais_loader."):
            assert all(
                f"{field.name}: " in PUBLIC[name].__doc__ for field in fields(PUBLIC[name]) if field.name[0] != "_"
            )


def test_a_method_without_a_docstring_is_noticed() -> None:
    class Quiet:
        __module__ = "ais_loader.quiet"

        def says_nothing(self) -> None: ...

    assert list(undocumented("Quiet", Quiet)) == ["Quiet", "Quiet.says_nothing"]


def test_a_docstring_without_its_subject_is_found_where_it_stands() -> None:
    source = (
        '"""Stored bytes."""\nLIMIT = 1\n"""Of one page."""\ndef f():\n    """What is left."""\n    g("Of no one")\n'
    )
    assert [line.partition(" a docstring")[0] for line in wrong_openings("m.py", source)] == ["m.py:3:", "m.py:5:"]
