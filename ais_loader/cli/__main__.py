"""Entry point of `python -m ais_loader.cli`, which is `ais-loader`."""

from ais_loader.cli import main

main()
