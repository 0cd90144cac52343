"""The one error tree: what is drawn, what travels on the wire, and what nodes add to it."""

from __future__ import annotations

import builtins
import importlib
import pickle
import pkgutil
import re

import grpc

import storage_node
from ais_loader import errors
from ais_loader.errors import LoaderError
from storage_node.services.errors import _STATUS
from tests.table import table

BETWEEN_NODES = {"NewerFirst"}
"""Classes of a node's own that have a kind of their own: no client receives them."""
# What a node does not raise, or for what gRPC has no better status: clients go by the kind.
INTERNAL = """
    LoaderError NotFound ItemTooLarge
    ArchiveError ArchiveIndexError ArchiveIndexStale MediaError CopiesBusy
    SourceChanged PromoteIncomplete TransformError
    StoreError StoreNotFound StoreLocked StoreReadOnly StoreFormatError DriveFailed Closed
    EntryFailed NodeUntrusted
"""


def below(cls: type[LoaderError]) -> list[type[LoaderError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in below(child))]


def of(package: str) -> list[type[LoaderError]]:
    return [cls for cls in below(LoaderError) if cls.__module__.split(".")[0] == package]


TREE = [cls for cls in below(LoaderError) if cls.__module__ == errors.__name__]


def test_every_class_has_a_kind_of_its_own() -> None:
    assert all("kind" in vars(cls) for cls in TREE)
    assert len({cls.kind for cls in TREE}) == len(TREE)
    assert {cls.kind: cls for cls in TREE} == errors.BY_KIND


@table("cls", TREE, ids=lambda cls: cls.__name__)
def test_an_error_is_itself_after_pickling_and_after_the_wire(cls: type[LoaderError]) -> None:
    error = cls("what: 'happened'")
    for again in (pickle.loads(pickle.dumps(error)), errors.from_kind(error.kind, str(error))):
        assert type(again) is cls
        assert (str(again), again.args) == ("what: 'happened'", ("what: 'happened'",))


def test_the_drawing_shows_every_branch_with_what_it_is_besides() -> None:
    drawn: dict[str, str | None] = {}
    retryable = set()
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r" +[├└]── ((?:\w+(?:, )?)+)(?: \((\w+)\))? {2,}(.*)", line):
            names = found[1].split(", ")
            drawn |= dict.fromkeys(names, found[2])
            retryable |= {name for name in names if found[3].startswith("retryable")}
            examples = re.findall(r"\b[A-Z]\w+", found[3].partition(": ")[2])
            for name in set(examples):
                assert issubclass(getattr(errors, name), getattr(errors, names[0])), line
    branches = [cls for cls in TREE if LoaderError in cls.__bases__]
    assert set(drawn) == {cls.__name__ for cls in branches}
    for cls in branches:
        builtin = next((base.__name__ for base in cls.__bases__ if hasattr(builtins, base.__name__)), None)
        assert (drawn[cls.__name__], cls.__name__ in retryable) == (builtin, cls.retryable), cls


def test_every_class_has_a_grpc_status_or_is_internal_on_purpose() -> None:
    with_status = {cls.__name__ for cls in TREE if cls in _STATUS}
    assert sorted([*with_status, *INTERNAL.split()]) == sorted(cls.__name__ for cls in TREE)
    assert grpc.StatusCode.INTERNAL not in _STATUS.values()


def test_a_class_of_a_nodes_own_goes_to_clients_by_the_kind_of_its_parent() -> None:
    for module in pkgutil.walk_packages(storage_node.__path__, "storage_node."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    own = [cls for cls in of("storage_node") if cls.__name__ not in BETWEEN_NODES]
    assert own
    for cls in own:
        assert "kind" not in vars(cls), cls
        assert issubclass(cls, errors.BY_KIND[cls.kind]), cls
