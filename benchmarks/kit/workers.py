"""Worker processes that stay alive across rounds: what they are told to do is timed, their start is not."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Self


class Workers:
    """`count` processes of `work(given, number, pipe)`, which answers one command after another until None comes."""

    def __init__(
        self, work: Callable[[Any, int, Connection], None], given: object, count: int, *, is_daemon: bool = True
    ) -> None:
        """`is_daemon`: False lets them start processes of their own."""
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(count):
            here, there = context.Pipe()
            process = context.Process(target=work, args=(given, number, there), daemon=is_daemon)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def ask(self, commands: Sequence[object]) -> list[Any]:
        """Give each process one of the commands, all at once. Returns their answers, in order."""
        pipes = self._pipes[: len(commands)]
        for pipe, command in zip(pipes, commands, strict=True):
            pipe.send(command)
        answers = []
        for pipe in pipes:
            if not pipe.poll(600):
                raise TimeoutError("a client did not answer within 600 s")
            answers.append(pipe.recv())
        return answers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(10)
            process.terminate()
