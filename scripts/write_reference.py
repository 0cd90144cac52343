"""The API reference, a page of the site, and the table of settings as Markdown, made from docstrings and defaults.

python -m scripts.write_reference            # writes the table in docs/settings.md
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ais_loader.wire.field_help import DocWithFields, field_docs
from scripts.made_parts import with_part
from storage_node.metrics.declarations import Metric

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = ROOT / "docs" / "settings.md"
OURS = ("ais_loader", "storage_node")
GROUPS: dict[str, list[str]] = {
    "Connecting": ["connect", "Client", "EmbeddedOptions", "ClusterOptions"],
    "Buckets and objects": ["Bucket", "BucketSummary", "ObjectInfo", "MemberInfo", "ObjectFile", "ObjectReader"],
    "Batches": [
        "Entry",
        "EntryTable",
        "BatchOptions",
        "Batch",
        "Item",
        "Status",
        "PackedBatch",
        "BatchTiming",
        "WithOpaque",
    ],
    "Datasets": [
        "MapDataset",
        "TokenWindows",
        "Lines",
        "MegatronTokens",
        "Records",
        "ParquetRows",
        "Clips",
        "Clip",
        "concat",
        "drop_placeholders",
        "BatchLoader",
        "BatchMetrics",
        "ShufflePlan",
        "BatchSampler",
    ],
    "Changes of many objects": [
        "Progress",
        "Failure",
        "PutSummary",
        "DeleteSummary",
        "CopySummary",
        "RenameSummary",
        "DownloadSummary",
        "PromoteSummary",
        "PromoteResult",
    ],
    "Uploads in parts, snapshots": ["MultipartUpload", "PartInfo", "UploadInfo", "SnapshotInfo"],
    "Remote buckets": [
        "Remote",
        "WarmSummary",
        "EvictSummary",
        "RemoteUsage",
        "PendingUploads",
        "InventoryInfo",
    ],
    "Transforms": [
        "NodeCommand",
        "NodeCommandInfo",
        "Command",
        "Server",
        "Stage",
        "Pipeline",
        "TransformInfo",
        "TransformJob",
        "JobCounts",
        "JobFailures",
        "PlannedResult",
    ],
}
"""Every public name of `ais_loader`, in the order of the page; errors and decoders have lists of their own."""
ELSEWHERE = {"LoaderError", "errors"}
_SECTION = re.compile(r"(Args|Returns|Yields|Raises|Attributes):\s*$")
_SECTION_INLINE = re.compile(r"(Returns|Yields|Raises):? (?=\S)")
_ITEM = re.compile(r"(\*{0,2}\w[\w, *]*?):(?:\s+|$)(.*)")
_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


class _Text:
    """An annotation as it is written."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def signature(name: str, function: Callable[..., Any], *, method: bool = False) -> str:
    """`name(arguments) -> result` as the source writes it."""
    found = inspect.signature(function)
    parameters = [
        one.replace(annotation=_Text(one.annotation) if isinstance(one.annotation, str) else one.annotation)
        for one in found.parameters.values()
    ]
    returned = found.return_annotation
    if isinstance(returned, str):
        returned = _Text(returned)
    shown = found.replace(parameters=parameters[1:] if method else parameters, return_annotation=returned)
    text = f"{name}{shown}"
    if len(text) <= 100:
        return text
    arguments = [f"    {one}," for one in map(str, shown.parameters.values())]
    for at, one in enumerate(shown.parameters.values()):
        if one.kind is one.KEYWORD_ONLY:
            before = list(shown.parameters.values())[:at]
            if not any(each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL) for each in before):
                arguments.insert(at, "    *,")
            break
    end = f" -> {returned!r}" if returned is not found.empty else ""
    return "\n".join([f"{name}(", *arguments, f"){end}"])


def prose(doc: str) -> str:
    """A docstring as Markdown: its sections become lists."""
    out: list[str] = []
    lines = iter(inspect.cleandoc(doc).splitlines())
    inside = False
    for line in lines:
        if section := _SECTION.match(line):
            out += ["", f"**{section[1]}**", ""]
            inside = True
        elif inside and line.startswith("    "):
            text = line[4:]
            item = _ITEM.match(text) if not text.startswith(" ") else None
            if item:
                out.append(f"- `{item[1]}`: {item[2]}".rstrip())
            elif out[-1]:
                out.append(f"  {text.strip()}" if any(one.startswith("- ") for one in out[-30:]) else text.strip())
            else:
                out.append(text.strip())
        elif line.startswith("    "):
            out.append(line.strip())
        else:
            inside = inside and not line.strip()
            out.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip()


def fields_table(owner: type) -> Iterator[str]:
    """Fields of a data class or members of an enumeration, with what is said of each."""
    said = field_docs(owner)
    if issubclass(owner, enum.Enum):
        rows = [(name, f"`{member.value}`", said.get(name, "")) for name, member in owner.__members__.items()]
        head = ["", "| member | value | |", "|---|---|---|"]
    else:
        shown = [one for one in dataclasses.fields(owner) if not one.name.startswith("_")]
        rows = [(one.name, f"`{cell(str(one.type))}` | {default(one)}", said.get(one.name, "")) for one in shown]
        head = ["", "| field | type | default | |", "|---|---|---|---|"]
    if rows:
        yield from head
        for name, value, text in rows:
            yield f"| `{name}` | {value} | {cell(text)} |"


def default(one: dataclasses.Field[Any]) -> str:
    """A field's default as code, sizes in their units; nothing where it has to be given."""
    if one.default is not dataclasses.MISSING:
        value = one.default
    elif one.default_factory is not dataclasses.MISSING:
        value = one.default_factory()
    else:
        return ""
    if isinstance(value, enum.Enum):
        return f"`{value}`"
    if isinstance(value, int) and not isinstance(value, bool) and "bytes" in one.name:
        for unit, size in _UNITS:
            if value and value % size == 0:
                return f"`{value // size} {unit}{'/s' if one.name.endswith('_per_s') else ''}`"
    if one.name.endswith("_s") and isinstance(value, (int, float)):
        return f"`{value:g} s`"
    return f"`{value!r}`" if not dataclasses.is_dataclass(value) else f"`{type(value).__name__}()`"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def members(owner: type) -> list[tuple[str, Any]]:
    """Its public methods and properties, and those that it has from classes of ours, in the order of the source.

    Without those of which only Python's own classes say something: a file's `seek` is as any file's.
    """
    found: dict[str, Any] = {}
    said: set[str] = set()
    for base in owner.__mro__:
        if base.__module__.partition(".")[0] in OURS and base.__module__ != "ais_loader.wire.generated":
            for name, value in vars(base).items():
                if not name.startswith("_") and (callable(value) or isinstance(value, (property, classmethod))):
                    found.setdefault(name, inspect.getattr_static(owner, name))
                    if value.__doc__:
                        said.add(name)
    return [(name, value) for name, value in found.items() if name in said]


def of_function(heading: str, name: str, function: Callable[..., Any], *, method: bool = False) -> Iterator[str]:
    yield from (
        "",
        f"{heading} {name}",
        "",
        "```text",
        signature(name.rpartition(".")[2], function, method=method),
        "```",
    )
    yield from ("", prose(inspect.getdoc(function) or ""))


def of_class(name: str, owner: type) -> Iterator[str]:
    yield from ("", f"### {name}")
    table = dataclasses.is_dataclass(owner) or issubclass(owner, enum.Enum)
    made_by_users = not table and "__init__" in vars(owner) and not hidden(owner)
    if made_by_users:
        yield from (
            "",
            "```text",
            signature(name, vars(owner)["__init__"], method=True).removesuffix(" -> None"),
            "```",
        )
    doc = vars(owner).get("__doc__")
    yield from ("", prose(doc.plain if isinstance(doc, DocWithFields) else inspect.getdoc(owner) or ""))
    if made_by_users:
        yield from ("", prose(vars(owner)["__init__"].__doc__ or ""))
    if table:
        yield from fields_table(owner)
    for member, value in members(owner):
        if isinstance(value, property):
            said = " ".join(inspect.cleandoc(value.__doc__ or "").split())
            yield from ("", f"#### {name}.{member}", "", f"Property. {said}")
        elif isinstance(value, (classmethod, staticmethod)):
            yield from of_function("####", f"{name}.{member}", getattr(owner, member))
        elif inspect.isfunction(value):
            yield from of_function("####", f"{name}.{member}", value, method=True)


def hidden(owner: type) -> bool:
    """Whether it is made by the library and not by its users: then how it is made is nobody's business."""
    return owner.__name__ in {"Client", "Bucket", "Batch", "Item", "MultipartUpload", "ObjectFile", "ObjectReader"} | {
        "TransformJob",
        "JobFailures",
    }


def of_errors(errors: ModuleType) -> Iterator[str]:
    """Every error, indented below the one that it is a kind of."""
    ours = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)}
    ours = {one for one in ours if one.__module__ == errors.__name__}
    yield from ("", "| error | kind on the wire | |", "|---|---|---|")

    def below(parent: type, depth: int) -> Iterator[str]:
        for one in sorted(ours, key=lambda each: each.__name__):
            if parent in one.__bases__:
                yield from row(one, depth)
                yield from below(one, depth + 1)

    def row(one: Any, depth: int) -> Iterator[str]:
        said = " ".join(inspect.cleandoc(vars(one).get("__doc__") or "").split())
        yield f"| {'· ' * depth}`{one.__name__}` | `{one.kind}` | {cell(said)} |"

    yield from row(errors.LoaderError, 0)
    yield from below(errors.LoaderError, 1)


def reference() -> str:
    """The whole page."""
    package = importlib.import_module("ais_loader")
    decoders = importlib.import_module("ais_loader.decoders")
    lines = [
        "# API reference",
        "",
        "The public names of `ais_loader`, made from the code.",
        "",
    ]
    for group, names in GROUPS.items():
        lines.append(
            f"- [{group}](#{re.sub(r'[^a-z -]', '', group.lower()).replace(' ', '-')}): "
            + ", ".join(f"[`{name}`](#{name.lower()})" for name in names)
        )
    lines += ["- [Decoders](#decoders)", "- [Errors](#errors)"]
    for group, names in GROUPS.items():
        lines += ["", f"## {group}"]
        for name in names:
            value = getattr(package, name)
            lines += of_class(name, value) if inspect.isclass(value) else of_function("###", name, value)
    lines += ["", "## Decoders", "", prose(decoders.__doc__ or "")]
    for name, value in vars(decoders).items():
        if inspect.isfunction(value) and value.__module__ == decoders.__name__ and not name.startswith("_"):
            lines += of_function("###", f"decoders.{name}", value)
    lines += ["", "## Errors", "", prose(package.errors.__doc__ or "")]
    lines += of_errors(package.errors)
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines()) + "\n"


def settings_table() -> str:
    """Every setting of a node, with its default and what it does."""
    from storage_node.settings.declarations import GROUPS

    rows = [
        f"| `{group.prefix}{one.name}` | {default(one)} | {cell(said.get(one.name, ''))} |"
        for group in GROUPS.values()
        for said in (field_docs(group),)
        for one in dataclasses.fields(group)
    ]
    return "\n".join(["| setting | default | |", "|---|---|---|", *rows, ""])


def settings() -> str:
    """The page of settings with the table of today."""
    return with_part(SETTINGS, "scripts/write_reference.py", settings_table())


def metrics_table(metrics: Iterable[Metric[Any]], process: Mapping[str, str]) -> str:
    """Format the table of a page in docs/; a test compares them."""
    rows = ["| metric | type | labels | unit | meaning |", "|---|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(metric.labels)
        rows.append(f"| `{metric.name}` | {metric.type} | {labels} | {metric.unit} | {metric.meaning} |")
    for name, meaning in process.items():
        kind, unit = "counter" if name.endswith("_total") else "gauge", name.removesuffix("_total").rpartition("_")[2]
        rows.append(f"| `{name}` | {kind} |  | {unit} | {meaning} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    SETTINGS.write_text(settings())
