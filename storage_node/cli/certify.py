"""`ais-loader certify` and `verify`: a signed file of what a training run has read, and what it proves."""

from __future__ import annotations

import json
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import click

from ais_loader.cli.batch import loader_named, read_object
from ais_loader.cli.files import written_whole
from ais_loader.cli.show import OutputLines, note, printable
from ais_loader.errors import InvalidRequest
from ais_loader.training.certificate import certificate, check, leaf_hash, proofs
from ais_loader.values.entry import Entry
from ais_loader.values.urls import SCHEME

_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True)
_KEY = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("state", metavar="STATE", type=_FILE)
@click.option("-o", "--output", metavar="FILE", required=True, help="The certificate.")
@click.option("--key", metavar="FILE", required=True, type=_KEY, help="A private key, as `token key` makes one.")
@click.option("--loader", metavar="FILE.py:NAME", required=True, help="The loader of the run, as for `ledger`.")
@click.option("--audit", metavar="DIR", multiple=True, type=_FOLDER, help="Add the ends of the audit logs in or below.")
def certify(state: str, output: str, key: Path, loader: str, audit: tuple[Path, ...]) -> None:
    """Sign what a training run has read, up to the position STATE.

    STATE is what `loader.state_dict()` returned, as JSON, of a run that began with epoch 0. The loader's datasets need
    pinned=True, or a snapshot. Versions and checksums come from the store; no data is read.
    """
    from ais_loader.training.ledger import leaves
    from storage_node.security.audit.log_files import links_backwards, logs_below
    from storage_node.security.rights.keys import read_private_key

    sign = read_private_key(key).sign
    logs = [folder for root in audit for folder, _ in logs_below(root)]
    ends = [{"log": str(folder), **link._asdict()} for folder in logs for link in islice(links_backwards(folder), 1)]
    position = read_object(state)
    made = certificate(position, leaves(loader_named(loader), position), ends, sign)
    with written_whole(output, force=False) as file:
        file.write(json.dumps(made).encode())
    note(f"certified {made['claim']['steps']:,} steps, {made['claim']['objects']:,} objects and {len(ends)} audit logs")


@click.command()
@click.argument("file", metavar="FILE", type=_FILE)
@click.option("--key", metavar="FILE.pub", required=True, type=_KEY, help="The public key of the signer.")
@click.option("--object", "objects", metavar="URL", multiple=True, help="Whether this object or member was read.")
@click.option("-o", "--output", metavar="PROOFS", help="Write proofs for each --object, which are a FILE as well.")
@click.option("--step", type=click.IntRange(min=0), help="Derive this step again, compare it, and list it.")
@click.option("--epoch", type=click.IntRange(min=0), default=0, show_default=True, help="The epoch of --step.")
@click.option("--loader", metavar="FILE.py:NAME", help="For --step: the loader of the run.")
def verify(
    file: str, key: Path, objects: tuple[str, ...], output: str | None, step: int | None, epoch: int, loader: str | None
) -> None:
    """Check a certificate of `certify`, or proofs from one, and say what it proves.

    Exits with status 1 if anything in it was changed, if it was signed with another key, or if --step is another one.
    """
    from storage_node.security.rights.keys import has_signed, read_public_keys

    found, is_signature = read_object(file), partial(has_signed, read_public_keys(key))
    proven = check(found, is_signature)
    claim = found["claim"]
    if "proofs" not in found:
        proven = check(made := proofs(found, [key for url in objects for key in _keys(url)]), is_signature)
        if output is not None:
            with written_whole(output, force=False) as written:
                written.write(json.dumps(made).encode())
    elif objects or output or step is not None:
        raise click.UsageError("FILE has proofs alone: other options need the certificate")
    with OutputLines() as lines:
        at = f"epoch {claim['state']['epoch']}, step {claim['state']['step']}"
        lines.add(f"ok: {claim['steps']:,} steps before {at}, {claim['objects']:,} objects")
        for end in claim["audit"]:
            lines.add(f"audit log {printable(end['log'])}: sum {end['sum']}")
        for one, leaf in proven:
            lines.add(_line(leaf) if leaf else f"not read  {printable('/'.join(one))}")
        if step is not None:
            from ais_loader.training.ledger import leaves

            derived = next(leaves(loader_named(loader or ""), claim["state"], (epoch, step)), None)
            if derived is None or leaf_hash(derived) not in found["steps"]:
                raise InvalidRequest(f"epoch {epoch}, step {step} is not certified, or not with what it reads now")
            for *entry, _ in derived[2]:
                lines.add(_line([*entry, epoch, step]))


def _keys(url: str) -> list[tuple[str, ...]]:
    """Return what to look for: an object, or a member, and its archive as a whole, which has it too."""
    entry = Entry.from_url(SCHEME + url.removeprefix(SCHEME))
    key = (entry.bucket, entry.name)
    return [key] if entry.member is None else [(*key, entry.member), (*key, "")]


def _line(leaf: list[Any]) -> str:
    bucket, name, member, version, checksum, epoch, step = leaf
    name = printable("/".join(filter(None, (bucket, name, member))))
    return f"read  {name}  version={printable(version)}  crc32c={checksum:08x}  epoch {epoch}, step {step}"
