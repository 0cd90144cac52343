"""Stores and names on the command line: --store and --retry, BUCKET and BUCKET/NAME, their completion, a bucket's names
by levels of folders, and the nearest name to a wrong one."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import click
from click.shell_completion import CompletionItem, get_completion_class

from ais_loader.cli.show import printable, tell_of_new_stores, waiting
from ais_loader.errors import DriveFailed, InvalidRequest, LoaderError, ObjectNotFound, StoreLocked, StoreNotFound
from ais_loader.name_matching import PATTERN_HINT, is_pattern, nearest
from ais_loader.objects.bucket import one_level as names_of_level
from ais_loader.objects.client import URL_VARIABLE, Client, connect
from ais_loader.values.entry import Entry, ObjectInfo
from ais_loader.values.options import ClusterOptions
from ais_loader.values.summary import PrefixSummary
from ais_loader.values.urls import ENDPOINT_SCHEMES, SCHEME, is_remote, store_folders

if TYPE_CHECKING:
    from ais_loader.objects.bucket import Bucket


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """The values of --store and --retry."""

    given: str | None
    retry_s: float
    named: tuple[Target, ...] = ()
    """Arguments of the command. If one of them does not exist, a similar name is suggested."""

    @property
    def url(self) -> str:
        """The store. Raises UsageError if none is given: commands with --loader may need none."""
        if not self.given:
            raise click.UsageError(f"no store given: use --store, or set {URL_VARIABLE}")
        return self.given

    def naming(self, *targets: Target) -> StoreChoice:
        """Return the same store with other arguments of the command."""
        return replace(self, named=targets)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Client]:
        """Connect a client that only reads: a store of this machine is not locked, and may be written to meanwhile."""
        with self._connect("r") as client, self._hinting(client):
            yield client

    @contextlib.contextmanager
    def writing(self, *, create: bool) -> Iterator[Client]:
        """Connect a client that writes. A store of this machine is created only with `create`."""
        if not create and not self.url.startswith(ENDPOINT_SCHEMES):
            self._connect("r").close()  # mode "a" would create a store at a mistyped path
        else:
            tell_of_new_stores()
        with self._connect("a") as client, self._hinting(client):
            yield client

    @contextlib.contextmanager
    def _hinting(self, client: Client) -> Iterator[None]:
        try:
            yield
        except ObjectNotFound as error:
            if (hint := self._hint(client, str(error))) is None:
                raise

            raise type(error)(with_hint(str(error), hint)) from error

    def _hint(self, client: Client, reason: str) -> str | None:
        """Return a hint for an argument that does not exist according to `reason`."""
        with contextlib.suppress(LoaderError):
            for target in self.named:
                if target.name and repr(target.name) in reason:
                    if (hint := no_pattern(target.name, options_of_command())) is not None:
                        return hint
                    bucket = client.bucket(target.bucket)
                    if (
                        "-r" in options_of_command()
                        and next(bucket.objects(target.folder, page_size=1), None) is not None
                    ):
                        return printable(f"did you mean the folder {target.bucket}/{target.folder}, with -r?")
                    near = nearest_name(bucket, target.name)
                    return None if near is None else printable(f"did you mean {target.bucket}/{near}?")
        return None

    def _connect(self, mode: Literal["a", "r"]) -> Client:
        remote = is_remote(self.url)
        try:
            with waiting(f"{self.url} to {'answer' if remote else 'open'}"):
                client = connect(self.url, mode=mode, options=ClusterOptions(retry_s=self.retry_s) if remote else None)
                if remote:
                    client.buckets()  # the first call connects
                return client
        except StoreNotFound:
            hint = "look at the path, or `ais-loader bucket create` makes one"
            raise StoreNotFound(f"no store at {self.url}; {hint}") from None
        except StoreLocked as error:
            holder = str(error).partition(";")[0]  # the rest is advice for Python
            raise StoreLocked(f"{holder}; if that is a node, use it: --store grpc://HOST:PORT") from error
        except InvalidRequest as error:
            raise _wrong_store(error) from error

    def folders(self) -> list[str]:
        """Return the folders of a store of this machine; none for a node."""
        if self.url.startswith(ENDPOINT_SCHEMES):
            return []
        try:
            return store_folders(self.url)
        except InvalidRequest as error:
            raise _wrong_store(error) from error


def options_of_command() -> set[str]:
    """Return the options of the current command, such as "-r"."""
    return {name for option in click.get_current_context().command.params for name in option.opts}


def _wrong_store(error: InvalidRequest) -> click.BadParameter:
    return click.BadParameter(str(error), param_hint="'--store'")


def chosen_url(context: click.Context, store: str | None) -> str | None:
    """Return the store: `store` if it was given after the command; otherwise the one given before its name; otherwise
    the environment's."""
    if context.get_parameter_source("store") is click.core.ParameterSource.COMMANDLINE:
        return store
    above: click.Context | None = context.parent
    while above is not None:  # the nearest of the group and the program
        if chosen := above.params.get("store"):
            return str(chosen)
        above = above.parent
    return store


store_of_commands = click.option("--store", metavar="URL", help="The store; this option can also follow the command.")
"""Option before the name of a command: that of a group, or of the program."""


def _choose(store: str | None, retry: float, arguments: Iterable[Any], endpoint: str | None) -> StoreChoice:
    store = endpoint or chosen_url(click.get_current_context(), store)
    each = itertools.chain.from_iterable(one if isinstance(one, tuple) else (one,) for one in arguments)
    return StoreChoice(store, retry, tuple(one for one in each if isinstance(one, Target)))


def takes_store(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select a store to a command, which gets a StoreChoice as `store`.

    The command's option --s3, if it has one, takes the place of --store.
    """

    @click.option(
        "--store",
        metavar="URL",
        envvar=URL_VARIABLE,
        show_envvar=True,
        help="Folder of a store on this machine (several drives: comma separated); a node, grpc://HOST:PORT; or "
        "node:///FOLDER, the node of this machine that serves the folder, started if it is not running.",
    )
    @click.option(
        "--retry",
        metavar="SECONDS",
        type=click.FloatRange(min=0),
        default=10,
        show_default=True,
        help="How long to retry when a node does not answer.",
    )
    @functools.wraps(command)
    def with_store(*args: Any, store: str | None, retry: float, **kwargs: Any) -> Any:
        return command(*args, store=_choose(store, retry, kwargs.values(), kwargs.get("s3")), **kwargs)

    return with_store


_PROGRAM, _VARIABLE = "ais-loader", "_AIS_LOADER_COMPLETE"
_MOST = 200
_NO_SPACE = {
    # A folder or a bucket is followed by the rest of the name, not by a space.
    "bash": ("COMPREPLY+=($value)", "COMPREPLY+=($value)\n            [[ $value == */ ]] && compopt -o nospace"),
    "zsh": ("compadd -U -V unsorted -a completions", "compadd -U -S '' -V unsorted -a completions"),
}


@click.command()
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a shell completion script for commands, options, buckets, and object names.

    \b
    bash    eval "$(ais-loader completion bash)"         in ~/.bashrc
    zsh     eval "$(ais-loader completion zsh)"          in ~/.zshrc
    fish    ais-loader completion fish | source          in config.fish

    Buckets and names come from the store that --store or AIS_LOADER_URL names.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(click.get_current_context().find_root().command, {}, _PROGRAM, _VARIABLE).source()
    click.echo(script.replace(*_NO_SPACE[shell]) if shell in _NO_SPACE else script)


def named_by(parse: Callable[[str], Any]) -> dict[str, Any]:
    """Return options of a click argument that parse each value with `parse` and complete names in shells."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(parse(each) for each in value)
            return None if value is None else parse(value)
        except InvalidRequest as error:
            raise click.BadParameter(str(error), ctx, param) from error

    return {"callback": callback, "shell_complete": complete_name}


def complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Complete buckets, and one level of names; nothing if the store does not answer."""
    from ais_loader.objects.client import URL_VARIABLE, connect
    from ais_loader.values.options import ClusterOptions

    scheme = SCHEME if incomplete.startswith(SCHEME) else ""
    bucket, slash, rest = incomplete.removeprefix(scheme).partition("/")
    url = chosen_url(ctx, ctx.params.get("store") or os.environ.get(URL_VARIABLE))
    if not url:
        return []
    with contextlib.suppress(Exception):  # the line is still being typed, so an error has no place to go
        with connect(url, mode="r", options=ClusterOptions(retry_s=0) if is_remote(url) else None) as client:
            if not slash:
                found = [info.name + "/" for info in client.buckets()]
            else:
                above, _, start = rest.rpartition("/")
                level = one_level(client.bucket(bucket), Target(bucket, above and above + "/"), start)
                found = [f"{bucket}/{one.name}" for one in itertools.islice(level, _MOST)]
        names = [scheme + name for name in found if name.startswith(incomplete.removeprefix(scheme))]
        # A shell inserts them literally: a name must not become a command.
        return [CompletionItem(name) for name in names if shlex.quote(name) == name]
    return []


_MAX_COMPARED = 1000


@dataclass(frozen=True, slots=True)
class NameFolder:
    """Names with a common prefix up to a slash. `holds` is None if it has not been counted."""

    bucket: str
    name: str
    holds: PrefixSummary | None


Listed: TypeAlias = ObjectInfo | NameFolder


def one_level(
    bucket: Bucket,
    target: Target,
    start: str = "",
    *,
    counted: bool = False,
    on_missing_drive: Literal["raise", "skip"] = "raise",
) -> Iterator[Listed]:
    """Yield the objects directly in a folder, and its subfolders, sorted by name.

    `start`: only names that begin with it, relative to the folder. `counted`: the nodes count what is in the folders,
    which reads the names of everything below. If there are only folders, no names are fetched then. Nothing is counted
    while a drive is missing.
    """
    top = target.folder
    if not counted:
        for one in names_of_level(bucket, top + start, on_missing_drive=on_missing_drive):
            yield one if isinstance(one, ObjectInfo) else NameFolder(bucket.name, one, None)
        return
    summary = None
    uncounted = (InvalidRequest, DriveFailed) if on_missing_drive == "skip" else (InvalidRequest,)
    with contextlib.suppress(*uncounted), waiting(f"{bucket.name}/{top} to be counted"):
        summary = bucket.summary(top, depth=1)  # InvalidRequest: more folders than fit into one answer
    sums = {} if summary is None else {name: one for name, one in summary.by_prefix.items() if name != top}
    if summary is not None and summary.complete and top not in summary.by_prefix:
        yield from (
            NameFolder(bucket.name, name, one) for name, one in sums.items() if name[len(top) :].startswith(start)
        )
        return
    for one in names_of_level(bucket, top + start, on_missing_drive=on_missing_drive):
        yield one if isinstance(one, ObjectInfo) else NameFolder(bucket.name, one, sums.get(one))


def no_pattern(name: str, options: Collection[str]) -> str | None:
    """Return a hint for a missing name that looks like a shell pattern, for a command with these `options`."""
    if not is_pattern(name):
        return None
    if "--include" in options:
        return "a name is not a pattern: use -r with --include"
    if "--prefix" in options:
        return "a name is not a pattern: use -r with --prefix for all names that begin alike"
    return "a name is not a pattern"


def with_hint(reason: str, hint: str) -> str:
    """Return `reason` with the hint of a command in place of the hint for Python."""
    return f"{reason.removesuffix(f'; {PATTERN_HINT}')}; {hint}"


def nearest_name(bucket: Bucket, name: str) -> str | None:
    """Return the most similar of the first thousand names in the same folder as a missing one."""
    top = name[: name.rfind("/") + 1]
    names = [info.name for info in itertools.islice(bucket.objects(top, page_size=_MAX_COMPARED), _MAX_COMPARED)]
    return nearest(name, names, cutoff=0.75)


@dataclass(frozen=True, slots=True)
class Target:
    """A bucket and the part after its slash: an object's name, a prefix, or nothing."""

    bucket: str
    name: str

    def __str__(self) -> str:
        return f"{self.bucket}/{self.name}" if self.name else self.bucket

    @property
    def folder(self) -> str:
        """Common prefix of the objects below it; the same in every command that takes a folder."""
        return self.name if not self.name or self.name.endswith("/") else self.name + "/"


def parse_target(text: str) -> Target:
    """Parse a bucket, or a name in it. Raises InvalidRequest."""
    rest = text.removeprefix(SCHEME)
    bucket, _, name = rest.partition("/")
    if bucket.endswith(":") and name.startswith("/"):
        raise InvalidRequest(f"{text!r}: need BUCKET/NAME or {SCHEME}BUCKET/NAME; --store says in which store")
    if not bucket:
        raise InvalidRequest(f"{text!r} names no bucket; need BUCKET/NAME or {SCHEME}BUCKET/NAME")
    return Target(bucket, name)


def parse_object(text: str) -> Target:
    """Parse an object by its literal name. Raises InvalidRequest."""
    target = parse_target(text)
    if not target.name:
        raise InvalidRequest(f"{text!r} names a bucket; need BUCKET/NAME")
    return target


def parse_entry(text: str) -> Entry:
    """Parse an entry to read. Raises InvalidRequest.

    An ais:// URL has its meaning in Python, including members of archives; BUCKET/NAME takes the name literally.
    """
    target = parse_object(text)
    return Entry.from_url(text) if text.startswith(SCHEME) else Entry(target.bucket, target.name)


def label(entry: Entry) -> str:
    """Format an entry as one name, for people."""
    return "/".join(part for part in (entry.bucket, entry.name, entry.member) if part is not None)
