"""Conformance to S3, measured with ceph's s3-tests, of which nothing is kept in this tree.

    python -m tests.doors.conformance

runs their groups that concern this gateway, and writes docs/gateway-conformance.md.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

from tests.doors import gateways
from tests.doors.environments import FOLDER, ROOT, RealClient, install, make

PAGE = ROOT / "docs" / "gateway-conformance.md"
REPOSITORY, COMMIT = "https://github.com/ceph/s3-tests", "8f0ae7b404a3a2fcf7038bf1e6bf29544fe9b6a3"
_SUITE = FOLDER / "s3-tests"
_FILES = ("test_s3.py", "test_headers.py")
_NEEDS = ("boto3==1.44.8", "PyYAML", "munch", "gevent", "isodate", "requests", "pytz", "httplib2", "lxml", "pytest")
_CLIENT = RealClient("s3-tests", COMMIT[:12], "conformance.py", (*_NEEDS, "pytest-timeout"), environment="s3tests")
_RUN_S = 1500.0

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
    "test_buckets_list_ctime": "the store keeps no time of creation of a bucket",
    "test_object_set_get_unicode_metadata": "metadata are returned as UTF-8, as they were sent; boto3 reads Latin-1",
    "test_object_read_unreadable": "a key that is valid UTF-8 is no error",
    "test_100_continue": "needs a bucket that anybody may write to",
    "test_list_multipart_upload_owner": "needs a bucket that anybody may write to",
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


def fetch() -> Path:
    """Return the folder of the suite, which is cloned if it is not there. Raises Unavailable."""
    if not (_SUITE / "s3tests").is_dir():
        install(["git", "clone", "--quiet", REPOSITORY, str(_SUITE)])
        install(["git", "-C", str(_SUITE), "checkout", "--quiet", COMMIT])
    return _SUITE


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
    python, suite = make(_CLIENT), fetch()
    groups, report = chosen(suite), FOLDER / f"s3-tests-{store}.xml"
    report.unlink(missing_ok=True)
    with gateways.gateway(store) as url:
        configuration = FOLDER / f"s3-tests-{store}.conf"
        configuration.write_text(_configuration(suite, url))
        names = [f"s3tests/functional/{file}::{name}" for rows in groups.values() for file, name in rows]
        options = ["-q", "-p", "no:cacheprovider", "-W", "ignore", "--timeout", "120", "--tb", "short"]
        command = [str(python), "-m", "pytest", *options, "--junitxml", str(report), *names]
        with (FOLDER / f"s3-tests-{store}.log").open("w") as log:
            variables = {**os.environ, "S3TEST_CONF": str(configuration)}
            subprocess.run(command, cwd=suite, env=variables, stdout=log, stderr=log, timeout=_RUN_S)
    failed: Counter[str] = Counter()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        failed[case.get("name", "")] += len([one for one in case if one.tag in ("failure", "error", "skipped")])
    return {group: {name: failed[name] == 0 for _, name in rows} for group, rows in groups.items()}


def failures(passed: dict[str, dict[str, bool]]) -> set[str]:
    """Return the tests that did not pass."""
    return {name for rows in passed.values() for name, is_passed in rows.items() if not is_passed}


def page(passed: dict[str, dict[str, bool]]) -> str:
    """Return the page about what passed."""
    rows = [(group, len(tests), sum(tests.values())) for group, tests in passed.items()]
    table = [f"| {group} | {count} | {good} |" for group, count, good in rows]
    total = f"| together | {sum(count for _, count, _ in rows)} | {sum(good for _, _, good in rows)} |"
    missing = [f"| `{name}` | {REASONS.get(name, 'not known')} |" for name in sorted(failures(passed))]
    return f"""# Conformance of the S3 gateway

The gateway is measured with [ceph's s3-tests]({REPOSITORY}), which nobody of this project wrote, at commit
{COMMIT[:12]}. `make test-doors` runs them, and `python -m tests.doors.conformance` writes this page. Chosen are the
tests of what the [gateway](gateway.md) has. Not run are those of access lists other than the owner's, anonymous access,
policies, versions, encryption, locks, lifecycles, logging, CORS, browsers' forms, version 2 of the signature in
headers, and of ceph's own extensions.

| group | tests | pass |
|---|---:|---:|
{chr(10).join([*table, total])}

These fail:

| test | reason |
|---|---|
{chr(10).join(missing)}
"""


if __name__ == "__main__":
    PAGE.write_text(page(run("embedded")))
