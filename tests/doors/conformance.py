"""Conformance to S3, measured with ceph's s3-tests, of which nothing is kept in this tree.

    python -m tests.doors.conformance

runs their groups that concern this gateway, and writes their tables in docs/gateway.md. `fetched` and `outcomes` serve
other suites too. Any other server can be measured:

    python -m tests.doors.conformance --endpoint garage=http://127.0.0.1:3900

prints which tests it passes; with --keep, they become a column of the first table. It must know the keys of
tests/doors/gateways.py (doors-key with doors-secret, other-key with other-secret), as two different users.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from scripts.made_parts import with_part
from tests.doors import gateways
from tests.doors.environments import FOLDER, ROOT, RealClient, install, make

PAGE = ROOT / "docs" / "gateway.md"
_PROGRAM = "tests/doors/conformance.py"
OTHERS = Path(__file__).with_name("conformance_of_others.json")
"""The tests that each other server passes, by its name with the version."""
REPOSITORY, COMMIT = "https://github.com/ceph/s3-tests", "8f0ae7b404a3a2fcf7038bf1e6bf29544fe9b6a3"
_SUITE = FOLDER / "s3-tests"
_PARTS = ("s3tests", "s3tests.conf.SAMPLE", "pytest.ini")
_FILES = ("test_s3.py", "test_headers.py")
_NEEDS = ("boto3==1.44.8", "PyYAML", "munch", "gevent", "isodate", "requests", "pytz", "httplib2", "lxml", "pytest")
_CLIENT = RealClient("s3-tests", COMMIT[:12], "conformance.py", (*_NEEDS, "pytest-timeout"), environment="s3tests")
_RUN_S = 3000.0

# What the gateway does not have at all: users with rights of their own, versions, policies, encryption, forms.
_ABSENT = re.compile(
    r"acl_|_acl|versioned|versioning|_version_|_current_|current_object|tenant|policy|post_object|sse_|_enc(_|\b)"
    r"|encrypt|cors|lock|logging|lifecycle|ownership|public|usage|unordered|website|expected_bucket_owner|not_owned"
    r"|nonowner|_aws2|torrent|grant|presigned_put_object_with|restore|read_through|delete_marker|bucket_owner"
    r"|object_writer|raw_get$|raw_get_(bucket|object)_gone|anon|bucket_head_extended|delete_key_bucket_gone"
    r"|bucket_tagging|tags_obj|access_bucket"
)
# The first pattern that a test's name has decides.
_GROUPS = (
    ("listings, version 2", r"test_bucket_listv2_|test_basic_key_count"),
    ("listings, version 1", r"test_bucket_list_(?!long_name)"),
    ("conditional reads", r"test_get_object_if"),
    ("conditional writes", r"test_put_object_if"),
    ("conditional deletions", r"test_delete_objects?_if"),
    ("deletions of many", r"test_multi_object"),
    ("atomicity", r"test_atomic"),
    ("ranges", r"test_ranged"),
    ("tags", r"_tag(s|ging)"),
    ("attributes", r"attributes"),
    ("checksums", r"checksum|cksum"),
    ("uploads in parts, copied", r"test_multipart_copy|test_upload_part_copy"),
    ("uploads in parts", r"multipart|get_part"),
    ("copies", r"test_object_copy|test_copy_object"),
    ("presigned addresses", r"x_amz_expires|raw_"),
    ("signatures", r"auth"),
    ("buckets", r"test_bucket|test_list_buckets"),
    ("objects", r"test_object|100_continue"),
)
_SENT = "the newest boto3 puts the header back that is to be missing or empty, and so sends a valid request"
_DATES = "boto3 signs with a date of another form than version 4 of the signature has"
REASONS = {
    "test_bucket_get_location": "is skipped without the name of a region; buckets have none",
    "test_object_set_get_unicode_metadata": "metadata are returned as UTF-8, as they were sent; boto3 reads Latin-1",
    "test_object_read_unreadable": "a key that is valid UTF-8 is no error",
    "test_100_continue": "needs a bucket that anybody may write to",
    "test_list_multipart_upload_owner": "needs a bucket that anybody may write to",
    "test_multipart_copy_invalid_range": "S3 itself answers InvalidArgument",
    "test_multipart_resend_first_finishes_last": "lists one part twice, which is refused, as S3's documentation has it",
    "test_object_create_bad_contentlength_none": _SENT,
    "test_object_create_bad_authorization_empty": _SENT,
    "test_object_create_bad_authorization_none": _SENT,
    "test_bucket_create_bad_authorization_empty": _SENT,
    "test_bucket_create_bad_authorization_none": _SENT,
    "test_object_create_date_and_amz_date": _DATES,
    "test_object_create_amz_date_and_no_date": _DATES,
}
"""Tests that fail, and why."""


def fetched(folder: Path, repository: str, commit: str, *parts: str) -> Path:
    """Return a folder with parts of a repository, which is cloned if one is not there. Raises Unavailable."""
    if not all((folder / part).exists() for part in parts):
        shutil.rmtree(folder, ignore_errors=True)
        install(["git", "clone", "--quiet", "--no-checkout", "--filter=blob:none", repository, str(folder)])
        install(["git", "-C", str(folder), "checkout", "--quiet", commit, "--", *parts])
    return folder


def outcomes(
    python: Path, folder: Path, name: str, arguments: Sequence[str], variables: Mapping[str, str], timeout_s: float
) -> list[tuple[str, str, str]]:
    """Run a suite with pytest, and return class, name and outcome of each test: "passed", or why it did not.

    Args:
        folder: The folder of the suite.
        name: The name of the run's log and report in `FOLDER`.
        arguments: Further ones of pytest.
    """
    report = FOLDER / f"{name}.xml"
    report.unlink(missing_ok=True)
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore", "--timeout", "300", "--tb", "short"]
    command = [str(python), "-m", "pytest", *options, "--junitxml", str(report), *arguments]
    with (FOLDER / f"{name}.log").open("w") as log:
        environment = {**os.environ, **variables}
        subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=log, timeout=timeout_s)
    found = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        bad = next((one for one in case if one.tag in ("failure", "error", "skipped")), None)
        text = "passed" if bad is None else f"{bad.tag}: {bad.get('message', '')}"
        found.append((case.get("classname", ""), case.get("name", ""), text))
    return found


def chosen(suite: Path) -> dict[str, list[tuple[str, str]]]:
    """Return files and names of the tests that are run, by group."""
    found: dict[str, list[tuple[str, str]]] = {}
    for file in _FILES:
        for node in ast.parse((suite / "s3tests" / "functional" / file).read_text()).body:
            name = getattr(node, "name", "")
            if not isinstance(node, ast.FunctionDef) or not name.startswith("test_") or _ABSENT.search(name):
                continue
            group = "headers" if file == "test_headers.py" else _group(name)
            if group:
                found.setdefault(group, []).append((file, name))
    return dict(sorted(found.items()))


def _group(name: str) -> str:
    return next((group for group, pattern in _GROUPS if re.search(pattern, name)), "")


def _configuration(suite: Path, url: str) -> str:
    """Return the suite's example of a configuration with this address and the gateway's keys."""
    split = urlsplit(url)
    text = (suite / "s3tests.conf.SAMPLE").read_text()
    text = text.replace("host = localhost", f"host = {split.hostname}").replace("port = 8000", f"port = {split.port}")
    parts = re.split(r"^(?=\[)", re.sub(r"(?m)^api_name = .*", "api_name =", text), flags=re.MULTILINE)
    for at, part in enumerate(parts):
        key = gateways.MAIN if part.startswith("[s3 main") else gateways.OTHER
        part = re.sub(r"(?m)^access_key = .*", f"access_key = {key.access_key}", part)
        parts[at] = re.sub(r"(?m)^secret_key = .*", f"secret_key = {key.secret_key}", part)
    return "".join(parts)


def run(store: str) -> dict[str, dict[str, bool]]:
    """Run the suite against a gateway over a store of this kind. Return which tests passed, by group.

    Raises Unavailable.
    """
    python = make(_CLIENT)
    fetched(_SUITE, REPOSITORY, COMMIT, *_PARTS)
    with gateways.gateway(store) as url:
        return _measured(python, url, store)


def measure(url: str, label: str) -> dict[str, dict[str, bool]]:
    """Run the suite against the server at this address. Return which tests passed, by group. Raises Unavailable.

    Args:
        label: For the names of the configuration, the log and the report, below build/doors.
    """
    return _measured(make(_CLIENT), url, label)


def _measured(python: Path, url: str, label: str) -> dict[str, dict[str, bool]]:
    suite = fetched(_SUITE, REPOSITORY, COMMIT, *_PARTS)
    groups = chosen(suite)
    configuration = FOLDER / f"s3-tests-{label}.conf"
    configuration.write_text(_configuration(suite, url))
    names = [f"s3tests/functional/{file}::{name}" for rows in groups.values() for file, name in rows]
    variables = {"S3TEST_CONF": str(configuration)}
    ended: dict[str, bool] = {}  # a test that has not ended, as the run was cut off, has not passed
    for _, case, outcome in outcomes(python, suite, f"s3-tests-{label}", names, variables, _RUN_S):
        name = case.partition("[")[0]
        ended[name] = ended.get(name, True) and outcome == "passed"
    return {group: {name: ended.get(name, False) for _, name in rows} for group, rows in groups.items()}


def failures(passed: dict[str, dict[str, bool]]) -> set[str]:
    """Return the tests that did not pass."""
    return {name for rows in passed.values() for name, is_passed in rows.items() if not is_passed}


def others() -> dict[str, set[str]]:
    """Return the tests that each other server passes, by its name."""
    kept: dict[str, list[str]] = json.loads(OTHERS.read_text()) if OTHERS.exists() else {}
    return {name: set(tests) for name, tests in kept.items()}


def _keep(name: str, passed: dict[str, dict[str, bool]]) -> None:
    """Keep what another server passes, for the page."""
    found = {test for rows in passed.values() for test, is_passed in rows.items() if is_passed}
    kept = {each: sorted(tests) for each, tests in sorted({**others(), name: found}.items())}
    OTHERS.write_text(json.dumps(kept, indent=1) + "\n")


def page(passed: dict[str, dict[str, bool]]) -> str:
    """Return the page with the tables of what passed and what failed."""
    measured = others()
    columns = "".join(f" {name} |" for name in measured)
    rows = [f"| group | tests | gateway |{columns}", "|---|---:|---:|" + "---:|" * len(measured)]
    together = {name: is_passed for tests in passed.values() for name, is_passed in tests.items()}
    for group, tests in [*passed.items(), ("together", together)]:
        cells = (len(tests), sum(tests.values()), *(len(tests.keys() & good) for good in measured.values()))
        rows.append(f"| {group} | " + " | ".join(map(str, cells)) + " |")
    rows += ["", "These fail:", "", "| test | reason |", "|---|---|"]
    rows += [f"| `{name}` | {REASONS.get(name, 'not known')} |" for name in sorted(failures(passed))]
    return with_part(PAGE, _PROGRAM, f"At commit {COMMIT[:12]}:\n\n" + "\n".join(rows) + "\n")


def main() -> None:
    """Measure the gateway and write its tables, or measure other servers."""
    parser = argparse.ArgumentParser(description="Run ceph's s3-tests.")
    parser.add_argument("--endpoint", action="append", default=[], metavar="NAME=URL", help="measure this server")
    parser.add_argument("--keep", action="store_true", help="keep its result as a column of the first table")
    options = parser.parse_args()
    if any(not re.fullmatch(r"[^=]+=http://[^/]+:\d+/?", text) for text in options.endpoint):
        parser.error("--endpoint: need NAME=http://HOST:PORT, without a path")
    for name, _, url in (text.partition("=") for text in options.endpoint):
        passed = measure(url, re.sub(r"\W+", "-", name))
        for group, rows in passed.items():
            print(f"{group}: {sum(rows.values())} of {len(rows)}")
        print(f"{name} fails:", *sorted(failures(passed)), sep="\n  ")
        if options.keep:
            _keep(name, passed)
    if not options.endpoint:
        PAGE.write_text(page(run("embedded")))


if __name__ == "__main__":
    main()
