"""Client processes that stay alive across rounds: what they fetch is timed, their start is not."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Self

import ais_loader
from ais_loader import ClusterOptions, Entry
from ais_loader.values.options import LaneChoice
from benchmarks.kit import echo

BUCKET = "bench"


def object_names(count: int) -> list[str]:
    return [f"o/{number:06d}" for number in range(count)]


def batches(names: Sequence[str], batch_size: int, seed: int) -> Iterator[list[Entry]]:
    """Every name once, in an order drawn from the seed."""
    shuffled = list(names)
    random.Random(seed).shuffle(shuffled)
    for first in range(0, len(shuffled), batch_size):
        yield [Entry(BUCKET, name) for name in shuffled[first : first + batch_size]]


def get_batches(
    client: ais_loader.Client,
    names: Sequence[str],
    batch_size: int,
    in_flight: int,
    seed: int,
    options: dict[str, Any] | None = None,
) -> int:
    """Fetch every name once; returns the bytes that came."""
    total = 0
    for batch in client.get_batches(batches(names, batch_size, seed), in_flight=in_flight, **(options or {})):
        for item in batch:
            total += len(item.data)
    return total


def _work(url: str, pipe: Connection, lane: LaneChoice) -> None:
    """Commands come as (kind, arguments); the answer is the seconds that each took, from a common start signal."""
    options = ClusterOptions(lane=lane) if url.startswith("grpc://") else None
    client = ais_loader.connect(url, mode="r", options=options) if url else None
    while (command := pipe.recv()) is not None:
        kind, arguments = command
        start = time.perf_counter()
        if kind == "batches":
            assert client is not None
            get_batches(client, *arguments)
        elif kind == "gets":
            assert client is not None
            bucket = client.bucket(BUCKET)
            for name in arguments[0]:
                bucket.get(name)
        elif kind == "echo_unary":
            echo.unary(*arguments)
        elif kind == "echo_stream":
            echo.stream(*arguments)
        pipe.send(time.perf_counter() - start)


class Workers:
    """`count` processes of `work(url, pipe)`, which answers one command after another until None comes."""

    def __init__(self, work: Callable[[str, Connection], None], url: str, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=work, args=(url, there), daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def ask(self, commands: Sequence[object]) -> list[Any]:
        """As many processes as there are commands have one each, all at once; their answers, in order."""
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


class Clients(Workers):
    """Processes with a connection of its own each to `url` (or none, for the echo)."""

    def __init__(self, url: str, count: int, *, lane: LaneChoice = "auto") -> None:
        super().__init__(partial(_work, lane=lane), url, count)

    def seconds(self, kind: str, arguments: Sequence[tuple[object, ...]]) -> float:
        """Wall time until the last of the processes has done its part."""
        start = time.perf_counter()
        self.ask([(kind, own) for own in arguments])
        return time.perf_counter() - start
