"""Failures of fetching, as Lhotse's callers expect them: each takes one string, since Lhotse raises `type(error)(text)`
anew."""

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
    """One entry of a batch is not there, or could not be read. A kind of Lhotse's AudioLoadingError, so that whatever
    tolerates a broken recording drops this cut."""


class AISBatchLoaderError(LhotseLoaderError, AudioLoadingError):  # type: ignore[misc]
    """A set of cuts cannot be loaded: with `strict` because of any entry, and otherwise because nothing is left of it,
    or because a manifest is remote and of a kind that cannot be fetched."""


def reason(url: str, status: Status, error: errors.LoaderError | None) -> str:
    """One line on one entry: where, how it went, and why."""
    return f"{url}: {status.name}: {error or 'it is empty'}"


@dataclass
class FailedSource(AudioSource):  # type: ignore[misc]
    """A source that was not fetched: `source` is b"", so that a tolerant caller sees data in memory, and loading it
    raises why."""

    why: str = ""

    def load_audio(self, *args: object, **kwargs: object) -> object:
        raise FetchFailed(self.why)

    def load_video(self, *args: object, **kwargs: object) -> object:
        raise FetchFailed(self.why)


@register_array_reader
class FailedArrayReader(FeaturesReader):  # type: ignore[misc]
    """Of features and arrays that were not fetched: their key is why."""

    name = "memory_failed"

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def read(self, key: str, *args: object, **kwargs: object) -> object:
        raise FetchFailed(key)


@register_image_reader
class FailedImageReader(ImageReader):  # type: ignore[misc]
    """Of images that were not fetched."""

    name = FailedArrayReader.name

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def read(self, key: str, *args: object, **kwargs: object) -> object:
        raise FetchFailed(key)
