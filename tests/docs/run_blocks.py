"""Runner of one page's blocks, in a process of its own: reads them as JSON from standard input (see page_kit.py).

A script that imports nothing of this repository: it runs in environments into which only the wheel was installed.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import os
import re
import shlex
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

COMMAND_TIMEOUT_S = 700
SERVERS = ("ais-loader serve", "ais-loader gateway", "ais-loader ui")
"""Commands that do not end by themselves: the lines up to the first with an address are their answer."""
FILE_NAME = re.compile(r"# ([\w-]+\.\w+)\n")


class Wrong(Exception):
    """What a page shows is not what comes."""


def compare(shown: str, came: str) -> None:
    """Raises Wrong. `...` stands for anything; runs of blanks are alike."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if not doctest.OutputChecker().check_output(shown.strip() + "\n", came.strip() + "\n", flags):
        raise Wrong(f"the page shows\n{shown}\nand this came\n{came}")


def but_for_waiting(printed: str) -> str:
    """Return what a command has printed, without what it tells on a slow machine."""
    return re.sub(r"(?m)^waiting for .*\n", "", printed)


class Page:
    """A page that is being run: its namespace, and the nodes that it has started."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.namespace: dict[str, Any] = {"__name__": "__page__"}
        self.nodes: list[subprocess.Popen[str]] = []

    def run(self, step: dict[str, Any]) -> None:
        if step["language"] == "python":
            printed = self.python(step["text"], step["line"])
        elif step["language"] == "console":
            printed = self.console(step["commands"], step["port"])
        elif step["language"] == "toml":
            printed = self.settings(step["text"])
        else:
            return
        if step["answer"] is not None:
            compare(step["answer"], printed)

    def python(self, text: str, line: int) -> str:
        named = FILE_NAME.match(text)
        if named or 'if __name__ == "__main__":' in text:
            path = Path(named[1] if named else "program.py")
            path.write_text(text)
            return "" if named else self.command(f"{sys.executable} {path}", notes=False)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * (line - 1) + text, self.name, "exec", dont_inherit=True), self.namespace)
        return printed.getvalue()

    def console(self, commands: list[tuple[str, str]], port: str) -> str:
        printed = ""
        for command, shown in commands:
            if command.startswith("export ") and ";" not in command:
                os.environ.update(one.split("=", 1) for one in shlex.split(command, comments=True)[1:])
            came = self.serve(command, port) if command.startswith(SERVERS) else self.command(command)
            if shown:
                compare(shown, came)
            printed += came
        return printed

    def command(self, command: str, *, notes: bool = True) -> str:
        """What it prints; with `notes` on standard error, too, as a terminal shows it."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if notes else subprocess.PIPE,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise Wrong(f"$ {command}\nended with code {done.returncode}:\n{done.stdout}{done.stderr or ''}")
        return but_for_waiting(done.stdout)

    def serve(self, command: str, port: str) -> str:
        """Start a node; what a terminal shows until it is ready."""
        if command.startswith(("ais-loader serve", "ais-loader gateway")):
            command += f" --port {port}"
        words = ["bash", "-c", f"exec {command}"]
        node = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.nodes.append(node)
        assert node.stdout is not None
        said = ""
        for line in node.stdout:
            said += but_for_waiting(line)
            if "://" in line:
                return said
        raise Wrong(f"$ {command}\nended with code {node.wait()} without serving:\n{said}")

    def settings(self, text: str) -> str:
        """Have a node's reader take a file of settings, for every node that it names."""
        from storage_node.settings.config import ServerConfig
        from storage_node.settings.sources import configured, for_node, read_file

        path = Path("settings.toml")
        path.write_text(text)
        settings = read_file(path)
        for name in ("", *settings.get("nodes", {})):
            configured(ServerConfig(), for_node(settings, name))
        return ""

    def close(self) -> None:
        for name in ("client", "bucket", "node"):
            thing = self.namespace.get(name)
            if hasattr(thing, "close"):
                thing.close()
        for node in self.nodes:
            node.terminate()
            node.wait(180)


def main() -> int:
    page = Page(sys.argv[1])
    try:
        for step in json.load(sys.stdin):
            try:
                page.run(step)
            except Exception as error:  # noqa: BLE001 - whatever a page's code may raise
                print(f"line {step['line']}:\n{step['text']}", flush=True)
                if isinstance(error, Wrong):
                    print(error)
                else:
                    traceback.print_exc(file=sys.stdout)
                return 1
    finally:
        page.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
