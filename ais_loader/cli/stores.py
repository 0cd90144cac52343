"""Store options of commands: --store and --retry, and how the store is opened."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import click

from ais_loader.client import URL_VARIABLE, Client, connect
from ais_loader.errors import InvalidRequest, StoreLocked, StoreNotFound
from ais_loader.options import ClusterOptions
from ais_loader.urls import store_folders

_GRPC = "grpc://"


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """What --store and --retry said."""

    url: str
    retry_s: float

    def reading(self) -> Client:
        """A client that only reads: a store of this machine is not locked, and may be written to meanwhile."""
        return self._connect("r")

    def writing(self, *, create: bool) -> Client:
        """A client that writes; a store of this machine that does not exist is made only with `create`."""
        if not create and not self.url.startswith(_GRPC):
            self.reading().close()  # mode "a" would make a store wherever a path was mistyped
        else:
            from ais_loader.cli.new_stores import tell_of_new_stores

            tell_of_new_stores()
        return self._connect("a")

    def _connect(self, mode: Literal["a", "r"]) -> Client:
        try:
            options = ClusterOptions(retry_s=self.retry_s) if self.url.startswith(_GRPC) else None
            return connect(self.url, mode=mode, options=options)
        except StoreNotFound:
            hint = "look at the path, or `ais-loader bucket create` makes one"
            raise StoreNotFound(f"no store at {self.url}; {hint}") from None
        except StoreLocked as error:
            who = str(error).partition(";")[0]  # what follows is advice for Python
            raise StoreLocked(f"{who}; if that is a node, use it: --store grpc://HOST:PORT") from error
        except InvalidRequest as error:
            raise _wrong_store(error) from error

    def folders(self) -> list[str]:
        """The folders of a store of this machine; none for a node."""
        if self.url.startswith(_GRPC):
            return []
        try:
            return store_folders(self.url)
        except InvalidRequest as error:
            raise _wrong_store(error) from error


def _wrong_store(error: InvalidRequest) -> click.BadParameter:
    return click.BadParameter(str(error), param_hint="'--store'")


def _choose(store: str | None, retry: float) -> StoreChoice:
    if not store:
        raise click.UsageError(f"no store named: give --store, or set {URL_VARIABLE}")
    return StoreChoice(store, retry)


def takes_store(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say which store; it gets a StoreChoice as `store`."""

    @click.option(
        "--store",
        metavar="URL",
        envvar=URL_VARIABLE,
        show_envvar=True,
        help="Folder of a store on this machine (several drives: comma separated), or a node, grpc://HOST:PORT.",
    )
    @click.option(
        "--retry",
        metavar="SECONDS",
        type=click.FloatRange(min=0),
        default=10,
        show_default=True,
        help="How long to go on trying to reach a node that does not answer.",
    )
    @functools.wraps(command)
    def with_store(*args: Any, store: str | None, retry: float, **kwargs: Any) -> Any:
        return command(*args, store=_choose(store, retry), **kwargs)

    return with_store
