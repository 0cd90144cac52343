"""Checkpoints: model, optimiser and each rank's place in the data, whole or not at all.

A folder `step-000050` holds `model.pt` and `rank-<n>.pt` of every rank; the file `latest` names the newest whole one,
and is replaced when all ranks have written theirs. What a killed run has begun is overwritten when its step comes.
Beside them `batches-<rank>.jsonl` has a line for each step; a run that goes on cuts it back to where it goes on.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


class CheckpointMismatch(Exception):
    """The checkpoint belongs to a run with other settings; the message says which."""


class Checkpoints:
    """Checkpoints of one rank. A run continues only if `settings` are equal."""

    def __init__(self, folder: Path, *, rank: int, settings: dict[str, object], barrier: Callable[[], None]) -> None:
        self.folder = folder
        self._rank = rank
        self._settings = settings
        self._barrier = barrier
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, step: int, model: dict[str, Any], place: dict[str, Any]) -> None:
        """`model` is rank 0's to write, `place` each rank's own."""
        folder = self.folder / f"step-{step:06d}"
        folder.mkdir(exist_ok=True)
        torch.save(place, folder / f"rank-{self._rank}.pt")
        if self._rank == 0:
            torch.save({"settings": self._settings, **model}, folder / "model.pt")
        self._barrier()
        if self._rank == 0:
            mark = self.folder / "latest.tmp"
            mark.write_text(folder.name)
            os.replace(mark, self.folder / "latest")
            for older in sorted(self.folder.glob("step-*"))[:-2]:
                shutil.rmtree(older)
        self._barrier()

    def load(self) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
        """Step, model and place of the newest whole checkpoint, or None. Raises CheckpointMismatch."""
        try:
            folder = self.folder / (self.folder / "latest").read_text()
        except FileNotFoundError:
            return None
        # Lhotse's sampler state is made of its own classes; the file is this run's own.
        model = torch.load(folder / "model.pt", weights_only=False)
        other = [
            f"{name}={model['settings'].get(name)}"
            for name, v in self._settings.items()
            if model["settings"].get(name) != v
        ]
        if other:
            raise CheckpointMismatch(
                f"{self.folder} holds a run with {', '.join(other)}: give the same options to go on, "
                "or --fresh to begin anew"
            )
        place = torch.load(folder / f"rank-{self._rank}.pt", weights_only=False)
        return int(folder.name.removeprefix("step-")), model, place


class StepLines:
    """The log of one rank's steps, a JSON object a line, flushed as they are done."""

    def __init__(self, path: Path, *, after_step: int) -> None:
        """Lines after `after_step` are those of a run that was killed: they are done again."""
        kept = [row for row in read_lines(path) if row["step"] <= after_step] if after_step else []
        path.write_text("".join(json.dumps(row) + "\n" for row in kept))
        self._file = path.open("a", encoding="utf-8")

    def add(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; the last one may be torn where a run was killed, and is left out then."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]
