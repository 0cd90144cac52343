"""Command line `python -m ais_loader.integrations.nemo`: `check` checks manifests before a run."""

from __future__ import annotations

import json
from typing import Any

import click

from ais_loader.cli.main import one_line
from ais_loader.cli.show import OutputLines, count_text, note, printable, progress
from ais_loader.cli.stores import StoreChoice, takes_store
from ais_loader.errors import LoaderError
from ais_loader.extras import MissingExtra

from .check import DURATION_TOLERANCE_S, Requirements, check_manifests
from .finding import ManifestFinding
from .manifests import ManifestError
from .prompts import PROMPT_FIELDS

_FOUND = 1
_CHECK_FAILED = 2


class _CheckFailed(click.ClickException):
    exit_code = _CHECK_FAILED


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """NeMo's speech data in a store of ais-loader."""


@main.command(
    epilog="""\b
Exit codes:
  0    nothing was found
  1    something was found: a line for each is on standard output
  2    it could not be looked: the command line, a manifest or the store
"""
)
@click.argument("manifests", metavar="MANIFEST...", nargs=-1, required=True)
@click.option(
    "--tars",
    metavar="TARS",
    multiple=True,
    help="NeMo's tarred_audio_filepaths, if the manifests are of tarred data. May be given several times.",
)
@click.option(
    "--prompt",
    type=click.Choice(sorted(PROMPT_FIELDS)),
    help="NeMo's prompt_format: which fields each line needs for it.",
)
@click.option(
    "--languages",
    metavar="LIST",
    default="",
    help="Those that the tokenizer knows, such as en,de: any other in a line's fields of languages is told.",
)
@click.option("--lang-field", metavar="NAME", default="lang", show_default=True, help="NeMo's lang_field.")
@click.option(
    "--tolerance",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=DURATION_TOLERANCE_S,
    envvar="LHOTSE_AUDIO_DURATION_MISMATCH_TOLERANCE",
    show_envvar=True,
    show_default=True,
    help="How far a duration may be from its line's; Lhotse drops a cut that is farther.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object: how many recordings, and what was found.")
@takes_store
def check(
    manifests: tuple[str, ...],
    tars: tuple[str, ...],
    prompt: str | None,
    languages: str,
    lang_field: str,
    tolerance: float,
    as_json: bool,
    store: StoreChoice,
) -> None:
    """Look whether NeMo will read what the lines of MANIFEST say, with USE_AIS_GET_BATCH=true.

    MANIFEST and TARS are paths or ais:// URLs as in NeMo's configuration, with ranges such as
    manifest__OP_0..7_CL_.json or {0..7}; of recordings, or of conversations for SALM. Only headers are fetched, and
    whole recordings where a header does not say how long they are (Ogg, MP3).

    Found are: recordings that are not there, hold no samples or are no audio; sampling rates and durations that are not
    those of their line (without sampling_rate NeMo takes 16 kHz); offsets, which this way of NeMo reads wrongly; fields
    and languages that the prompt needs.
    """
    needed = Requirements(
        fields=PROMPT_FIELDS[prompt] if prompt else (),
        languages=frozenset(name.strip() for name in languages.split(",") if name.strip()),
        language_field=lang_field,
        tolerance_s=tolerance,
    )
    findings: list[ManifestFinding] = []
    recordings = 0
    try:
        with store.reading() as client, progress(None, unit=" recordings") as bar:
            for part in check_manifests(client, manifests, tars, needed):
                recordings += part.recordings
                findings += part.findings
                bar.update(part.recordings)
    except (ManifestError, LoaderError, OSError, MissingExtra) as error:
        raise _CheckFailed(one_line(error)) from error
    findings.sort(key=lambda found: (found.manifest, found.line))
    if as_json:
        click.echo(json.dumps({"recordings": recordings, "findings": [found.fields() for found in findings]}))
    else:
        _show(findings, recordings)
    if findings:
        raise click.exceptions.Exit(_FOUND)


def _show(findings: list[ManifestFinding], recordings: int) -> None:
    counts: dict[str, int] = {}
    with OutputLines() as lines:
        for found in findings:
            counts[found.kind] = counts.get(found.kind, 0) + 1
            lines.add(printable(f"{found.manifest}:{found.line}: {found.kind}: {found.message}"))
    summary = ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items()))
    note(f"{count_text(recordings, 'recording')} looked at: {summary or 'as their lines say'}")


if __name__ == "__main__":
    options: dict[str, Any] = {"prog_name": "python -m ais_loader.integrations.nemo"}
    main(**options)
