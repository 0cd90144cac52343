"""What nodes are asked: the services and methods of the generated descriptors."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from google.protobuf.descriptor import FileDescriptor, MethodDescriptor

from ais_loader.wire import generated


def files() -> Iterator[FileDescriptor]:
    for module in pkgutil.iter_modules(generated.__path__):
        if module.name.endswith("_pb2"):
            yield importlib.import_module(f"{generated.__name__}.{module.name}").DESCRIPTOR


def methods() -> dict[str, MethodDescriptor]:
    """By Service/Method."""
    return {
        f"{service.name}/{method.name}": method
        for file in files()
        for service in file.services_by_name.values()
        for method in service.methods
    }
