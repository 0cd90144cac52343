"""What no request can carry, and no store can therefore hold: strings without a UTF-8 form."""

from __future__ import annotations

from ais_loader import errors


def require_text(text: str, refusal: type[errors.LoaderError], what: str) -> None:
    """Raises `refusal` for a lone surrogate, InvalidRequest for what is no string at all."""
    if not isinstance(text, str):
        raise errors.InvalidRequest(f"{what} {text!r}: need a str, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise refusal(f"{what} {text!r}: not valid Unicode (a lone surrogate has no UTF-8 form)") from None


def require_bucket(name: str) -> None:
    """For everything but making one. Raises BucketNotFound."""
    require_text(name, errors.BucketNotFound, "bucket name")


def require_object(bucket: str, name: str) -> None:
    """For everything but storing one. Raises BucketNotFound, ObjectNotFound."""
    require_bucket(bucket)
    require_text(name, errors.ObjectNotFound, "object name")
