"""Fetch failures, as Lhotse's callers expect them.

Each error takes one string, because Lhotse re-raises errors as `type(error)(text)`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lhotse.ais.batch_loader import AISBatchLoaderError as LhotseLoaderError
from lhotse.audio.source import AudioSource
from lhotse.audio.utils import AudioLoadingError
from lhotse.features.io import FeaturesReader
from lhotse.features.io import register_reader as register_array_reader
from lhotse.image.io import ImageReader
from lhotse.image.io import register_reader as register_image_reader

from ais_loader import Status, errors


class FetchFailed(AudioLoadingError):  # type: ignore[misc]  # Lhotse is not type-checked here
    """One entry of a batch does not exist, or could not be read.

    It is a subclass of Lhotse's AudioLoadingError, so that code that tolerates a broken recording drops this cut.
    """


class AISBatchLoaderError(LhotseLoaderError, AudioLoadingError):  # type: ignore[misc]
    """A set of cuts cannot be loaded.

    With `strict`, the cause may be any entry. Otherwise, no cut is left, or a manifest is remote and of a kind that
    cannot be fetched.
    """


def reason(url: str, status: Status, error: errors.LoaderError | None) -> str:
    """Return one line about an entry: its URL, its status, and the reason."""
    return f"{url}: {status.name}: {error or 'it is empty'}"


@dataclass
class FailedSource(AudioSource):  # type: ignore[misc]
    """A source that was not fetched.

    `source` is b"", so that a tolerant caller sees data in memory. Loading it raises the reason.
    """

    why: str = ""

    def load_audio(self, *args: object, **kwargs: object) -> object:
        raise FetchFailed(self.why)

    def load_video(self, *args: object, **kwargs: object) -> object:
        raise FetchFailed(self.why)


class _FailedReader:
    """Reader of what was not fetched, whose key is the reason."""

    name = "memory_failed"

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def read(self, key: str, *args: object, **kwargs: object) -> object:
        raise FetchFailed(key)


@register_array_reader
class FailedArrayReader(_FailedReader, FeaturesReader):  # type: ignore[misc]
    """The reader of features and arrays that were not fetched."""


@register_image_reader
class FailedImageReader(_FailedReader, ImageReader):  # type: ignore[misc]
    """The reader of images that were not fetched."""
