"""Objects that several processes' worth of writers extend with `if_version`, while nodes are killed and come back."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict

import pytest

from ais_loader import Client, Entry, connect, errors
from ais_loader.testing import eventually, throwaway_folder
from tests.cluster_processes import ClusterProcesses
from tests.patience import PATIENT_CLIENT

NAMES = [f"n{number}" for number in range(4)]
KILLS = 4
MORE = 25
"""Writes between two kills."""


@pytest.mark.slow
def test_what_was_acknowledged_is_there_once_whatever_died() -> None:
    acknowledged: dict[str, list[str]] = defaultdict(list)
    over = threading.Event()
    failed: list[BaseException] = []

    def written() -> int:
        return sum(map(len, acknowledged.values()))

    def extend(client: Client, writer: int) -> None:
        chosen = random.Random(writer)
        number = 0
        while not over.is_set():
            name, number = chosen.choice(NAMES), number + 1
            mark = f"{writer}.{number};"
            try:
                info = client.bucket("b").head(name)
                (before,) = client.get_batch([Entry("b", name, version=info.version)]).tobytes()
                client.bucket("b").put(name, before + mark.encode(), if_version=info.version)
            except (errors.VersionConflict, errors.NotFound, errors.NodeUnavailable, errors.SilenceTimeout):
                continue  # somebody was first, or nobody answered: then it may be there, and need not
            acknowledged[name].append(mark)

    def run(client: Client, writer: int) -> None:
        try:
            extend(client, writer)
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    with throwaway_folder() as folder, ClusterProcesses(folder, 3, buckets={"b": 2}) as cluster:
        clients = [connect(cluster.url, options=PATIENT_CLIENT) for _ in range(3)]
        for name in NAMES:
            clients[0].bucket("b").put(name, b"", if_absent=True)
        threads = [threading.Thread(target=run, args=(client, at)) for at, client in enumerate(clients)]
        for thread in threads:
            thread.start()
        try:
            for kill in range(KILLS):
                enough = written() + MORE
                eventually(lambda: bool(failed) or written() >= enough)  # noqa: B023 - waited for here
                cluster.nodes[kill % 3].restart()
            eventually(lambda: bool(failed) or written() >= enough + MORE)
        finally:
            over.set()
            for thread in threads:
                thread.join(timeout=180)
        assert not failed
        for name in NAMES:
            marks = Counter(mark + ";" for mark in clients[0].bucket("b").get(name).decode().split(";")[:-1])
            assert [mark for mark in acknowledged[name] if marks[mark] != 1] == []
            assert set(marks.values()) <= {1}
        for client in clients:
            client.close()
