"""Entry point of `python -m ais_loader.cli`, the same as `ais-loader`."""

from ais_loader.cli import main

main()
