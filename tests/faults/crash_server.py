"""A warm interpreter that forks a child for every task: a store is opened, used and killed in a few milliseconds.

The server itself never opens a store, so that no child inherits anything of RocksDB's. It reads one JSON object a line
from its standard input and answers each with one line:

    {"run": "module:function", "with": {...}}  ->  {"pid": N}        the child is running
    {"wait": N}                                ->  {"status": S}     as of os.waitstatus_to_exitcode; the child is gone

A child stays a zombie until it is waited for, so a pid that was answered always means that child.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any


def _run(task: str, arguments: dict[str, Any]) -> None:
    module, _, function = task.partition(":")
    getattr(importlib.import_module(module), function)(**arguments)


def main() -> None:
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            os.close(0)
            os.dup2(2, 1)  # answers are the server's alone
            try:
                _run(request["run"], request["with"])
            except BaseException:  # noqa: BLE001 - the border of a process
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(json.dumps({"pid": pid}), flush=True)


if __name__ == "__main__":
    main()
