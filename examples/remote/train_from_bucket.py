"""Training from a bucket in S3: `python -m examples.remote.train_from_bucket [--store URL] [--epochs 2]`.

The speech of tests/data is uploaded to an S3 server that runs inside this program (moto, of the `dev` extra). The store
begins empty: the first epoch requests each object once, and later ones read the store's drives. By default, the store
is a folder that is removed at the end. With `--store grpc://host:port`, the node's setting remote_hosts has to
list the server, as `127.0.0.1:*`.
"""

import argparse
import logging
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import ais_loader
from ais_loader import Client, Entry, MapDataset, Remote
from ais_loader.extras import needs
from examples.speech.corpus import Alphabet, read_corpus
from examples.speech.features import collate
from examples.speech.model import SpeechModel
from examples.speech.trainer import compute_threads, decode

with needs("moto", "this example", extra="dev"):
    import boto3
    from moto.server import ThreadedMotoServer

SPEECH = Path(__file__).resolve().parents[2] / "tests" / "data" / "speech"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "example", "AWS_SECRET_ACCESS_KEY": "example", "AWS_REGION": "us-east-1"}


def start_s3(held: ExitStack) -> str:
    """Start an S3 server, which runs until `held` is closed, and return its URL."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    held.callback(server.stop)
    return "http://{}:{}".format(*server.get_host_and_port())


def remote_requests(client: Client) -> int:
    """Return the number of requests to the remote storage until now."""
    return sum(sum(row.requests.values()) for row in client.remote_usage() if row.bucket == "train")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=10)
    chosen = parser.parse_args(arguments)
    os.environ.update(CREDENTIALS)
    texts = {utterance.name: utterance.text for utterance in read_corpus(SPEECH)}
    alphabet = Alphabet(texts.values())
    torch.set_num_threads(compute_threads(0))
    torch.manual_seed(0)
    model = SpeechModel(len(alphabet))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with ExitStack() as held:
        endpoint = start_s3(held)
        s3 = boto3.client("s3", endpoint_url=endpoint)
        s3.create_bucket(Bucket="corpus")
        for name in texts:
            s3.upload_file(str(SPEECH / name), "corpus", f"v1/{name}")
        s3.close()
        url = chosen.store or held.enter_context(tempfile.TemporaryDirectory())
        client = held.enter_context(ais_loader.connect(url))
        bucket = client.create_bucket("train", remote=Remote("s3://corpus/v1", endpoint=endpoint))
        names = list(bucket)  # of the objects in S3 and of the stored ones, merged
        entries = [Entry("train", name, opaque=tuple(alphabet.encode(texts[name]))) for name in names]
        dataset = MapDataset(client, entries, decode=decode)
        loader = DataLoader(dataset, chosen.batch_size, shuffle=True, collate_fn=collate)
        for epoch in range(1, chosen.epochs + 1):
            requests, began_s, losses = remote_requests(client), time.perf_counter(), []
            for batch in loader:
                loss = model.loss(batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            took_s, requests = time.perf_counter() - began_s, remote_requests(client) - requests
            mean_loss = sum(losses) / len(losses)
            print(
                f"epoch {epoch}: {len(names)} objects, {requests} requests to S3, {took_s:.2f} s, loss {mean_loss:.2f}"
            )


if __name__ == "__main__":
    main()
