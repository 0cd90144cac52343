"""Short tracebacks: an error that leaves the library shows the caller's frames and the entry point, not every layer.

An error from a cluster crosses a dozen frames of routing, retries and gRPC, and used to print all of them, twice where
one error was raised from another. They are removed where a call enters the library. What caused the error stays
available as `LoaderError.cause`. With AIS_LOADER_DEBUG=1, tracebacks are complete.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Generator
from types import FunctionType, GeneratorType
from typing import Any, ParamSpec, TypeVar

from ais_loader.errors import LoaderError

DEBUG_VARIABLE = "AIS_LOADER_DEBUG"
_P = ParamSpec("_P")
_R = TypeVar("_R")
_C = TypeVar("_C", bound=type)


def shortened(error: LoaderError) -> LoaderError:
    """Return `error` without its traceback and without the errors that led to it, which become its `cause`.

    Call this after the `except` block has ended. If the caller was handling an exception, raising `error` then makes it
    the context, as for any other error.
    """
    if os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"):
        return error
    cause = error.__cause__
    if cause is None and error.__context__ is not sys.exception():
        cause = error.__context__
    if cause is not None:
        error.cause = cause
    error.__cause__ = error.__context__ = None
    error.__suppress_context__ = False
    return error.with_traceback(None)


def short_traceback(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Shorten the errors raised by `function`, or by the generator that it returns."""

    @functools.wraps(function)
    def entered(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            result = function(*args, **kwargs)
        except LoaderError as error:
            failure = error
        else:
            return iterated(result) if type(result) is GeneratorType else result  # type: ignore[return-value, arg-type]
        try:
            raise shortened(failure)
        finally:
            del failure  # the traceback refers to this frame: a cycle would keep a gRPC call alive during a fork

    return entered


def short_tracebacks(cls: _C) -> _C:
    """Class decorator: `short_traceback` for every public method that the class itself defines."""
    for name, method in list(vars(cls).items()):
        if not name.startswith("_") and isinstance(method, FunctionType):
            setattr(cls, name, short_traceback(method))
    return cls


def iterated(results: Generator[Any, Any, _R]) -> Generator[Any, Any, _R]:
    """Yield what a generator yields; its errors are shortened."""
    try:
        return (yield from results)
    except LoaderError as error:
        failure = error
    try:
        raise shortened(failure)
    finally:
        del failure
