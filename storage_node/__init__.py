"""What an operator runs: drives, the store over them, and the server that lends it to trainers.

`store` is one machine's storage, without network; `server` puts it on gRPC. Nothing here imports `ais_loader` or torch.
"""
