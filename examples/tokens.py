"""Train a small language model on arrays of tokens, and continue where it was stopped:
`python -m examples.tokens FOLDER --store URL`.

Each file of the folder is an array of tokens, as `.npy` or raw uint16. A sample is a window of one token more than the
model sees: its input is all but the last token, its target all but the first. Ctrl-C ends the run after the step that
is running; the same command then goes on with the next step, on the same weights. A run that is killed goes on from the
last checkpoint.
"""

import argparse
import os
import signal
from pathlib import Path

import torch

import ais_loader
from ais_loader import BatchLoader, ShufflePlan, TokenWindows

VOCABULARY, CONTEXT = 1 << 16, 128


class Model(torch.nn.Module):
    """The next token by the present one: a bigram model of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.token = torch.nn.Embedding(VOCABULARY, 16)
        self.next = torch.nn.Linear(16, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.next(self.token(tokens))
        return scores


def save(path: Path, state: dict[str, object]) -> None:
    """Replace the checkpoint at once, so that a run that is killed meanwhile has the one before."""
    torch.save(state, staged := path.with_suffix(".new"))
    os.replace(staged, path)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--store", required=True)
    parser.add_argument("--checkpoint", type=Path, default=Path("tokens.pt"))
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--every", type=int, default=100, help="steps between two checkpoints")
    chosen = parser.parse_args(arguments)
    torch.manual_seed(0)
    with ais_loader.connect(chosen.store) as client:
        bucket = client.create_bucket("tokens", exist_ok=True)
        if next(iter(bucket), None) is None:
            bucket.put_folder(chosen.folder)
        windows = TokenWindows(client, "ais://tokens/", CONTEXT + 1, dtype="uint16", stride=CONTEXT, as_tensor=True)
        plan = ShufflePlan(len(windows), chosen.batch_size, seed=1)
        loader = BatchLoader(windows, plan, collate=torch.stack)
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = 0
        if chosen.checkpoint.exists():
            saved = torch.load(chosen.checkpoint)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
            step = saved["step"]

        def checkpoint() -> None:
            parts = {"model": model, "optimizer": optimizer, "loader": loader}
            save(chosen.checkpoint, {"step": step} | {name: part.state_dict() for name, part in parts.items()})

        interrupted: list[int] = []
        before = signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
        try:
            while loader.epoch is not None and loader.epoch < chosen.epochs and not interrupted:
                for batch in loader:
                    inputs, targets = batch[:, :-1], batch[:, 1:]
                    loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    step += 1
                    print(f"step {step}: loss {loss.item():.3f}", flush=True)
                    if interrupted or step % chosen.every == 0:
                        checkpoint()
                    if interrupted:
                        print(f"stopped; the same command goes on with step {step + 1}")
                        break
            if not interrupted:
                checkpoint()
        finally:
            signal.signal(signal.SIGINT, before)
            loader.close()


if __name__ == "__main__":
    main()
