"""Store options of commands: --store and --retry, and how the store is opened."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import click

from ais_loader.client import URL_VARIABLE, Client, connect
from ais_loader.errors import InvalidRequest, StoreLocked, StoreNotFound
from ais_loader.options import ClusterOptions

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
        return self._connect("a")

    def _connect(self, mode: Literal["a", "r"]) -> Client:
        try:
            options = ClusterOptions(retry_s=self.retry_s) if self.url.startswith(_GRPC) else None
            return connect(self.url, mode=mode, options=options)
        except StoreNotFound:
            raise StoreNotFound(f"no store at {self.url}; `ais-loader bucket create` makes one") from None
        except StoreLocked as error:
            who = str(error).partition(";")[0]  # what follows is advice for Python
            raise StoreLocked(f"{who}; if that is a node, use it: --store grpc://HOST:PORT") from error
        except InvalidRequest as error:
            raise click.BadParameter(str(error), param_hint="'--store'") from error

    def folders(self) -> list[str]:
        """The folders of a store of this machine; none for a node."""
        if self.url.startswith(_GRPC):
            return []
        return [part.removeprefix("file://") for part in self.url.split(",")]


def _choose(store: str | None, retry: float) -> StoreChoice:
    if not store:
        raise click.UsageError(f"no store named: give --store, or set {URL_VARIABLE}")
    # A shell leaves the ~ of --store=~/data alone; nobody wants a folder of that name.
    parts = [os.path.expanduser(part) if part.startswith("~") else part for part in store.split(",")]
    return StoreChoice(",".join(parts), retry)


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
