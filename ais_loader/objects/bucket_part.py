"""Part of Bucket: a group of its methods, each beside its implementation in the modules of `objects/`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ais_loader.transport.base import Transport


class BucketPart(ABC):
    """The base of all parts."""

    name: str

    @property
    @abstractmethod
    def _transport(self) -> Transport: ...
