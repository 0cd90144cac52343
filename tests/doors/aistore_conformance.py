"""Conformance to AIStore, measured with the integration tests of its SDK, of which nothing is kept in this tree.

    python -m tests.doors.aistore_conformance

runs them with the released SDK against gateways over every kind of store, and writes their tables in
docs/aistore.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scripts.made_parts import part_of, with_part
from tests.doors import gateways
from tests.doors.conformance import fetched, outcomes
from tests.doors.environments import AISTORE_CLIENTS, FOLDER, ROOT, RealClient, make

PAGE = ROOT / "docs" / "aistore.md"
_PROGRAM = "tests/doors/aistore_conformance.py"
REPOSITORY, COMMIT = "https://github.com/NVIDIA/aistore", "583e7729eb3532d3999b13466a729181d8d16907"
_SUITE = FOLDER / "aistore-suite"
_PARTS = ("python/tests", "python/pyproject.toml")
"""Parts of the repository: without the SDK's sources, so that the released one is imported."""
_SDK = AISTORE_CLIENTS[0]
_CLIENT = RealClient(
    *("aistore tests", COMMIT[:12], "aistore_conformance.py"),
    (*_SDK.requirements, "pytest", "pytest-timeout", "alive-progress"),
    environment="aistore-suite-environment",
)
_PROMOTE_ROOT = "/var/lib/ais/promote"
"""The folder from which the suite promotes files."""
_RUN_S = 3000.0
FILES = {
    "sdk/test_object_ops": 18,
    "sdk/test_object_reader_ops": 23,
    "sdk/test_object_file_reader_ops": 3,
    "sdk/test_object_file_writer_ops": 4,
    "sdk/test_object_multipart_ops": 18,
    "sdk/test_list_object_flag_ops": 6,
    "sdk/test_object_group_ops": 5,
    "sdk/batch/test_batch": 20,
    "pytorch/test_pytorch_plugin": 14,
    "pytorch/test_samplers": 2,
    "sdk/test_cluster_ops": 9,
    "sdk/test_job_ops": 3,
}
"""Files of the suite, with the number of their tests that AIStore 5.0 passes."""
_REMOVED = "calls a method that SDK 2.0.0 does not have any more; AIStore fails too"
_SUBSCRIPT = "reads the result of `head` as a dictionary, which it is not in SDK 2.0.0; AIStore fails too"
_SELECTION = "makes a group of no objects, which SDK 2.0.0 refuses itself; AIStore fails too"
_NO_NODES = "files are promoted by nodes, and this store has none"
REASONS = {
    "test_head_v2_basic": _REMOVED,
    "test_head_v2_chunked_props": _REMOVED,
    "test_head_v2_last_modified_and_etag": _REMOVED,
    "test_head_v2_multipart_chunk_info": _REMOVED,
    "test_put_head_get": _SUBSCRIPT,
    "test_set_custom_props": _SUBSCRIPT,
    "test_head": _SUBSCRIPT,
    "test_evict_objects_local": _SELECTION,
    "test_prefetch_objects_local": _SELECTION,
}
"""Tests that fail over every kind of store, and why."""
REASONS_OF_STORE: Mapping[str, Mapping[str, str]] = {"embedded": {"test_promote": _NO_NODES}}
_SKIPPED = {
    "Remote bucket is not set": "need a bucket in remote storage",
    "AWS bucket is not set": "need a bucket in S3 itself",
    "Test requires more than one target": "need more than one target; to clients, a gateway is one",
}
_ROW = re.compile(r"^\| `(?P<file>[^`]+)` \| (?P<tests>\d+) \| \d+ \| (?P<counts>.*) \|$", re.MULTILINE)


def prepared() -> tuple[Path, Path]:
    """Return the suite's interpreter and folder, which are made if they are not there. Raises Unavailable."""
    return make(_CLIENT), fetched(_SUITE, REPOSITORY, COMMIT, *_PARTS) / "python"


def run(store: str) -> dict[str, dict[str, str]]:
    """Run the suite against a gateway over a store of this kind. Return the outcome of each test, by file.

    Raises Unavailable.
    """
    python, folder = prepared()
    nodes = () if store == "embedded" else ("--promote-root", _PROMOTE_ROOT)
    with gateways.gateway(store, with_keys=False, node_arguments=nodes) as url:
        names = ["-m", "not etl and not authn and not extended", *(f"tests/integration/{file}.py" for file in FILES)]
        variables = {"AIS_ENDPOINT": url, "BUCKET": ""}
        rows = outcomes(python, folder, f"aistore-suite-{store}", names, variables, _RUN_S)
    found: dict[str, dict[str, str]] = {file: {} for file in FILES}
    for place, name, outcome in rows:
        file = place.rpartition(".")[0].removeprefix("tests.integration.").replace(".", "/")
        if found[file].get(name, "passed") == "passed":  # a test with subtests has several rows
            found[file][name] = outcome
    return found


def failures(found: dict[str, dict[str, str]]) -> set[str]:
    """Return the tests that failed."""
    return {name for tests in found.values() for name, text in tests.items() if not text.startswith(("passed", "skip"))}


def expected_failures(store: str) -> set[str]:
    """Return the tests that the page says to fail over a store of this kind."""
    return {*REASONS, *REASONS_OF_STORE.get(store, {})}


def passed(found: dict[str, dict[str, str]]) -> dict[str, int]:
    """Return the number of tests that passed, by file."""
    return {file: Counter(tests.values())["passed"] for file, tests in found.items()}


def written(store: str) -> dict[str, int]:
    """Return the numbers of tests that passed over a store of this kind as the page has them."""
    at = gateways.STORES.index(store)
    return {row["file"]: int(row["counts"].split(" | ")[at]) for row in _ROW.finditer(part_of(PAGE, _PROGRAM))}


def _skipped(found: dict[str, dict[str, str]]) -> list[str]:
    names: dict[str, list[str]] = {}
    for tests in found.values():
        for name, text in tests.items():
            if text.startswith("skipped: "):
                names.setdefault(_SKIPPED[text.removeprefix("skipped: ")], []).append(f"`{name}`")
    return [f"| {reason} | {', '.join(sorted(tests))} |" for reason, tests in names.items()]


def page(found: dict[str, dict[str, dict[str, str]]]) -> str:
    """Return the page with the tables of the outcomes, by kind of store."""
    counts = [passed(found[store]) for store in gateways.STORES]
    first = found[gateways.STORES[0]]
    rows = [
        f"| `{file}` | {len(first[file])} | {there} | {' | '.join(str(count[file]) for count in counts)} |"
        for file, there in FILES.items()
    ]
    totals = [len([name for tests in first.values() for name in tests]), sum(FILES.values())]
    totals += [sum(count.values()) for count in counts]
    missing = [f"| `{name}` | {reason} |" for name, reason in sorted(REASONS.items())]
    missing += [
        f"| `{name}` | over an {store} store: {reason} |"
        for store, reasons in REASONS_OF_STORE.items()
        for name, reason in reasons.items()
    ]
    part = f"""At commit {COMMIT[:12]}, with SDK {_SDK.version}:

| file of `python/tests/integration` | tests | AIStore | {" | ".join(gateways.STORES)} |
|---|---:|---:|---:|---:|---:|
{chr(10).join(rows)}
| together | {" | ".join(map(str, totals))} |

These fail:

| test | reason |
|---|---|
{chr(10).join(missing)}

These are skipped by the suite:

| reason | tests |
|---|---|
{chr(10).join(_skipped(first))}
"""
    return with_part(PAGE, _PROGRAM, part)


if __name__ == "__main__":
    prepared()
    with ThreadPoolExecutor() as pool:  # the tests wait most of the time
        PAGE.write_text(page(dict(zip(gateways.STORES, pool.map(run, gateways.STORES), strict=True))))
