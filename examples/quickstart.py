"""Quickstart, from nothing to an ordered batch: `python -m examples.quickstart [URL]`.

Without a URL the store is a folder that is removed at the end; `grpc://host:port` runs the same lines on storage nodes.
"""

import sys
import tempfile

import ais_loader


def main(url: str) -> None:
    with ais_loader.connect(url) as client:
        bucket = client.create_bucket("quickstart", exist_ok=True)
        put = bucket.put_many([(f"sample-{i}", f"payload {i}".encode()) for i in range(8)])
        print("put", *(info.name for info in put.infos))
        wanted = [ais_loader.Entry("quickstart", f"sample-{i}") for i in (5, 2, 7)]
        for item in client.get_batch(wanted):  # one request; the answers come in the order asked for
            print("got", item.entry.name, item.tobytes())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(folder)
