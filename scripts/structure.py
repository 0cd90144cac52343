"""Measures the structure of the code: components, import cycles, names, and the files that a call enters.

    python -m scripts.structure             # this tree
    python -m scripts.structure --tree DIR  # another one, with this interpreter's packages
    python -m scripts.structure --lines-at-most N  # count the product's lines alone; fail if there are more

A *component* is a folder or a module directly below a package. An edge joins two components if a module of one imports
from the other, also for annotations only. `entered files` runs each call several times against real nodes in this
process, and counts the modules whose functions every one of the runs executes.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import json
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PACKAGES = {"ais_loader": "ais_loader", "storage_node": "storage_node", "ais_loader.integrations": "integrations"}
OPENINGS = {"As", "By", "Of", "That", "What", "Whoever", "Whom", "Whose"}
RUNS = 12

Graph = dict[str, set[str]]


def modules(root: Path) -> dict[str, Path]:
    """Return the product's modules by the name under which they are imported, without generated ones."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            if "generated" not in parts:
                found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


def import_graph(known: dict[str, Path]) -> Graph:
    """Return the modules of the product that each module imports."""
    graph: Graph = {}
    for name, path in known.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                named = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {one if one in known else node.module for one in named}
        graph[name] = {one for one in found if one in known and one != name}
    return graph


def cycles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    sys.setrecursionlimit(10_000)
    for name in graph:
        if name not in index:
            visit(name)
    return found


def components(graph: Graph, package: str) -> Graph:
    """Return the import graph between the components of a package."""
    between: Graph = {}
    for name, imports in graph.items():
        if (mine := _component(name, package)) is not None:
            between.setdefault(mine, set()).update(
                other for one in imports if (other := _component(one, package)) is not None and other != mine
            )
    return between


def _component(module: str, package: str) -> str | None:
    if not module.startswith(package + ".") or module.startswith("ais_loader.integrations"):
        return None
    return module.removeprefix(package + ".").split(".")[0]


def layers(graph: Graph) -> int:
    """Return the length of the longest chain of imports, where a cycle counts as one."""
    tangles = {name: tangle[0] for tangle in cycles(graph) for name in tangle}
    merged: Graph = {}
    for name, imports in graph.items():
        mine = tangles.get(name, name)
        merged.setdefault(mine, set()).update(other for one in imports if (other := tangles.get(one, one)) != mine)
    heights: dict[str, int] = {}

    def height(name: str) -> int:
        if name not in heights:
            heights[name] = 1 + max(map(height, merged[name]), default=0)
        return heights[name]

    return max(map(height, merged), default=0)


def words(name: str) -> set[str]:
    """Return the words of a name in snake case or camel case, without a plural's s."""
    return {word.lower().rstrip("s") for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


def _share_a_word(some: set[str], others: set[str]) -> bool:
    """Return whether a word of both begins alike (`assemble`, `assembled`), or contains one of the other."""
    return any(a[:4] == b[:4] or (min(len(a), len(b)) > 3 and (a in b or b in a)) for a in some for b in others)


def length(node: ast.AST) -> int:
    """Return the lines from the first to the last definition in a module, or those of one definition."""
    parts = [node] if isinstance(node, ast.stmt) else getattr(node, "body", [])
    return max(part.end_lineno or 0 for part in parts) - min(part.lineno for part in parts) if parts else 0


def names(known: dict[str, Path]) -> dict[str, object]:
    """Measure the names of classes, and the first words of docstrings."""
    classes: Counter[str] = Counter()
    strangers, openings, docstrings = [], 0, 0
    for module, path in known.items():
        tree = ast.parse(path.read_text())
        mine = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        classes.update(node.name for node in mine)
        public = [node for node in mine if not node.name.startswith("_")]
        main = max(public, key=length, default=None)
        here = words(path.stem) | words(path.parent.name)
        if main is not None and length(main) > length(tree) // 2 and not _share_a_word(words(main.name), here):
            strangers.append(f"{module}: {main.name}")
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                docstrings += 1
                openings += (node.value.value.split() or [""])[0].rstrip(",:;.'") in OPENINGS
    return {
        "class names used twice or more": sum(count > 1 for count in classes.values()),
        "main classes that share no word with their file": len(strangers),
        "docstrings that open with As/By/Of/That/What/Who": f"{openings} of {docstrings}",
        "_which main classes": strangers,
        "_which class names": sorted(f"{name} x{count}" for name, count in classes.items() if count > 1),
    }


def static(root: Path) -> dict[str, object]:
    """Measure everything that the source shows without being run."""
    known = modules(root)
    graph = import_graph(known)
    figures: dict[str, object] = {}
    for package in ("storage_node", "ais_loader"):
        between = components(graph, package)
        tangled = {frozenset(tangle) for tangle in cycles(between)}
        upward = sum(
            any({name, other} <= tangle for tangle in tangled) for name, some in between.items() for other in some
        )
        edges = sum(map(len, between.values()))
        figures[f"{package}: components / layers / edges (edges in cycles)"] = (
            f"{len(between)} / {layers(between)} / {edges} ({upward})"
        )
    found = cycles(graph)
    inside = sum(len({one.rpartition(".")[0] for one in tangle}) == 1 for tangle in found)
    figures["import cycles (inside one folder)"] = f"{len(found)} ({inside})"
    figures["_which cycles"] = found
    figures.update(folders(root), **names(known))
    source = {name: path.read_text() for name, path in known.items()}
    for name, function in (("storage_node.server", "_serve"),):
        for node in ast.walk(ast.parse(source[name])):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function:
                figures[f"lines of {function}"] = (node.end_lineno or 0) - node.lineno + 1
    lines = product_lines(root)
    figures["lines of code: " + ", ".join(lines) + ", together"] = (
        ", ".join(f"{count:,}" for count in lines.values()) + f", {lines.total():,}"
    )
    return figures


def product_lines(root: Path) -> Counter[str]:
    """Return the lines of the product by its top folders, with those in C, without generated ones."""
    paths = [
        path for folder in PACKAGES.values() for kind in ("*.py", "*.c", "*.h") for path in (root / folder).rglob(kind)
    ]
    lines: Counter[str] = Counter()
    for path in paths:
        if "generated" not in path.parts:
            lines[path.relative_to(root).parts[0]] += path.read_text().count("\n")
    return lines


def folders(root: Path) -> dict[str, object]:
    """Return the largest folder of the product, of the tests and of the benchmarks, by modules."""
    sizes: dict[str, Counter[str]] = {}
    for top in ("ais_loader", "storage_node", "integrations", "tests", "benchmarks"):
        for path in (root / top).rglob("*.py"):
            if "generated" not in path.parts and "__pycache__" not in path.parts:
                kind = top if top in ("tests", "benchmarks") else "product"
                sizes.setdefault(kind, Counter())[str(path.parent.relative_to(root))] += 1
    return {
        f"modules of the largest folder: {kind}": "{1} ({0})".format(*count.most_common(1)[0])
        for kind, count in sizes.items()
    }


# -- what a call enters


class Tracer:
    """Records the product's files whose functions run in any thread of this process while `recording`."""

    def __init__(self, root: Path) -> None:
        self._roots = tuple(f"{root}/{folder}/" for folder in PACKAGES.values())
        self._files: set[str] = set()
        self._recording = False
        self._known: dict[str, bool] = {}
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def _event(self, frame: Any, event: str, argument: object) -> None:
        if self._recording and event == "call":
            name = frame.f_code.co_filename
            if name not in self._known:
                self._known[name] = name.startswith(self._roots) and "/generated/" not in name
            if self._known[name]:
                self._files.add(name)

    def entered(self, call: Callable[[], object]) -> set[str]:
        """Return the files that each of several runs of `call` enters, after a run that warms everything up."""
        call()
        found = []
        for _ in range(RUNS):
            self._files = set()
            self._recording = True
            call()
            self._recording = False
            found.append(self._files)
        return set.intersection(*found)


def entered_files(root: Path) -> Iterator[tuple[str, set[str]]]:
    """Run each kind of call, and yield its name with the files that it enters."""
    tracer = Tracer(root)  # before any thread starts
    from ais_loader import Entry, connect
    from tests.node.cluster_kit import BUCKET, LocalCluster

    server = importlib.import_module("storage_node.server")  # other trees have the settings elsewhere
    numbers = iter(range(1 << 20))
    data = b"x" * 50_000
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as held:
        client = held.enter_context(connect(f"{name}/embedded"))
        bucket = client.create_bucket("b")
        bucket.put("a", data)
        yield "embedded GET", tracer.entered(lambda: bucket.get("a"))
        yield "embedded PUT", tracer.entered(lambda: bucket.put("a", data))
    some = [f"object-{at}" for at in range(32)]
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as held:
        node = held.enter_context(
            server.NodeServer([Path(name)], server.ServerConfig(port=0, etl_code=True, etl_workers=1))
        )
        client = held.enter_context(connect(node.url))
        bucket = client.create_bucket("b")
        for one in some:
            bucket.put(one, data)
        yield "PUT to a node", tracer.entered(lambda: bucket.put(f"new-{next(numbers)}", data))
        entries = [Entry("b", one) for one in some]
        yield "batch from a node", tracer.entered(lambda: client.get_batch(entries).tobytes())
        client.etl.init("upper", lambda data: bytes(data).upper())
        changed = [Entry("b", one, etl="upper") for one in some]
        yield "inline transform", tracer.entered(lambda: client.get_batch(changed).tobytes())
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as held:
        nodes = held.enter_context(LocalCluster(Path(name), 2, copies=2)).nodes
        client = held.enter_context(connect("grpc://" + ",".join(node.endpoint for node in nodes)))
        bucket = client.bucket(BUCKET)
        yield "cluster PUT, two copies", tracer.entered(lambda: bucket.put(f"new-{next(numbers)}", data))
        for one in some:
            bucket.put(one, data)
        entries = [Entry(BUCKET, one) for one in some]
        yield "batch from the nodes of a cluster", tracer.entered(lambda: client.get_batch(entries).tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[1], help="root of the tree")
    parser.add_argument("--details", action="store_true", help="also list the cycles, names and entered files")
    parser.add_argument("--entered", action="store_true", help=argparse.SUPPRESS)  # run in a process of the tree
    parser.add_argument("--lines-at-most", type=int, metavar="N", help="fail if the product has more lines")
    options = parser.parse_args()
    root = options.tree.resolve()
    if options.lines_at_most is not None:
        total = product_lines(root).total()
        print(f"{total:,} product lines of at most {options.lines_at_most:,}")
        if total > options.lines_at_most:
            parser.exit(1, "merge or remove, or raise PRODUCT_LINES of the Makefile in a commit that says why\n")
        return
    if options.entered:
        sys.path.insert(0, str(root))
        found = {call: sorted(name.removeprefix(f"{root}/") for name in files) for call, files in entered_files(root)}
        print(json.dumps(found))
        return
    figures = static(root)
    output = subprocess.run(
        [sys.executable, __file__, "--entered", "--tree", str(root)],
        cwd=root, check=True, stdout=subprocess.PIPE, timeout=300,
    ).stdout  # fmt: skip
    for call, files in json.loads(output.splitlines()[-1]).items():
        figures[f"files that a call enters: {call}"] = len(files)
        figures[f"_which files: {call}"] = files
    for name, figure in figures.items():
        if not name.startswith("_"):
            print(f"{name:<75} {figure}")
        elif options.details:
            print(f"{name[1:]}:\n  " + "\n  ".join(map(str, figure if isinstance(figure, list) else [figure])))


if __name__ == "__main__":
    main()
